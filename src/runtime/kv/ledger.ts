/** The ledger: what every step cost, per message, from counts the cache made while working; nobody counts twice. */
import type { Contract } from '../core/contract.js'
import { span, type Span } from '../core/span.js'
import { commonPrefix, commonSuffix, type Prompt, type PromptMessage } from './prompt.js'
import type { Tier } from './sequence.js'

/** What a step is for: an answer, a summary, or only to have the same tokens shown by exact cells. */
export type StepKind = 'answer' | 'summary' | 'refresh'

/** Where reused cells came from: the conversation's own sequence, what it had parked, or another conversation. */
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
  /**
   * Shown tokens whose cells are not what a fresh prefill would make them, because they were computed beside text that is hidden now, or
   * while text that is shown now was hidden. Those after them count, too: they saw them.
   */
  readonly approximate: number
}

/**
 * One step of a conversation: one prompt decoded and one answer generated.
 * reused + recomputed + fresh = shown; recomputed + fresh + side = submitted (the addon's own counter).
 */
export interface LedgerEntry {
  /** Place in the conversation's ledger, from 0. */
  readonly step: number
  readonly kind: StepKind | 'cancelled'
  /** What the step kept to. */
  readonly contract: Contract
  /** Why that is not what was asked for; null when it is. */
  readonly fallback: string | null
  /**
   * Why tokens were computed that the conversation had shown before or that some tier held: "<tokens> tokens: <reason>", one reason after
   * another; null when there were none. A changed list of tools, or a template that shows earlier messages differently, comes first and may be
   * what the others come of. New text, markers, and a last token that is decoded again need no reason. Absent in entries of
   * earlier versions and of engines that do not say.
   */
  readonly recomputeReason?: string | null
  readonly messages: readonly MessageCost[]
  /** Tokens the sequence held at the end of the step: prompt and generated ones that were submitted. */
  readonly shown: number
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  /** See MessageCost; 0 under `exact`. */
  readonly approximate: number
  /** Positions used up at the end of the step; `shown` cells are used, the rest are gaps where text is hidden. */
  readonly positions: number
  /** Submitted without being shown anew: the one token a full hit decodes again for its logits, work of a cancelled step. */
  readonly side: number
  /** Tokens submitted to decode on behalf of this step, as the addon counted them. */
  readonly submitted: number
  /**
   * Tokens that a plain prefix cache would have submitted for the same step: what was generated, and of the prompt what comes after its common beginning
   * with all that was shown before, by this conversation or the one that it was forked from; for the first step of any what was submitted.
   * Absent in entries of earlier versions, of cancelled steps and of engines that do not say.
   */
  readonly plain?: number
  /** Sampled but not yet submitted (the last token of an answer). */
  readonly pending: number
  /** Reused tokens by source; sums to `reused`. */
  readonly sources: Readonly<Record<ReuseSource, number>>
  /** Reused tokens that were not on the device and were brought there, by tier; `shared` is absent where it is 0. */
  readonly tiers: Readonly<Record<Exclude<Tier, 'device' | 'shared'>, number>> & { readonly shared?: number }
  /**
   * Reused tokens of which copies were turned to other positions, because they could not stay or to close gaps: approximate. Absent in entries of
   * earlier versions and of engines that have no positions.
   */
  readonly turned?: number
  /**
   * Reused tokens that the conversation showed before, behind the same text and under the same edits, by other cells than now, neither being exact: no
   * tier holds those any more, or they were moved. A restore for which this is 0 shows the very cells from before the edit. Absent in entries of
   * earlier versions and of engines that have no positions.
   */
  readonly replaced?: number
  /** Tokens that the conversation no longer showed and that were parked when this step began. */
  readonly parked: number
  /** Tokens lost with parked versions and idle live sequences that were dropped to make room for this step; what others still hold is not lost. */
  readonly evicted: number
  /** The same, moved to a lower tier instead of lost; and what of this conversation was moved there since its last step, while nothing ran. */
  readonly moved: number
  readonly milliseconds: { readonly cache: number; readonly prefill: number; readonly decode: number }
  /** What was expected of cache and prefill before they began; null where the machine was not calibrated. */
  readonly predicted: number | null
  /**
   * Where another server computed the step: its name, the tokens of the prompt that we expected it to have (the beginning that the conversation's
   * last step there left), and those that it said it had; null: it does not say. Absent in entries of engines of our own and of earlier versions.
   */
  readonly engine?: { readonly name: string; readonly expected: number; readonly reported: number | null }
}

/** The entry with what the cache cannot know: that other tokens stand for what was shown before, and why. */
export function explained(entry: LedgerEntry, rewrite: { readonly reason: string } | null): LedgerEntry {
  const { recomputed, recomputeReason } = entry
  if (rewrite === null || recomputed === 0) return entry
  const first = `${recomputed} tokens: ${rewrite.reason}`
  return { ...entry, recomputeReason: recomputeReason == null ? first : `${first}; ${recomputeReason}` }
}

// The split of a step's tokens among its messages: reused, recomputed, fresh.

/** The same tokens with generated ones added to the last message, which is the one being generated. */
export function withGenerated({ messages }: Prompt, tokens: Int32Array): Prompt {
  return {
    tokens,
    messages: messages.map((message, at) =>
      at === messages.length - 1 ? { ...message, span: span(message.span.start, tokens.length) } : message,
    ),
  }
}

/**
 * One cost per message of `now`, generated tokens included.
 *
 * Of the tokens that were computed, those the previous step showed in the same message count as recomputed: the message's beginning and
 * its end as far as they are equal in both. What lies between is fresh; so text that stayed between two edits of one message counts as
 * fresh, and `recomputed` errs on the low side there. Generated tokens are always fresh.
 *
 * @param computed stretches of the prompt that were computed; a last token decoded again counts as not computed
 * @param prompt tokens that were asked for; the rest of `now` was generated
 * @param before the previous step of this conversation, null for the first
 * @param exact tokens at the beginning that are what a fresh prefill would make them
 */
export function messageCosts(
  now: Prompt,
  computed: readonly Span[],
  prompt: number,
  before: Prompt | null,
  exact: number,
): MessageCost[] {
  const earlier = new Map<number, PromptMessage>(before?.messages.map((message) => [message.index, message]))
  const within = (from: number, to: number) =>
    computed.reduce((sum, { start, end }) => sum + Math.max(0, Math.min(to, end) - Math.max(from, start)), 0)
  return now.messages.map(({ index, role, span: { start, end } }) => {
    const tokens = now.tokens.subarray(start, end)
    const match = earlier.get(index)
    const old = match === undefined || before === null ? null : before.tokens.subarray(match.span.start, match.span.end)
    const head = old === null ? 0 : commonPrefix(old, tokens)
    const tail = old === null ? 0 : commonSuffix(old, tokens, head)

    const recomputed = within(start, Math.min(prompt, start + head)) + within(end - tail, Math.min(prompt, end))
    const reused = Math.max(0, Math.min(prompt, end) - start) - within(start, Math.min(prompt, end))
    return {
      index,
      role,
      shown: end - start,
      reused,
      recomputed,
      fresh: end - start - reused - recomputed,
      approximate: Math.max(0, end - Math.max(start, exact)),
    }
  })
}
