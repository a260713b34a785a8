/** Owns the reading of server-sent events out of bytes (WHATWG HTML, "Interpreting an event stream"). */
import { KvfoldError } from '../../core/errors.js'

export interface ServerEvent {
  /** `message` unless the stream names another. */
  readonly name: string
  readonly data: string
}

/** Characters one line, or the data of one event, may have: more is no event of a chat, and must not fill the memory. */
const LONGEST = 16 * 2 ** 20

/**
 * Takes bytes as they come, cut anywhere, also within a character or between CR and LF. What is not ended by a blank line when the stream ends
 * is no event. Ids and retry times are skipped: a generation cannot be taken up again.
 */
export class SseParser {
  readonly #decoder = new TextDecoder()
  /** The line that has not ended yet. */
  #line = ''
  /** The last character was a CR, so an LF that follows belongs to it. */
  #afterCr = false
  #name = ''
  #data: string[] = []
  #size = 0

  /** The events that these bytes complete. @throws KvfoldError remote/bad-answer when an event grows beyond all measure */
  push(bytes: Uint8Array): ServerEvent[] {
    const events: ServerEvent[] = []
    const text = this.#decoder.decode(bytes, { stream: true })
    let at = this.#afterCr && text.startsWith('\n') ? 1 : 0
    if (text !== '') this.#afterCr = false
    const ends = /\r\n|\n|\r/g
    for (;;) {
      ends.lastIndex = at
      const end = ends.exec(text)
      if (end === null) break
      const event = this.#take(this.#line + text.slice(at, end.index))
      if (event !== null) events.push(event)
      this.#line = ''
      at = end.index + end[0].length
      this.#afterCr = end[0] === '\r' && at === text.length
    }
    this.#line += text.slice(at)
    if (this.#line.length + this.#size > LONGEST)
      throw new KvfoldError('remote/bad-answer', `The endpoint sent an event of more than ${LONGEST} characters.`)
    return events
  }

  #take(line: string): ServerEvent | null {
    if (line === '') {
      const event =
        this.#data.length === 0 ? null : { name: this.#name === '' ? 'message' : this.#name, data: this.#data.join('\n') }
      this.#name = ''
      this.#data = []
      this.#size = 0
      return event
    }
    const colon = line.indexOf(':')
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1)
    if (field === 'data') {
      this.#data.push(value)
      this.#size += value.length
    } else if (field === 'event') this.#name = value
    return null
  }
}
