/** Owns how a stretch of a message is named to the server, which cuts between two markers. Pure. */
import type { Thread } from './wire.js'

export type Markers = { readonly startMarker: string; readonly endMarker: string; readonly role: 'all' }

/**
 * Two halves of the stretch as markers. Null when the server would find other text by them: the stretch is shorter than two characters, its
 * message is the system's, or the same text stands earlier.
 */
export function markersOf(messages: Thread['messages'], index: number, start: number, end: number): Markers | null {
  const text = messages[index]?.message.content.slice(start, end) ?? ''
  if (text.length < 2 || messages[index]?.message.role === 'system') return null
  const middle = text.length >> 1
  const [startMarker, endMarker] = [text.slice(0, middle), text.slice(middle)]
  const searched = messages.filter(({ message }) => message.role !== 'system')
  const first = searched.find(({ message }) => message.content.includes(startMarker))
  const here = first?.index === index && first.message.content.indexOf(startMarker) === start
  return here && first.message.content.indexOf(endMarker, start + middle) === start + middle
    ? { startMarker, endMarker, role: 'all' }
    : null
}
