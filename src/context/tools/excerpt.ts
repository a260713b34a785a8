/** Owns how a search hit reads in a tool result. */
import type { ChatMessage } from '../../chat/message.js'
import type { Hit } from '../search.js'

/** A match in a list: its number, then what `excerpt` says. */
export const match = (messages: readonly ChatMessage[], hit: Hit, index: number): string =>
  `Match ${index + 1} (${hit.id}): ${placed(messages, hit)}`

/** One line that says where the hit stands, then the text around it. */
export const excerpt = (messages: readonly ChatMessage[], hit: Hit): string => `${hit.id}: ${placed(messages, hit)}`

function placed(messages: readonly ChatMessage[], { message, role, span, standing, excerpt: around }: Hit): string {
  const content = messages[message]?.content ?? ''
  const before = around.start > 0 ? '...' : ''
  const after = around.end < content.length ? '...' : ''
  return `message ${message + 1} (${role}), character ${span.start + 1}, ${where(standing)}\n${before}${content.slice(around.start, around.end)}${after}`
}

function where(standing: Hit['standing']): string {
  switch (standing.kind) {
    case 'shown':
      return 'shown'
    case 'folded':
      return `in folded fragment ${standing.fragment}`
    case 'summarised':
      return `in summarized fragment ${standing.fragment}`
  }
}
