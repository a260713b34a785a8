/** The ledger: the cost of every step, per message. The cache counts while it works; no other code counts again. */
import type { Contract } from '../core/contract.js'
import { span, type Span } from '../core/span.js'
import { commonPrefix, commonSuffix, type Prompt, type PromptMessage } from './prompt.js'
import type { Tier } from './sequence.js'

/** The purpose of a step. `refresh`: it generates nothing, and only replaces approximate cells by exact ones. */
export type StepKind = 'answer' | 'summary' | 'refresh'

/** Where reused cells came from: the conversation's live sequence, a version that it had parked, or another conversation. */
export type ReuseSource = 'own' | 'parked' | 'shared'

/** One message's share of a step, in tokens. shown = reused + recomputed + fresh. */
export interface MessageCost {
  readonly index: number
  readonly role: string
  readonly shown: number
  /** Tokens already in the cache, not computed in this step. */
  readonly reused: number
  /** Tokens that the conversation's previous step showed, too, but that were computed again in this step. */
  readonly recomputed: number
  /** Tokens that the previous step did not show: new text, markers, generated tokens. */
  readonly fresh: number
  /**
   * Shown tokens whose cells differ from a fresh prefill's. The first of them saw text that is hidden in this step, or did not see text
   * that is shown. All tokens after it count, too, because they saw it.
   */
  readonly approximate: number
}

/**
 * One step of a conversation: one prompt decoded and one answer generated.
 * reused + recomputed + fresh = shown; recomputed + fresh + side = submitted (the addon's own counter).
 */
export interface LedgerEntry {
  /** Index in the conversation's ledger, from 0. */
  readonly step: number
  readonly kind: StepKind | 'cancelled'
  /** The contract that the step kept. */
  readonly contract: Contract
  /** Why `contract` differs from the one that was asked for; null when it does not. */
  readonly fallback: string | null
  /**
   * Why tokens were computed that the conversation had shown before or that some tier held: "<tokens> tokens: <reason>", one reason after
   * another. Null when there were no such tokens. A changed list of tools, or a template that shows earlier messages differently, comes
   * first and may have caused the other reasons. New text, markers, and a last token that is decoded again need no reason. Absent in
   * entries of earlier versions and of engines that do not report it.
   */
  readonly recomputeReason?: string | null
  readonly messages: readonly MessageCost[]
  /** Tokens that the sequence held at the end of the step: prompt tokens, and generated ones that were submitted. */
  readonly shown: number
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  /** Shown tokens whose cells are approximate (MessageCost.approximate); 0 under `exact`. */
  readonly approximate: number
  /** Number of positions used up at the end of the step. `shown` of them have cells; the rest are gaps where text is hidden. */
  readonly positions: number
  /**
   * Tokens that were submitted but not newly shown. They are a prompt's last token that is decoded again for its logits, rejected drafts,
   * tokens that were computed before the prompt had to wait for cells, or all tokens of a cancelled step.
   */
  readonly side: number
  /** Drafted tokens that were submitted, and (next field) how many of them the answer kept. Absent if nothing was drafted. */
  readonly drafted?: number
  readonly accepted?: number
  /** Tokens submitted to decode on behalf of this step, as the addon counted them. */
  readonly submitted: number
  /**
   * Tokens that a plain prefix cache would have submitted for this step: the generated tokens, and the prompt's tokens behind its common
   * beginning with the previous prompt. For a fork's first step, the previous prompt is the last one of its parent. Without a previous
   * prompt, it is the number of tokens that were submitted. Absent in entries of earlier versions, of cancelled steps and of engines that
   * do not report it.
   */
  readonly plain?: number
  /** Tokens that were sampled but not submitted, such as the last token of an answer. */
  readonly pending: number
  /** Reused tokens by source; sums to `reused`. */
  readonly sources: Readonly<Record<ReuseSource, number>>
  /** Reused tokens that a lower tier held and that were brought onto the device, by tier. `shared` is absent if it is 0. */
  readonly tiers: Readonly<Record<Exclude<Tier, 'device' | 'shared'>, number>> & { readonly shared?: number }
  /**
   * Reused tokens whose cells are copies turned to other positions, because they could not stay at their own, or to close gaps. They are
   * approximate. Absent in entries of earlier versions and of engines that have no positions.
   */
  readonly turned?: number
  /**
   * Reused tokens whose cells are approximate and differ from the cells that last showed the same token behind the same text. The earlier
   * cells are in no tier any more, or were turned. A restore for which this is 0 shows the very cells from before the edit. Absent in
   * entries of earlier versions and of engines that have no positions.
   */
  readonly replaced?: number
  /** Tokens that were parked when this step began, because the conversation no longer showed them. */
  readonly parked: number
  /**
   * Tokens lost with parked versions and idle live sequences that the cache dropped to make room for this step. Tokens whose cells another
   * sequence still holds are not lost.
   */
  readonly evicted: number
  /**
   * Like `evicted`, for tokens that were moved to a lower tier instead of lost. Includes tokens of this conversation that were moved
   * between its steps.
   */
  readonly moved: number
  /**
   * Milliseconds of wall time, by part of the step. `cache`: planning, bookkeeping and copies of cells. `prefill`: the decodes of the
   * prompt. `decode`: the decodes of the answer.
   */
  readonly milliseconds: { readonly cache: number; readonly prefill: number; readonly decode: number }
  /**
   * The part of `milliseconds.cache` in which cells were copied off the device, onto it or within it. Copies for other conversations count
   * if the step waited for them. Absent in entries of earlier versions and of engines that do not report it.
   */
  readonly copying?: number
  /** Milliseconds of cache and prefill, predicted before they began; null without a calibration of the machine. */
  readonly predicted: number | null
  /**
   * Present if another server computed the step. `name`: the server. `expected`: the prompt tokens that it should have had in its cache:
   * the beginning that the conversation's last step left there. `reported`: the number that it reported; null if it reports none.
   */
  readonly engine?: { readonly name: string; readonly expected: number; readonly reported: number | null }
}

/** Sums the drafts of these steps; an empty object if nothing was drafted. */
export function draftsIn(ledger: readonly LedgerEntry[]): {
  readonly drafts?: { readonly drafted: number; readonly accepted: number }
} {
  const sum = (of: 'drafted' | 'accepted') => ledger.reduce((total, entry) => total + (entry[of] ?? 0), 0)
  const drafted = sum('drafted')
  return drafted === 0 ? {} : { drafts: { drafted, accepted: sum('accepted') } }
}

/** Adds to the entry why the template renders earlier messages differently, which the cache cannot know. */
export function explained(entry: LedgerEntry, rewrite: { readonly reason: string } | null): LedgerEntry {
  const { recomputed, recomputeReason } = entry
  if (rewrite === null || recomputed === 0) return entry
  const first = `${recomputed} tokens: ${rewrite.reason}`
  return { ...entry, recomputeReason: recomputeReason == null ? first : `${first}; ${recomputeReason}` }
}

// The split of a step's tokens among its messages: reused, recomputed, fresh.

/**
 * Returns the prompt with generated tokens added to its last message, which is the one being generated.
 * @param tokens all tokens, generated ones included
 */
export function withGenerated({ messages }: Prompt, tokens: Int32Array): Prompt {
  return {
    tokens,
    messages: messages.map((message, at) =>
      at === messages.length - 1 ? { ...message, span: span(message.span.start, tokens.length) } : message,
    ),
  }
}

/**
 * Returns one cost per message of `now`, generated tokens included.
 *
 * Computed tokens that the previous step showed in the same message count as recomputed. Those are the message's beginning and its end, as
 * far as they are equal in both steps. The tokens between them are fresh. So text that stayed between two edits of one message counts as
 * fresh, and `recomputed` errs on the low side there. Generated tokens are always fresh.
 *
 * @param computed spans of the prompt that were computed; a last token decoded again counts as not computed
 * @param prompt number of prompt tokens; the rest of `now` was generated
 * @param before the prompt of this conversation's previous step, null for the first
 * @param exact number of tokens at the beginning whose cells are exact
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
