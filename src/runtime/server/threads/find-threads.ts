/** Finds words in the original texts of threads. A thread may be long, so the search yields to the event loop in between. */
import type { ChatMessage } from '../../chat/message.js'
import { widened } from '../../context/search.js'
import { span, type Span } from '../../core/span.js'
import type { Steps } from '../../core/turns.js'
import type { ThreadFound } from './thread-api.js'

/** The most matches that a found thread lists, and how many characters of context stand before and after each. */
const PLACES = 3
const AROUND = 60
/** Text is searched in windows of this many characters, each with an overlap of 2000, so that a match across two windows is found. */
const STRETCH = 2 ** 16
const OVERLAP = 2000

/** Returns a pattern for the words of a query: upper and lower case are equal, and any white space may stand between the words. */
export const wordsOf = (query: string): RegExp =>
  new RegExp(
    query
      .trim()
      .replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&')
      .replace(/\s+/g, '\\s+'),
    'iu',
  )

/**
 * Returns the first match in each message, for at most `PLACES` messages, and how many messages match. Yields after each window of text.
 */
export function* placesIn(messages: readonly ChatMessage[], words: RegExp): Steps<Omit<ThreadFound, 'id' | 'title'>> {
  const places: ThreadFound['places'][number][] = []
  let count = 0
  for (const [message, { role, content }] of messages.entries()) {
    const found = yield* firstIn(content, words)
    if (found === null) continue
    count++
    if (places.length === PLACES) continue
    const { start, end } = found
    const around = widened(content, found, AROUND)
    places.push({
      ...{ message, role, words: content.slice(start, end) },
      before: content.slice(around.start, start),
      after: content.slice(end, around.end),
    })
  }
  return { messages: count, places }
}

function* firstIn(text: string, words: RegExp): Steps<Span | null> {
  for (let at = 0; at < text.length; at += STRETCH) {
    yield
    const found = words.exec(text.slice(at, at + STRETCH + OVERLAP))
    if (found !== null) return span(at + found.index, at + found.index + found[0].length)
  }
  return null
}
