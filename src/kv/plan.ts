/** Owns the decision how a lane comes to hold what a step shows: what stays, what is borrowed, what is computed. */
import { invariant } from '../core/errors.js'
import { span, type Span } from '../core/span.js'
import type { Lane, Version } from './holding.js'
import type { ReuseSource } from './ledger.js'
import { commonPrefix, longestPrefix } from './prefix.js'
import type { Shown } from './shown.js'

/**
 * keep + |borrow.span| + |compute| = shown tokens, in that order. Reused tokens: compute.start + again. A plan holds until the cache
 * changes: make it and begin it in one go.
 */
export interface Plan {
  readonly shown: Shown
  /** Tokens at the beginning that the lane holds already. */
  readonly keep: number
  /** Positions [keep, ...) whose cells another sequence holds: an earlier version of this conversation, or another conversation's. */
  readonly borrow: { readonly from: Version | Lane; readonly source: Exclude<ReuseSource, 'own'>; readonly span: Span } | null
  /** Positions to decode; never empty, because a step needs the logits of its last token. */
  readonly compute: Span
  /** 1: everything shown was held already, and `compute` is the last token, decoded once more for its logits. */
  readonly again: 0 | 1
  /** Tokens of the lane that are no longer shown and become a parked version, if a sequence id can be had. */
  readonly park: number
}

/**
 * Plans `shown` for `lane`. The longest beginning held by anyone wins; between equals the lane itself, then its earlier versions, then
 * others in the order given. Pure.
 *
 * @param parked earlier versions of the lane's conversation
 * @param others lanes and versions of other conversations
 */
export function planStep(lane: Lane, shown: Shown, parked: readonly Version[], others: readonly (Version | Lane)[]): Plan {
  const { tokens } = shown
  const last = tokens.length - 1
  invariant(last >= 0, `conversation ${lane.conversation} was asked to show no tokens at all`)

  const own = commonPrefix(lane.tokens, tokens)
  const keep = Math.min(own, last)
  const found = longestPrefix(tokens, [...parked, ...others])
  // The last token is decoded in any case, so a lender that adds nothing before it adds nothing.
  const lender = found !== null && Math.min(found.matched, last) > keep ? found : null
  const start = lender === null ? keep : Math.min(lender.matched, last)

  const superseded = lane.held - own
  const covered = parked.some((version) => version.held >= lane.held && commonPrefix(version.tokens, lane.tokens) === lane.held)
  return {
    shown,
    keep,
    borrow:
      lender === null
        ? null
        : {
            from: lender.holder,
            source: lender.holder.conversation === lane.conversation ? 'parked' : 'shared',
            span: span(keep, start),
          },
    compute: span(start, tokens.length),
    again: (lender?.matched ?? own) === tokens.length ? 1 : 0,
    park: superseded > 0 && !covered ? superseded : 0,
  }
}
