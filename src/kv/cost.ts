/** Owns the split of a step's tokens among its messages: reused, recomputed, fresh. */
import { span, type Span } from '../core/span.js'
import type { MessageCost } from './ledger.js'
import { commonPrefix, commonSuffix } from './prefix.js'
import type { Prompt, PromptMessage } from './shown.js'

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
