/** The account of one step in progress, from its plan to its ledger entry. */
import { invariant } from '../core/errors.js'
import { length, span, type Span } from '../core/span.js'
import { type LedgerEntry, messageCosts, type ReuseSource, type StepKind, withGenerated } from './ledger.js'
import type { Sequence } from './sequence.js'
import type { Part } from './plan/parts.js'
import { computedIn, type Plan, replacedIn, reusedIn, turnedIn } from './plan/plan.js'
import { commonPrefix, type Prompt, withoutContracts } from './prompt.js'

/** Which tokens of a step: those of its prompt, or those that it generates. */
export type StepPart = 'prompt' | 'generated'

/** The sequence and the position where the next tokens go. */
export interface WritePosition {
  readonly seq: number
  /** Index of the first of these tokens among all shown tokens, generated ones included. The live sequence holds all tokens before it. */
  readonly place: number
  readonly position: number
}

/**
 * Prompt tokens that can be decoded next, in one go. `last`: they complete the prompt, and the engine needs the logits of their last token.
 */
export interface Chunk extends WritePosition {
  readonly tokens: Int32Array
  readonly last: boolean
}

type Compute = Part & { readonly kind: 'compute' }

/** A step in progress. A cache's `begin` makes it and its `finish` ends it; only the cache writes to it. */
export class Step {
  /** Set by the cache when it finishes the step. */
  ended = false
  /** Whether the entry's `plain` was counted against an earlier prompt. Set by the cache when it finishes the step. */
  compared = false
  /** Number of cells that were freed for this step by dropping parked and idle sequences. */
  evicted = 0
  /**
   * Like `evicted`, for cells that were moved to a lower tier. Includes cells of the conversation that were moved there between its steps.
   */
  moved = 0
  /** Milliseconds in which cells were copied; see LedgerEntry.copying. */
  copying = 0
  /** Predicted milliseconds until the first token can be sampled; null without a cost model. */
  predicted: number | null = null
  /** Why tokens were computed that were shown or held before; see LedgerEntry.recomputeReason. */
  recomputeReason: string | null = null
  /** The scratch sequence in which tokens for the middle of the live sequence are computed; null if there are none (left). */
  scratch: Sequence | null = null
  /** Tokens that the conversation no longer shows and that were parked for this step. */
  parked = 0
  readonly #passes: readonly Compute[]
  readonly #tiers: LedgerEntry['tiers']
  readonly #replaced: number
  /** Index in `#passes` of the part that is being computed, and how many of its tokens are in the cache. */
  #pass = 0
  #done = 0
  readonly #submitted = { prompt: 0, generated: 0 }
  readonly #drafts = { accepted: 0, rejected: 0 }
  readonly #milliseconds = { cache: 0, prefill: 0, decode: 0 }

  constructor(
    readonly sequence: Sequence,
    readonly plan: Plan,
    readonly kind: StepKind,
  ) {
    this.#passes = plan.parts.filter((part) => part.kind === 'compute')
    this.#tiers = tiersOf(plan.parts)
    this.#replaced = replacedIn(sequence, plan)
  }

  /** The part of the plan that is computed next, without its tokens that are in the cache; null when the whole prompt is in the cache. */
  get due(): Compute | null {
    const pass = this.#passes[this.#pass]
    if (pass === undefined) return null
    return { ...pass, span: span(pass.span.start + this.#done, pass.span.end), position: pass.position + this.#done }
  }

  /** Whether the part that `due` returns lies in the middle of the live sequence. Only the last computed part reaches the prompt's end. */
  get inMiddle(): boolean {
    return this.#pass < this.#passes.length - 1
  }

  /**
   * Returns the source ids of tokens that are about to be recorded.
   * @throws KvfoldError internal/invariant for prompt tokens that are not the next ones, and for generated ones before the prompt is
   * complete
   */
  keysOf(tokens: Int32Array, part: StepPart): Int32Array {
    const { sequence, due } = this
    invariant(sequence.running && !this.ended, `tokens were decoded for conversation ${sequence.conversation} outside of a step`)
    if (part === 'generated') {
      invariant(due === null, `tokens were generated for conversation ${sequence.conversation} before its prompt was complete`)
      return sequence.keysAfter(tokens.length)
    }
    const { start } = due?.span ?? span(0, 0)
    const next = this.plan.prompt.tokens.subarray(start, start + tokens.length)
    invariant(
      due !== null && tokens.length <= length(due.span) && commonPrefix(next, tokens) === tokens.length,
      `the tokens decoded for conversation ${sequence.conversation} are not the next ones of its prompt`,
    )
    return this.plan.sourceIds.subarray(start, start + tokens.length)
  }

  /** The prompt with which the conversation's next step is compared: all shown tokens, without the edits' contracts. */
  get left(): Prompt {
    const { sequence, plan } = this
    const origin = { base: sequence.unedited, holes: plan.prompt.origin?.holes ?? [] }
    return withoutContracts({ messages: this.prompt.messages, tokens: sequence.tokens.slice(), origin })
  }

  /** Counts tokens of the step that a decode added to the cache. */
  submit(part: StepPart, count: number): void {
    this.#submitted[part] += count
    if (part === 'generated') return
    this.#done += count
    if (this.#done < length(this.#passes[this.#pass]!.span)) return
    this.#pass++
    this.#done = 0
  }

  /** Number of generated tokens in the cache, without rejected drafts. */
  get generated(): number {
    return this.#submitted.generated
  }

  /** Counts how many of the submitted draft tokens the answer keeps, and how many were removed from the cache again. */
  drafted(accepted: number, rejected: number): void {
    this.#drafts.accepted += accepted
    this.#drafts.rejected += rejected
    this.#submitted.generated -= rejected
  }

  /** Adds wall time spent for this step, in milliseconds. */
  spend(on: keyof LedgerEntry['milliseconds'], milliseconds: number): void {
    this.#milliseconds[on] += milliseconds
  }

  /** The prompt of the step, with the generated tokens at its end. */
  get prompt(): Prompt {
    return withGenerated(this.plan.prompt, this.sequence.tokens)
  }

  /**
   * Makes the step's ledger entry.
   * @param number index of the entry in the conversation's ledger, from 0
   * @param pending number of tokens that were sampled but not submitted
   * @param before the prompt of the previous step
   * @param inherited for a first step, the prompt of the conversation that this one was forked from
   */
  entry(
    number: number,
    outcome: 'done' | 'cancelled',
    pending: number,
    before: Prompt | null,
    inherited: Prompt | null = null,
  ): LedgerEntry {
    const { prompt: prefilled, generated } = this.#submitted
    const { accepted, rejected } = this.#drafts
    const submitted = prefilled + generated + rejected
    const { contract, fallback, redecoded, parts, prompt } = this.plan
    const common = {
      step: number,
      contract,
      fallback,
      recomputeReason: this.recomputeReason,
      submitted,
      ...(accepted + rejected === 0 ? {} : { drafted: accepted + rejected, accepted }),
      pending,
      parked: this.parked,
      evicted: this.evicted,
      moved: this.moved,
      tiers: this.#tiers,
      turned: turnedIn(this.plan),
      replaced: this.#replaced,
      milliseconds: { ...this.#milliseconds },
      copying: this.copying,
      predicted: this.predicted,
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
        approximate: 0,
        positions: this.sequence.next,
        side: submitted,
        sources,
      }
    }
    const asked = prompt.tokens.length
    const expected = computedIn(this.plan)
    invariant(
      prefilled === expected,
      `the step of conversation ${this.sequence.conversation} ended after ${prefilled} of ${expected} prompt tokens`,
    )
    const computed = this.#passes.map((pass): Span => pass.span)
    if (redecoded === 1) computed[computed.length - 1] = span(computed.at(-1)!.start, asked - 1)
    const messages = messageCosts(this.prompt, computed, asked, before, this.sequence.exact)
    const sum = (of: 'recomputed' | 'fresh' | 'approximate') => messages.reduce((total, cost) => total + cost[of], 0)
    const recomputed = sum('recomputed')
    const last = before ?? inherited
    const plain = last === null ? prefilled : Math.max(1, asked - commonPrefix(last.tokens, prompt.tokens))
    const changed = recomputed > 0 ? `${recomputed} tokens: text before them changed` : null
    return {
      ...common,
      kind: this.kind,
      messages,
      shown: asked + generated,
      reused: reusedIn(this.plan),
      recomputed,
      recomputeReason: this.recomputeReason ?? changed,
      fresh: sum('fresh'),
      approximate: sum('approximate'),
      positions: this.sequence.next,
      side: redecoded + rejected,
      plain: plain + generated,
      sources: sourcesOf(parts, redecoded),
    }
  }
}

function tiersOf(parts: readonly Part[]): LedgerEntry['tiers'] {
  const all = { host: 0, disk: 0, shared: 0 }
  for (const part of parts)
    if ((part.kind === 'borrow' || part.kind === 'turn') && part.from.tier !== 'device') all[part.from.tier] += length(part.span)
  return all.shared > 0 ? all : { host: all.host, disk: all.disk }
}

/** Counts reused tokens by source. A last token that is decoded again counts for the source of the part before it. */
function sourcesOf(parts: readonly Part[], redecoded: 0 | 1): Record<ReuseSource, number> {
  const sources = { own: 0, parked: 0, shared: 0 }
  let last: ReuseSource = 'own'
  for (const part of parts) {
    if (part.kind === 'compute') continue
    last = part.kind === 'keep' ? 'own' : part.source
    sources[last] += length(part.span)
  }
  sources[last] += redecoded
  return sources
}
