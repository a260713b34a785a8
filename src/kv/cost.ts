/** Owns the split of a step's tokens among its messages: reused, recomputed, fresh. */
import { span } from '../core/span.js'
import type { MessageCost } from './ledger.js'
import { commonPrefix, commonSuffix } from './prefix.js'
import type { Shown, ShownMessage } from './shown.js'

/** The same tokens with generated ones added to the last message, which is the one being generated. */
export function withGenerated({ messages }: Shown, tokens: Int32Array): Shown {
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
 * @param reused tokens at the beginning that were not computed (a last token decoded again counts as not computed)
 * @param prompt tokens that were asked for; the rest of `now` was generated
 * @param before the previous step of this conversation, null for the first
 */
export function messageCosts(now: Shown, reused: number, prompt: number, before: Shown | null): MessageCost[] {
  const earlier = new Map<number, ShownMessage>(before?.messages.map((message) => [message.index, message]))
  return now.messages.map(({ index, role, span: { start, end } }) => {
    const tokens = now.tokens.subarray(start, end)
    const match = earlier.get(index)
    const old = match === undefined || before === null ? null : before.tokens.subarray(match.span.start, match.span.end)
    const head = old === null ? 0 : commonPrefix(old, tokens)
    const tail = old === null ? 0 : commonSuffix(old, tokens, head)

    const computed = (from: number, to: number) => Math.max(0, Math.min(to, prompt) - Math.max(from, reused))
    const recomputed = computed(start, start + head) + computed(end - tail, end)
    const fromCache = Math.max(0, Math.min(reused, end) - start)
    return { index, role, shown: end - start, reused: fromCache, recomputed, fresh: end - start - fromCache - recomputed }
  })
}
