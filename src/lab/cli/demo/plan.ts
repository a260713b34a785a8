/** Decides what the demo reads: how long the stream of updates is, and how much of it stays in context. */
import type { Contract } from '../../../runtime/core/contract.js'
import { definedFields } from '../../../runtime/core/json.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { piSample, type PiWords } from '../../pi-llm.js'
import type { ReaderPlan } from './reader.js'

/** Tokens of the stream for the built-in model, which reads them in less than a minute on one core. */
export const TOKENS = 60_000
/** Context in tokens for other models. They can read a stream several times as long within a minute. */
export const CONTEXT = 2048
/** Length of the stream for other models, as a multiple of the context. `LEAST_TIMES`: the shortest stream that a slow model reads. */
export const TIMES = 3.75
const LEAST_TIMES = 2.5
/** The most seconds that another model may read. */
const SECONDS = 45
/** The most keys for other models. They get fewer keys, because their answers have more tokens than those of the built-in model. */
const KEYS = 12
/** The most tokens of chunks that are not folded. Each generated token takes longer the more text is in context. */
const OPEN = 5000
/** How many chunks are unfolded at the same time. */
const PARTS = 3
/** `UPDATE`: the fewest tokens of one update. `UPDATES`: the most updates of a stream; our word lists have no more values. */
const UPDATE = 3
const UPDATES = 18_400

export interface PlanOptions {
  readonly words: PiWords
  readonly seed: number
  readonly contract: Contract
  /** Whether the engine has the built-in model, which was trained on such streams and is fast. */
  readonly isBuiltin: boolean
  /** Tokens of the stream. Default: TOKENS for the built-in model, TIMES contexts for other models. */
  readonly tokens?: number
}

/** Makes the plan of the demo. @throws KvfoldError eval/bad-data when there are too few words for a stream this long */
export function readerPlan(
  { info, model }: LlamaEngine,
  { words, seed, contract, isBuiltin, ...given }: PlanOptions,
): ReaderPlan {
  const tokens = given.tokens ?? (isBuiltin ? TOKENS : Math.round(TIMES * info.context))
  const openTokens = Math.min(OPEN, Math.floor(info.context / 2))
  const count = isBuiltin ? words.keys.length : Math.min(KEYS, words.keys.length)
  // Draws more updates than needed. `updates` below keeps as many as the length in tokens allows.
  const each = Math.max(2, Math.ceil(Math.min(tokens / UPDATE, UPDATES) / count))
  const { keys, updates, prompt } = piSample({ words, keys: count, updates: each, seed })
  const average = model.tokenize(prompt).length / updates.length
  return {
    keys,
    updates: updates.slice(0, Math.max(count, Math.round(tokens / average))),
    // Chunks are a little shorter than a third of the room, because their exact lengths vary.
    partTokens: Math.floor(openTokens / (PARTS + 0.2)),
    openTokens,
    contract,
    leastTokens: LEAST_TIMES * info.context,
    ...definedFields({ seconds: isBuiltin ? undefined : SECONDS }),
  }
}
