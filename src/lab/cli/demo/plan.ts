/** Decides what the demo reads: how long the stream is, and how much of it stays in context. */
import type { Contract } from '../../../runtime/core/contract.js'
import { definedFields } from '../../../runtime/core/json.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { piSample, type PiWords } from '../../pi-llm.js'
import type { ReaderPlan } from './reader.js'

/** Tokens of the stream for the built-in model. It reads them in less than a minute on one core. */
export const TOKENS = 60_000
/** The context of other models, so that a stream several times as long is read in a minute. */
export const CONTEXT = 2048
/** Length of the stream for them, in contexts; and the least of it that a slow model reads. */
export const TIMES = 3.75
const LEAST_TIMES = 2.5
/** Seconds that other models may read. */
const SECONDS = 45
/** Keys for them; their answers are longer than the built-in model's. */
const KEYS = 12
/** The most tokens of the open parts: what stays in context costs time at every new token. */
const OPEN = 5000
/** Parts that are open together. */
const PARTS = 3
/** Tokens of an update, at least; and the updates of a stream, at most: our own words have no more values. */
const UPDATE = 3
const UPDATES = 18_400

export interface PlanOptions {
  readonly words: PiWords
  readonly seed: number
  readonly contract: Contract
  /** Whether the engine has the built-in model, which was trained on such streams and is fast. */
  readonly isBuiltin: boolean
  /** Length of the stream. Default: by the model. */
  readonly tokens?: number
}

/** @throws KvfoldError eval/bad-data when there are too few words for a stream this long */
export function readerPlan(
  { info, model }: LlamaEngine,
  { words, seed, contract, isBuiltin, ...given }: PlanOptions,
): ReaderPlan {
  const tokens = given.tokens ?? (isBuiltin ? TOKENS : Math.round(TIMES * info.context))
  const openTokens = Math.min(OPEN, Math.floor(info.context / 2))
  const count = isBuiltin ? words.keys.length : Math.min(KEYS, words.keys.length)
  // More updates than needed: the stream is cut to its length in tokens.
  const each = Math.max(2, Math.ceil(Math.min(tokens / UPDATE, UPDATES) / count))
  const { keys, updates, prompt } = piSample({ words, keys: count, updates: each, seed })
  const average = model.tokenize(prompt).length / updates.length
  return {
    keys,
    updates: updates.slice(0, Math.max(count, Math.round(tokens / average))),
    // A little less, so that as many parts fit whatever their exact lengths are.
    partTokens: Math.floor(openTokens / (PARTS + 0.2)),
    openTokens,
    contract,
    leastTokens: LEAST_TIMES * info.context,
    ...definedFields({ seconds: isBuiltin ? undefined : SECONDS }),
  }
}
