/** Owns the running account of one step, from its plan to its ledger entry. */
import { invariant } from '../core/errors.js'
import { length } from '../core/span.js'
import { messageCosts, withGenerated } from './cost.js'
import type { Lane } from './holding.js'
import type { LedgerEntry, ReuseSource } from './ledger.js'
import type { Plan } from './plan.js'
import type { Shown } from './shown.js'

/** Which of a step's tokens: the prompt's, or those the model generated. */
export type StepPart = 'prompt' | 'generated'

/** A step under way. Made by KvCache.begin and ended by KvCache.finish; only KvCache writes to it. */
export class Step {
  /** Set by `end`. */
  ended = false
  /** Cells freed by dropping parked versions and idle lanes for this step. */
  evicted = 0
  readonly #submitted = { prompt: 0, generated: 0 }
  readonly #milliseconds = { cache: 0, prefill: 0, decode: 0 }

  /** @param parked tokens of the superseded tail that were really parked */
  constructor(
    readonly lane: Lane,
    readonly plan: Plan,
    readonly kind: 'answer' | 'summary',
    private readonly parked: number,
  ) {}

  /** Tokens entered the cache. */
  submit(part: StepPart, count: number): void {
    this.#submitted[part] += count
  }

  /** Wall time spent for this step, in milliseconds. */
  spend(on: keyof LedgerEntry['milliseconds'], milliseconds: number): void {
    this.#milliseconds[on] += milliseconds
  }

  /** The tokens the step showed, generated ones included. */
  get shown(): Shown {
    return withGenerated(this.plan.shown, this.lane.tokens)
  }

  /**
   * The step's ledger entry.
   * @param number place in the conversation's ledger
   * @param before what the previous step showed
   */
  entry(number: number, outcome: 'done' | 'cancelled', pending: number, before: Shown | null): LedgerEntry {
    const { prompt, generated } = this.#submitted
    const submitted = prompt + generated
    const common = {
      step: number,
      contract: 'exact',
      submitted,
      pending,
      parked: this.parked,
      evicted: this.evicted,
      milliseconds: { ...this.#milliseconds },
    } as const
    if (outcome === 'cancelled') {
      const sources = { own: 0, parked: 0, shared: 0 }
      return {
        ...common,
        kind: 'cancelled',
        messages: [],
        shown: 0,
        reused: 0,
        recomputed: 0,
        fresh: 0,
        side: submitted,
        sources,
      }
    }
    const { again, compute, shown } = this.plan
    const asked = shown.tokens.length
    invariant(
      prompt === length(compute),
      `the step of ${this.lane.conversation} is done after ${prompt} of ${length(compute)} prompt tokens`,
    )
    const reused = compute.start + again
    const messages = messageCosts(this.shown, reused, asked, before)
    const recomputed = messages.reduce((sum, cost) => sum + cost.recomputed, 0)
    const fresh = messages.reduce((sum, cost) => sum + cost.fresh, 0)
    return {
      ...common,
      kind: this.kind,
      messages,
      shown: asked + generated,
      reused,
      recomputed,
      fresh,
      side: again,
      sources: this.#sources(),
    }
  }

  /** A last token that is decoded again counts for whoever held it. */
  #sources(): Record<ReuseSource, number> {
    const { keep, borrow, again } = this.plan
    const sources = { own: keep, parked: 0, shared: 0 }
    if (borrow !== null) sources[borrow.source] = length(borrow.span)
    sources[borrow?.source ?? 'own'] += again
    return sources
  }
}
