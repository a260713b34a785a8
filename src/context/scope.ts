/** Owns which messages a `role` argument stands for. */
import type { ChatMessage } from '../chat/message.js'

/** Roles as the tools name them. */
export const scopes = ['user', 'assistant', 'all'] as const
export type Scope = (typeof scopes)[number]

/** Names of the tools whose results quote the conversation itself. */
const QUOTING = new Set(['search_context', 'get_search_detail'])

/**
 * True when a message of this role can be fragmented under `scope`. `all` is everything but the system message: tool results
 * are content too, often the longest there is.
 */
export function inScope(message: ChatMessage, scope: Scope): boolean {
  return scope === 'all' ? message.role !== 'system' : message.role === scope
}

/** Like `inScope`, less the results of earlier searches: they only repeat what stands elsewhere. */
export function searchable(message: ChatMessage, scope: Scope): boolean {
  return inScope(message, scope) && !(message.role === 'tool' && QUOTING.has(message.name ?? ''))
}

/** `user messages`, `assistant messages`, `messages`. */
export const scopeName = (scope: Scope): string => (scope === 'all' ? 'messages' : `${scope} messages`)
