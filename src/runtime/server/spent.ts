/** Counts what a request costs its tenant's rate limit: the tokens computed and generated. */
import type { LedgerEntry } from '../kv/ledger.js'
import type { AnyAnswer, AskEvent, Usage } from './ask.js'

/**
 * Counts a request's tokens from its events. `tokens`: all so far, for requests that end without an answer. `aside`: only those of steps
 * beside the answer's own.
 */
export class Spending {
  #tokens = 0
  #aside = 0
  /** `#planned`: tokens of the current step's prompt that must be computed. `#computed`: how many of them are. */
  #planned = 0
  #computed = 0

  get tokens(): number {
    return this.#tokens + this.#aside
  }

  /** Tokens of questions aside, notes and summaries, which `Answer.timing` does not count. */
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

/** Returns the tokens computed and generated for an answer, those of its compaction included. */
export function spentOn(answer: AnyAnswer): number {
  const { compacted } = answer
  const { prefillTokens, generatedTokens } = answer.timing
  // A paused answer consists of the summary, so its timing has the summary's tokens already.
  if (compacted === undefined || compacted.paused) return prefillTokens + generatedTokens
  return prefillTokens + generatedTokens + tokensIn(compacted.usage)
}

/** Returns the tokens computed and generated in these steps. */
export const spentIn = (entries: readonly LedgerEntry[]): number =>
  entries.reduce((sum, { submitted, pending }) => sum + submitted + pending, 0)

const tokensIn = ({ promptTokens, cachedTokens, completionTokens }: Omit<Usage, 'reasoningTokens'>): number =>
  promptTokens - cachedTokens + completionTokens
