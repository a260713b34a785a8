/** Summaries: the model writes one in a conversation of its own. */
import { CellsBusy, KvfoldError } from '../core/errors.js'
import { conversationId, type ConversationId } from '../core/ids.js'
import type { Engine, RequestScope } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { refuse, type Result } from './refusal.js'

/** Writes a summary of `text`. `ledger` has the cost, also in a refusal. */
export type Summarize = (
  text: string,
  focus: string,
  signal?: AbortSignal,
) => Promise<Result<{ summary: string; ledger: readonly LedgerEntry[] }>>

/** The longest summary, in tokens. */
const LONGEST = 256

const request = (text: string, focus: string): string =>
  `Summarize the text below in a few sentences. Keep what matters for: ${focus}. Names, numbers and decisions stay exactly as they are; ` +
  `leave the rest out and add nothing. Answer with the summary alone.\n\nThe text:\n${text}`

/**
 * Returns a function that writes summaries with `engine`. Each summary gets its own one-message conversation, which is forgotten
 * afterwards. So the cache of `conversation` does not change, and the model sees only the text to summarise.
 */
export function summarizeWith(engine: Engine, conversation: ConversationId, scope?: RequestScope): Summarize {
  let count = 0
  return async (text, focus, signal) => {
    const aside = conversationId(`${conversation}/summary-${++count}`)
    try {
      const { reply } = engine.respond({
        ...scope,
        conversation: aside,
        messages: [{ role: 'user', content: request(text, focus) }],
        maxTokens: LONGEST,
        kind: 'summary',
        ...(signal === undefined ? {} : { signal }),
      })
      const { message, finish, ledger } = await reply
      const spent = { ledger: [ledger] }
      if (finish === 'cancelled') return { ...refuse('engine/cancelled', 'The summary was cancelled.'), ...spent }
      const summary = message.content.trim()
      if (summary === '') return { ...refuse('tool/refused', 'The summary came out empty. Use fold_fragment instead.'), ...spent }
      return { ok: true, summary, ...spent }
    } catch (error) {
      if (!(error instanceof KvfoldError)) throw error
      if (error.code === 'engine/cancelled') return refuse('engine/cancelled', 'The summary was cancelled.')
      if (error instanceof CellsBusy)
        return refuse('tool/refused', 'Other conversations hold the cells at this moment. Try again, or use fold_fragment.')
      if (error.code === 'context/full')
        return refuse('tool/refused', 'The fragment is too long to be summarized at once. Use fold_fragment instead.')
      throw error
    } finally {
      engine.forget(aside)
    }
  }
}
