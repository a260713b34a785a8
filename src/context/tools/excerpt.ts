/** Owns how a search hit reads in a tool result. */
import type { ChatMessage } from '../../chat/message.js'
import type { Hit } from '../search.js'

/** One line that says where the hit stands, then the text around it. */
export function excerpt(messages: readonly ChatMessage[], { id, message, role, span, standing, excerpt: around }: Hit): string {
  const content = messages[message]?.content ?? ''
  const before = around.start > 0 ? '...' : ''
  const after = around.end < content.length ? '...' : ''
  return `${id}: message ${message + 1} (${role}), character ${span.start + 1}, ${where(standing)}\n${before}${content.slice(around.start, around.end)}${after}`
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
