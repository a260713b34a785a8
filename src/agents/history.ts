/** Owns what is done with turns that are long over: their long texts are folded or summarised, and can all be restored. */
import { type Conversation } from '../context/conversation.js'
import { span } from '../core/span.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Stretch } from '../context/stretch.js'

export interface HistoryLimit {
  /** Turns that stay as they are, the one that begins among them. */
  readonly turns: number
  /** `truncate`: folded behind a marker. `summarize`: the model writes what stays. */
  readonly by: 'truncate' | 'summarize'
}

/** Shorter texts take fewer tokens than what would stand in their place. */
const LEAST = 200

/**
 * Hides what stands in messages before the last `turns` user messages, whatever is no fragment yet. `spared`: messages that stay, by name of the
 * tool that they are results of.
 * @returns what summaries cost
 * @throws KvfoldError what the engine throws
 */
export async function foldHistory(
  conversation: Conversation,
  { turns, by }: HistoryLimit,
  spared: readonly string[],
  signal?: AbortSignal,
): Promise<readonly LedgerEntry[]> {
  const ledger: LedgerEntry[] = []
  for (const stretch of oldStretches(conversation, turns, spared)) {
    const cut = conversation.cut([stretch], 1)
    if (!cut.ok) continue
    for (const { id } of cut.fragments) {
      if (by === 'truncate') conversation.fold(id, undefined, 'refuse')
      else ledger.push(...((await conversation.summarize(id, 'what was asked and answered', signal, 'refuse')).ledger ?? []))
    }
  }
  return ledger
}

function oldStretches({ messages, fragments }: Conversation, turns: number, spared: readonly string[]): Stretch[] {
  const users = messages.flatMap(({ role }, index) => (role === 'user' ? [index] : []))
  const end = users.at(-turns) ?? 0
  return messages.slice(0, end).flatMap(({ role, content, name = '' }, message): Stretch[] => {
    if (role === 'system' || content.length < LEAST || spared.includes(name)) return []
    return fragments.some((fragment) => fragment.message === message) ? [] : [{ message, span: span(0, content.length) }]
  })
}
