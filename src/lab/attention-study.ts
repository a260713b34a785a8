/**
 * Runs the study of attention on PI-LLM: chooses the prompts and their order, and checks all options before the first prompt. Can also
 * measure attention during an agent's whole turn.
 */
import { freshConversation } from '../runtime/core/ids.js'
import { sculptor } from '../runtime/agents/sculptor.js'
import { MARKERS, massOn, messageSet, overall } from '../runtime/attention/measurement.js'
import { changeOf } from './attention/pairs.js'
import { place, type PlacedSpans } from '../runtime/attention/places.js'
import {
  type EpisodeRecord,
  type EpisodeShare,
  type EpisodeStep,
  type PromptRecord,
  recordName,
  type RecordedOptions,
  type StudyRecord,
} from './attention/records.js'
import { mean } from '../runtime/core/mean.js'
import { KvfoldError } from '../runtime/core/errors.js'
import { length, overlaps } from '../runtime/core/span.js'
import type { AttentionPattern, KeySet } from '../runtime/engine/attention.js'
import { EngineAround, type EngineReply, type EngineRequest, type Generation, generationOf } from '../runtime/engine/engine.js'
import type { LlamaEngine } from '../runtime/engine/llama.js'
import { LONGEST_ANSWER, lookAtPrompt, lookAtValue, type PiLookOptions, type PiPrompt } from './pi-attention.js'
import { piSample, type PiSample, piScore, type PiWords } from './pi-llm.js'

export interface ValueStudyOptions extends PiLookOptions {
  readonly words: PiWords
  /** How many updates every key has in the prompts that are compared folded and complete. */
  readonly n: number
  /** The number of keys. Default: all keys in `words`. */
  readonly keys?: number
  /** The seeds. Each seed makes one prompt. */
  readonly seeds: readonly number[]
  /** The numbers of updates per key on the interference curve, which uses the first CURVE_SEEDS seeds. Default: no curve. */
  readonly updates?: readonly number[]
  /** Whether the study also measures an agent's turn, with the first seed. Default false. */
  readonly episode?: boolean
  /** Holds the finished records and stores new ones. Default: no earlier records, new ones stay in memory. */
  readonly keep?: Keeper
  /**
   * Called before each part of the study that has no record yet, and once after the last part. `next`: the name of the part that starts.
   */
  readonly onProgress?: (done: number, total: number, next: string) => void
}

/** Stores the records of a study; `RunFolder` implements it. */
export interface Keeper {
  readonly records: readonly StudyRecord[]
  has(record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): boolean
  add(record: StudyRecord): void | Promise<void>
}

/** The number of prompts (one per seed) for each point of the interference curve. */
export const CURVE_SEEDS = 5

/**
 * Runs every part of the study that has no record yet. The engine must have been loaded with `attention`; calls on it must not overlap.
 * @returns all records of the requested parts
 * @throws KvfoldError attention/bad-request, context/full or eval/bad-data before the first prompt; attention/unavailable; engine/cancelled
 */
export async function studyValues(options: ValueStudyOptions): Promise<readonly StudyRecord[]> {
  const { keep = inMemory(), onProgress, signal } = options
  const parts = partsOf(options)
  refuse(options, parts)
  for (const [index, part] of parts.entries()) {
    if (keep.has(part)) continue
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    onProgress?.(index, parts.length, recordName(part))
    await keep.add(await recordOf(part, options, keep))
  }
  onProgress?.(parts.length, parts.length, 'done')
  const wanted = new Set(parts.map(recordName))
  return keep.records.filter((record) => wanted.has(recordName(record)))
}

/**
 * Returns the options that the records depend on, besides the model. Records of two runs can be combined if these are equal; seeds and
 * parts may differ.
 */
export function runOptions({ n, keys, words, contracts, blend, mode, layers, heads }: ValueStudyOptions): RecordedOptions {
  return {
    n,
    keys: keys ?? words.keys.length,
    contracts,
    blend: contracts.includes('blend') ? (blend ?? 'default') : null,
    mode,
    placebo: 'made-up words, the hidden updates under unasked keys',
    layers: layers ?? 'all',
    heads: heads ?? 'all',
  }
}

function inMemory(): Keeper {
  const records: StudyRecord[] = []
  return {
    records,
    has: (part) => records.some((record) => recordName(record) === recordName(part)),
    add: (record) => void records.push(record),
  }
}

type StudyPart = Pick<StudyRecord, 'part' | 'n' | 'seed'>

function partsOf({ n, seeds, updates = [], episode = false }: ValueStudyOptions): StudyPart[] {
  const [first] = seeds
  const curve = seeds.slice(0, CURVE_SEEDS)
  const prompts = (of: number, from: readonly number[]) => from.map((seed): StudyPart => ({ part: 'prompt', n: of, seed }))
  return [
    ...prompts(n, seeds),
    ...(first === undefined ? [] : [{ part: 'heat-map', n, seed: first } as const]),
    ...(first === undefined || !episode ? [] : [{ part: 'episode', n, seed: first } as const]),
    ...updates.filter((of) => of !== n).flatMap((of) => prompts(of, curve)),
  ]
}

const sampleOf = ({ n, seed }: StudyPart, { words, keys }: ValueStudyOptions): PiSample =>
  piSample({ words, updates: n, seed, ...(keys === undefined ? {} : { keys }) })

/** Checks the options before any work starts. @throws KvfoldError for every error that can be foreseen */
function refuse(options: ValueStudyOptions, parts: readonly StudyPart[]): void {
  const { engine, contracts, layers, heads, seeds, mode } = options
  const { modelInfo, abilities, info } = engine
  if (seeds.length === 0 || new Set(seeds).size < seeds.length)
    throw new KvfoldError('attention/bad-request', 'A study needs at least one seed, and each seed only once.')
  if (contracts.length === 0) throw new KvfoldError('attention/bad-request', 'A study needs at least one contract for its folds.')
  const missing = contracts.find((contract) => !abilities.contracts.includes(contract))
  if (missing !== undefined)
    throw new KvfoldError('attention/bad-request', `This engine cannot fold under ${missing}: ${abilities.refusal ?? ''}.`)
  refuseBeyond('layer', layers, modelInfo.layers)
  refuseBeyond('head', heads, modelInfo.heads)
  // Prompts with the same number of updates differ by only a few tokens, so one of them is checked.
  const sizes = new Map(parts.map((part) => [part.n, part]))
  for (const [n, part] of sizes) {
    const sample = sampleOf(part, options)
    const answer = { role: 'assistant', content: sample.answer } as const
    const prompt = engine.count([{ role: 'user', content: sample.prompt }, answer], [])
    const needed = prompt + (mode === 'generated' ? LONGEST_ANSWER : 0)
    if (needed > info.context)
      throw new KvfoldError(
        'context/full',
        `A prompt with ${n} updates and its answer need ${needed} tokens, but the context has ${info.context} cells; use fewer updates or keys, or a larger --context.`,
      )
  }
}

/** Refuses indexes of layers or heads that the model does not have. `there`: how many it has. @throws KvfoldError attention/bad-request */
export function refuseBeyond(what: 'layer' | 'head', asked: readonly number[] | undefined, there: number): void {
  const wrong = asked?.find((one) => !Number.isSafeInteger(one) || one < 0 || one >= there)
  if (wrong !== undefined)
    throw new KvfoldError('attention/bad-request', `The model has no ${what} ${wrong}; it has ${there}, from 0 to ${there - 1}.`)
}

async function recordOf({ part, n, seed }: StudyPart, options: ValueStudyOptions, keep: Keeper): Promise<StudyRecord> {
  const prompt: PiPrompt = { n, seed, sample: sampleOf({ part, n, seed }, options) }
  switch (part) {
    case 'prompt':
      return lookAtPrompt(prompt, n === options.n, options)
    case 'episode':
      return watchEpisode(prompt, options)
    case 'heat-map':
      return lookAtValue(prompt, typicalKey(prompt, options, keep), options)
  }
}

/**
 * Returns the key with the median change of attention in its prompt, under the first contract. Returns the first key if no key was
 * measured.
 */
function typicalKey({ n, seed, sample }: PiPrompt, { contracts }: ValueStudyOptions, keep: Keeper): string {
  const record = keep.records.find((one): one is PromptRecord => one.part === 'prompt' && one.n === n && one.seed === seed)
  const pairs = record?.comparisons.find(({ contract }) => contract === contracts[0])?.pairs ?? []
  const changed = pairs.flatMap((pair) => {
    const change = changeOf(pair, 'reading') ?? changeOf(pair, 'value')
    return change === null ? [] : [{ key: pair.key, change }]
  })
  changed.sort((a, b) => a.change - b.change)
  return changed[changed.length >> 1]?.key ?? sample.keys[0]!
}

// Below: attention during an agent's whole turn, from the generated tokens of each step to every message before them.

/** The most tokens that a step may generate. Only a step that goes wrong reaches it. */
const LONGEST_STEP = 512

/**
 * Lets the agent fold and answer by itself, under the first contract, and records each step's attention.
 * @throws KvfoldError engine/cancelled, and the errors of the engine
 */
async function watchEpisode({ n, seed, sample }: PiPrompt, options: PiLookOptions): Promise<EpisodeRecord> {
  const { engine, contracts, blend, signal } = options
  const watched = new WatchedEngine(engine, options)
  const [contract = 'exact'] = contracts
  const generation = {
    sampling: { temperature: 0 },
    maxTokens: LONGEST_STEP,
    contract,
    ...(contract === 'blend' && blend !== undefined ? { blend } : {}),
  }
  const session = sculptor({ engine: watched, id: freshConversation(), prompt: 'pi-llm', generation })
  try {
    const outcome = await session.ask(sample.prompt, signal === undefined ? {} : { signal })
    if (outcome.end === 'cancelled') throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    return {
      part: 'episode',
      n,
      seed,
      steps: watched.steps.map((step, index) => ({ step: index, ...step })),
      right: piScore(sample, outcome.answer).correct,
      asked: sample.keys.length,
    }
  } finally {
    session.forget()
  }
}

/** An engine that also captures attention in every request, from all generated tokens to each message. `steps` collects the results. */
class WatchedEngine extends EngineAround<LlamaEngine> {
  readonly steps: Omit<EpisodeStep, 'step'>[] = []

  constructor(
    engine: LlamaEngine,
    private readonly options: Pick<PiLookOptions, 'layers' | 'heads'>,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    const { engine, options } = this
    const prompt = place(engine.format, request, [])
    const generation = engine.respond({
      ...request,
      attention: {
        queries: { generated: true },
        keys: keysOf(prompt),
        ...(options.layers === undefined ? {} : { layers: options.layers }),
        ...(options.heads === undefined ? {} : { heads: options.heads }),
      },
    })
    return generationOf(async (stream) => {
      const done = await generation.each((event) => {
        stream.push(event)
      })
      if (done.attention !== undefined) this.steps.push(stepOf(done, prompt, done.attention))
      return done
    })
  }
}

function keysOf({ messages, markers }: PlacedSpans): KeySet[] {
  return messages.flatMap(({ index, span }) => {
    const hidden = markers.filter((marker) => overlaps(marker, span))
    return [
      ...(length(span) > 0 ? [{ name: messageSet(index), tokens: [span] }] : []),
      ...(hidden.length > 0 ? [{ name: markersOf(index), tokens: hidden }] : []),
    ]
  })
}

const markersOf = (index: number): string => `${MARKERS} ${index}`

function stepOf({ message }: EngineReply, prompt: PlacedSpans, pattern: AttentionPattern): Omit<EpisodeStep, 'step'> {
  const queries = [...pattern.queries]
  const mass = (key: string): number => {
    const map = massOn(pattern, queries, key)
    return map === null ? 0 : overall(map)
  }
  const shares = prompt.messages.flatMap(({ index, role, span }): EpisodeShare[] =>
    length(span) === 0
      ? []
      : [{ message: index, role, tokens: length(span), mass: mass(messageSet(index)), markers: mass(markersOf(index)) }],
  )
  const average = (of: Float32Array): number => (of.length === 0 ? 0 : mean(of))
  return {
    calls: (message.toolCalls ?? []).map(({ name }) => name),
    text: message.content.slice(0, 200),
    queries: queries.length,
    shown: prompt.tokens.length,
    shares,
    own: average(pattern.total.data) - shares.reduce((sum, share) => sum + share.mass, 0),
    sink: average(pattern.sink.data),
  }
}
