/** The ledger: what every step cost, per message, from counts the cache made while working; nobody counts twice. */

/** `exact`: the cache equals a fresh prefill of the shown tokens (kv-mechanics.md, "The names of the contracts"). */
export type Contract = 'exact'

/** Where reused cells came from: the conversation's own sequence, one of its earlier versions, or another conversation. */
export type ReuseSource = 'own' | 'parked' | 'shared'

/** One message's share of a step, in tokens. shown = reused + recomputed + fresh. */
export interface MessageCost {
  readonly index: number
  readonly role: string
  readonly shown: number
  /** Already in the cache, not computed in this step. */
  readonly reused: number
  /** Shown by the previous step of this conversation too, but computed again in this one. */
  readonly recomputed: number
  /** Not shown by the previous step: new text, markers, generated tokens. */
  readonly fresh: number
}

/**
 * One step of a conversation: one prompt decoded and one answer generated.
 * reused + recomputed + fresh = shown; recomputed + fresh + side = submitted (the addon's own counter).
 */
export interface LedgerEntry {
  /** Place in the conversation's ledger, from 0. */
  readonly step: number
  readonly kind: 'answer' | 'summary' | 'cancelled'
  readonly contract: Contract
  readonly messages: readonly MessageCost[]
  /** Tokens the sequence held at the end of the step: prompt and generated ones that were submitted. */
  readonly shown: number
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  /** Submitted without being shown anew: the one token a full hit decodes again for its logits, work of a cancelled step. */
  readonly side: number
  /** Tokens submitted to decode on behalf of this step, as the addon counted them. */
  readonly submitted: number
  /** Sampled but not yet submitted (the last token of an answer). */
  readonly pending: number
  /** Reused tokens by source; sums to `reused`. */
  readonly sources: Readonly<Record<ReuseSource, number>>
  /** Tokens of this conversation's superseded tail that were parked when this step began. */
  readonly parked: number
  /** Tokens lost with parked versions and idle lanes that were dropped to make room for this step; what others still hold is not lost. */
  readonly evicted: number
  readonly milliseconds: { readonly cache: number; readonly prefill: number; readonly decode: number }
}
