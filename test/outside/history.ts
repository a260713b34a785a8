/** Owns what happens in a random history: a setting and operations, all told by one seed. */
import { Random } from '../../src/runtime/core/random.js'
import type { Contract, ContractChoice } from '../../src/index.js'
import type { Op, Opening, StepOp } from './protocol.js'

export const ARCHITECTURES = ['llama', 'qwen2', 'cohere2', 'gemma3', 'mamba', 'jamba', 'lfm2', 'qwen2vl'] as const
export type Architecture = (typeof ARCHITECTURES)[number]

export interface HistoryModel {
  readonly architecture: Architecture
  /** A GGUF of that architecture; default: a synthetic one. */
  readonly model?: string
}

/** Every architecture in turn, so that a short run has all of them; or the given model, whose sequences are tagged and whose heads q8_0's blocks divide. */
export const modelFor = (seed: number, model: string | undefined): HistoryModel =>
  model === undefined ? { architecture: ARCHITECTURES[seed % ARCHITECTURES.length]! } : { architecture: 'llama', model }

/** Beside the worker's operations: it is killed while it does one. */
export type HistoryOp = Op | { readonly op: 'kill'; readonly milliseconds: number; readonly during: StepOp }

export interface History extends HistoryModel {
  readonly seed: number
  /** The path of a synthetic model is the runner's to know, and the folder of a disk tier. */
  readonly setting: Omit<Opening, 'model' | 'disk'> & { readonly disk: boolean }
  /** All steps ask for this one; null: each for its own. */
  readonly contract: ContractChoice | null
  readonly ops: readonly HistoryOp[]
}

const WORDS = [
  'red',
  'stone',
  'river',
  'a',
  'the',
  'Zürich',
  '42',
  'fold',
  '\n',
  'light',
  ';',
  '{"x": 1}',
  'quiet',
  '日本',
  'table',
]

/** Words with a code now and then that no other text has. */
export function text(random: Random, words: number): string {
  const all = Array.from({ length: words }, (_, at) =>
    at % 7 === 3 ? `#${(random.word() % 36 ** 4).toString(36).padStart(4, '0')}#` : WORDS[random.below(WORDS.length)]!,
  )
  return all.join(' ')
}

/** The codes of a text, and where they stand. */
export function codesOf(content: string): { readonly code: string; readonly start: number; readonly end: number }[] {
  return [...content.matchAll(/#[0-9a-z]{4}#/g)].map(({ 0: code, index }) => ({ code, start: index, end: index + code.length }))
}

export const pick = <T>(random: Random, all: readonly T[]): T => all[random.below(all.length)]!

/** @param model see `modelFor` */
export function historyOf(seed: number, model?: string): History {
  const random = new Random(seed, 19)
  const { architecture } = modelFor(seed, model)
  const linear = ['mamba', 'jamba', 'lfm2'].includes(architecture)
  const flashAttention = pick(random, ['on', 'off'] as const)
  // Of the synthetic models only these have heads that q8_0's blocks divide.
  const quantised = random.below(2) === 0 && ['llama', 'qwen2'].includes(architecture)
  const disk = random.below(4) === 0
  const contract = pick(random, ['exact', 'splice', 'splice', 'blend', 'blend', 'auto', null] as const)
  const tight = random.below(2) === 0
  const twin = !disk && !linear && (contract === 'splice' || contract === 'blend')
  const several = random.below(2) === 0
  const setting = {
    cells: tight ? pick(random, [768, 1024, 1536, 2048]) : 4096,
    sequences: linear ? 4 + random.below(4) : pick(random, [6, 12, 24]),
    slots: linear ? 2 : 3,
    ubatch: pick(random, [64, 512, 512]),
    flashAttention,
    keyType: quantised ? ('q8_0' as const) : ('f16' as const),
    valueType: quantised && flashAttention === 'on' ? ('q8_0' as const) : ('f16' as const),
    hostBytes: pick(random, [0, 150_000, 2 ** 28, 2 ** 28, 2 ** 28]),
    disk,
    twin,
  }
  const ops: HistoryOp[] = []
  const talks = Array.from({ length: several ? 2 : 1 }, (_, at) => ({
    name: `talk-${at}`,
    // The second one often begins like the first: what is shared, and what must not be.
    tenant: at === 0 ? 'a' : pick(random, ['a', 'b']),
  }))
  const step = (talk: string, keep = random.below(3) > 0): StepOp => ({
    op: 'step',
    talk,
    contract: contract ?? pick(random, ['exact', 'splice', 'blend']),
    maxTokens: 1 + random.below(6),
    ...(twin || random.below(2) === 0 ? { bias: 70 + random.below(180) } : {}),
    keep,
  })
  const system = text(random, 10)
  const opening = text(random, 30 + random.below(80))
  for (const { name, tenant } of talks) {
    ops.push({ op: 'begin', talk: name, tenant }, { op: 'add', talk: name, role: 'system', content: system })
    const same = name === 'talk-0' || random.below(2) === 0
    ops.push({ op: 'add', talk: name, role: 'user', content: same ? opening : text(random, 40) }, step(name))
  }
  const editContract = (): { contract?: Contract } =>
    contract === null && random.below(2) === 0 ? { contract: pick(random, ['exact', 'splice', 'blend'] as const) } : {}
  const cut = (talk: string): Op => {
    const start = random.below(90) / 100
    return {
      op: 'fragment',
      talk,
      pick: random.below(20),
      start,
      share: (5 + random.below(60)) / 100,
      pieces: 1 + random.below(3),
    }
  }
  for (const { name } of talks) ops.push(cut(name), cut(name))
  const moves = 6 + random.below(9)
  for (let move = 0; move < moves; move++) {
    const talk = pick(random, talks).name
    const kind = random.below(24)
    if (kind < 3) ops.push({ op: 'add', talk, role: 'user', content: text(random, 5 + random.below(30)) }, step(talk))
    else if (kind < 5) ops.push(cut(talk))
    else if (kind < 10)
      ops.push(
        ...Array.from({ length: 1 + random.below(3) }, (): Op => ({
          op: 'fold',
          talk,
          pick: random.below(20),
          ...editContract(),
        })),
        step(talk),
      )
    else if (kind < 13) ops.push({ op: 'restore', talk, pick: random.below(20) }, step(talk))
    else if (kind < 16) {
      // Folded, looked at, and restored before anything else happens.
      const which = random.below(20)
      ops.push({ op: 'fold', talk, pick: which }, step(talk, false), { op: 'restore', talk, pick: which }, step(talk, false))
    } else if (kind === 16) ops.push({ op: 'summarise', talk, pick: random.below(20) }, step(talk))
    else if (kind === 17) ops.push({ op: 'search', talk, query: 'stone' }, step(talk))
    else if (twin) ops.push(step(talk))
    else if (kind === 18) ops.push({ op: 'refresh', talk }, step(talk))
    else if (kind === 19) ops.push({ op: pick(random, ['compact', 'closeGaps'] as const), talk }, step(talk))
    else if (kind < 22)
      ops.push(
        { op: 'add', talk, role: 'user', content: text(random, 40 + random.below(60)) },
        { ...step(talk), maxTokens: 30, cancel: { milliseconds: random.below(20), tokens: 1 + random.below(20) } },
        step(talk),
      )
    else if (kind === 22) ops.push({ op: 'together', steps: talks.map(({ name }) => step(name)) })
    else if (disk) ops.push({ op: 'reopen' }, step(talk))
    else ops.push({ op: 'check' })
  }
  if (disk && random.below(3) === 0)
    ops.push({ op: 'kill', milliseconds: random.below(60), during: step('talk-0') }, step('talk-0'))
  ops.push({ op: 'check' })
  return { seed, ...modelFor(seed, model), setting, contract, ops }
}
