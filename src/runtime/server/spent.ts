/** Counts the tokens that an ask costs its key: computed and generated ones. */
import type { LedgerEntry } from '../kv/ledger.js'
import type { AnyAnswer, AskEvent, Usage } from './ask.js'

/**
 * Counts by the events: the tokens beside the answer's own steps, and all tokens of asks that end without an answer, because their client
 * left, their time was over or they failed.
 */
export class Spending {
  #tokens = 0
  #aside = 0
  /** Tokens of the current step's prompt that are to be computed, and those that are. */
  #planned = 0
  #computed = 0

  get tokens(): number {
    return this.#tokens + this.#aside
  }

  /** The tokens that the answer's own timing does not count: those of questions aside, notes and summaries. */
  get aside(): number {
    return this.#aside
  }

  on(event: AskEvent): void {
    if (event.type === 'plan') {
      this.#planned = event.compute
      this.#computed = 0
    } else if (event.type === 'progress') this.#compute(event.done)
    else if (event.type === 'compaction') this.#tokens += tokensIn(event.usage)
    else if (event.type === 'aside') this.#aside += spentIn(event.entries)
    else if (event.type === 'tokens') {
      this.#compute(this.#planned)
      this.#tokens += event.tokens.length
    }
  }

  #compute(until: number): void {
    this.#tokens += Math.max(0, until - this.#computed)
    this.#computed = Math.max(this.#computed, until)
  }
}

/** Returns the tokens that were computed and generated for an answer, with those of a compaction before it. */
export function spentOn(answer: AnyAnswer): number {
  const { compacted } = answer
  const { prefillTokens, generatedTokens } = answer.timing
  // The times of a paused answer are those of its summary.
  if (compacted === undefined || compacted.paused) return prefillTokens + generatedTokens
  return prefillTokens + generatedTokens + tokensIn(compacted.usage)
}

/** Returns the tokens that were computed and generated in these steps. */
export const spentIn = (entries: readonly LedgerEntry[]): number =>
  entries.reduce((sum, { submitted, pending }) => sum + submitted + pending, 0)

const tokensIn = ({ promptTokens, cachedTokens, completionTokens }: Omit<Usage, 'reasoningTokens'>): number =>
  promptTokens - cachedTokens + completionTokens
