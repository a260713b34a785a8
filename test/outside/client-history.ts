/** Owns what happens in a random history of a client that sends other messages than before: edits of its messages, forks, and going back to what it sent. */
import { Random } from '../../src/runtime/core/random.js'
import { type History, type HistoryOp, modelFor, pick, text } from './history.js'
import type { MessageEdit, StepOp } from './protocol.js'

const KINDS = ['replace', 'shorten', 'empty', 'remove', 'insert', 'summarise', 'again'] as const

/** @param model see `modelFor` */
export function clientHistoryOf(seed: number, model?: string): History {
  const random = new Random(seed, 21)
  const { architecture } = modelFor(seed, model)
  const linear = ['mamba', 'jamba', 'lfm2'].includes(architecture)
  const contract = pick(random, ['exact', 'splice', 'splice', 'blend', 'auto'] as const)
  const setting = {
    cells: pick(random, [2048, 4096]),
    sequences: linear ? 4 + random.below(4) : pick(random, [8, 24]),
    slots: 2,
    ubatch: pick(random, [64, 512]),
    flashAttention: pick(random, ['on', 'off'] as const),
    keyType: 'f16' as const,
    valueType: 'f16' as const,
    hostBytes: pick(random, [0, 2 ** 28, 2 ** 28]),
    disk: false,
    twin: false,
  }
  const step = (talk: string): StepOp => ({
    ...{ op: 'step', talk, contract, clientEdits: contract, maxTokens: 1 + random.below(4), keep: random.below(4) > 0 },
    ...(random.below(2) === 0 ? { bias: 70 + random.below(180) } : {}),
  })
  const add = (talk: string, words: number): HistoryOp => ({ op: 'add', talk, role: 'user', content: text(random, words) })
  const talks = ['talk-0']
  const kinds = random.below(2) === 0 ? KINDS : KINDS.filter((kind) => kind !== 'again')
  const ops: HistoryOp[] = [
    { op: 'begin', talk: 'talk-0', tenant: 'a' },
    { op: 'add', talk: 'talk-0', role: 'system', content: text(random, 8) },
    ...[0, 1, 2, 3].map(() => add('talk-0', 5 + random.below(40))),
    step('talk-0'),
  ]
  for (let turn = 10; turn > 0; turn--) {
    let talk = pick(random, talks)
    if (random.below(6) === 0) {
      const from = talk
      talks.push((talk = `talk-${talks.length}`))
      ops.push({ op: 'fork', talk, from })
      if (random.below(2) === 0) ops.push({ op: 'other', talk, content: text(random, 1 + random.below(20)) }, step(talk))
    }
    if (random.below(4) === 0) {
      ops.push({ op: 'back', talk, pick: random.below(100) }, step(talk))
      continue
    }
    const edits = Array.from({ length: 1 + random.below(4) }, (): MessageEdit => ({
      ...{ kind: pick(random, kinds), pick: random.below(100), content: text(random, 1 + random.below(12)) },
    }))
    ops.push(...(random.below(3) > 0 ? [add(talk, 5 + random.below(20))] : []), { op: 'rewrite', talk, edits }, step(talk))
  }
  ops.push({ op: 'check' })
  return { seed, ...modelFor(seed, model), setting, contract, ops }
}
