/** Owns finding the stretch that two markers enclose, across messages where they stand in different ones. */
import type { ChatMessage } from '../chat/message.js'
import { span, type Span } from '../core/span.js'
import { quoted, refuse, type Result } from './refusal.js'
import { inScope, scopeName, type Scope } from './scope.js'

/** Characters of one message's original content. */
export interface Stretch {
  readonly message: number
  readonly span: Span
}

export interface MarkerQuery {
  readonly startMarker: string
  readonly endMarker: string
  readonly scope: Scope
}

interface Place {
  readonly message: number
  readonly start: number
}

/**
 * From the first character of the first `startMarker` to the last character of the first `endMarker` after it, in original
 * text: one non-empty stretch for every message in scope that lies between.
 */
export function between(
  messages: readonly ChatMessage[],
  { startMarker, endMarker, scope }: MarkerQuery,
): Result<{ stretches: readonly Stretch[] }> {
  for (const [name, marker] of [
    ['start_marker', startMarker],
    ['end_marker', endMarker],
  ] as const)
    if (marker === '') return refuse('tool/bad-arguments', `${name} is empty. Give a few words copied from the text.`)

  const beginning: Place = { message: 0, start: 0 }
  const start = find(messages, startMarker, scope, beginning)
  if (start === null) return refuse('tool/refused', missing(messages, 'start_marker', startMarker, scope))
  const end = find(messages, endMarker, scope, { message: start.message, start: start.start + startMarker.length })
  if (end === null)
    return find(messages, endMarker, scope, beginning) === null
      ? refuse('tool/refused', missing(messages, 'end_marker', endMarker, scope))
      : refuse(
          'tool/refused',
          `end_marker ${quoted(endMarker)} does not come after start_marker, only before its end. Choose an end_marker that comes later, or swap the two.`,
        )

  const stretches: Stretch[] = []
  for (let message = start.message; message <= end.message; message++) {
    const original = messages[message]
    if (original === undefined || !inScope(original, scope)) continue
    const from = message === start.message ? start.start : 0
    const to = message === end.message ? end.start + endMarker.length : original.content.length
    if (from < to) stretches.push({ message, span: span(from, to) })
  }
  return { ok: true, stretches }
}

/** First occurrence in scope at or after `from`, null when there is none. */
function find(messages: readonly ChatMessage[], text: string, scope: Scope, from: Place): Place | null {
  for (let message = from.message; message < messages.length; message++) {
    const original = messages[message]
    if (original === undefined || !inScope(original, scope)) continue
    const start = original.content.indexOf(text, message === from.message ? from.start : 0)
    if (start >= 0) return { message, start }
  }
  return null
}

/** Says that a marker is missing, and the likeliest reason. */
function missing(messages: readonly ChatMessage[], name: string, marker: string, scope: Scope): string {
  const not = `${name} ${quoted(marker)} is not in the ${scopeName(scope)}.`
  if (scope !== 'all' && find(messages, marker, 'all', { message: 0, start: 0 }) !== null)
    return `${not} It is in other messages: call again with role "all".`
  const lower = messages.map((message) => ({ ...message, content: message.content.toLowerCase() }))
  if (find(lower, marker.toLowerCase(), scope, { message: 0, start: 0 }) !== null)
    return `${not} It is there in other upper or lower case: copy it exactly.`
  return `${not} Copy a few words of the text exactly, as they stand there.`
}
