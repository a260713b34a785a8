/** A call's arguments on their way out: JSON text that is still coming, handed out as the whole call will have it. */
import { JsonScanner } from './call.js'

const ESCAPED: Readonly<Record<string, string>> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }

/**
 * Writes what is certain of a JSON object as `JSON.stringify` would write all of it: no whitespace between its parts, characters escaped one way,
 * numbers when they have ended. Keys stay where they are, and none is dropped. Nothing comes of text that is no object.
 */
export class ArgumentText {
  /** What was handed out so far. */
  sent = ''
  readonly #scanner = new JsonScanner(0)
  #isComplete = false
  #at = 0
  #inString = false
  /** Of a string, not yet written; outside of one, a number or a word. */
  #held = ''
  #escape = ''
  #isStuck = false

  /** Whether all of the object was handed out. */
  get isComplete(): boolean {
    return this.#isComplete
  }

  get #isOver(): boolean {
    return this.#isComplete || this.#isStuck
  }

  /** @param text all of the arguments so far, the same as before and more. Returns what is new; how the text was split is not to be seen in the sum. */
  push(text: string): string {
    if (this.#isOver) return ''
    const { state } = this.#scanner.scan(text)
    const before = this.sent.length
    const valid = this.#scanner.valid(text)
    while (this.#at < valid && !this.#isStuck) this.#step(text)
    if (this.#inString) this.#flush(false)
    if (state === 'invalid') this.#isStuck = true
    if (state === 'complete' && !this.#isStuck) this.#isComplete = true
    return this.sent.slice(before)
  }

  #step(text: string): void {
    const char = text.charAt(this.#at++)
    if (this.#inString) this.#character(char)
    else if (/[\w.+-]/.test(char)) this.#held += char
    else {
      if (this.sent === '' && char !== '{' && char.trim() !== '') this.#isStuck = true
      if (this.#held !== '') this.sent += JSON.stringify(JSON.parse(this.#held))
      this.#held = ''
      if (this.#isStuck || char.trim() === '') return
      this.sent += char
      this.#inString = char === '"'
    }
  }

  #character(char: string): void {
    if (this.#escape !== '') {
      this.#escape += char
      this.#unescape()
    } else if (char === '\\') this.#escape = char
    else if (char === '"') {
      this.#flush(true)
      this.sent += char
      this.#inString = false
    } else this.#held += char
  }

  #unescape(): void {
    const kind = this.#escape.charAt(1)
    if (kind === 'u') {
      if (!/^\\u[\da-fA-F]*$/.test(this.#escape)) this.#isStuck = true
      if (this.#escape.length < 6 || this.#isStuck) return
      this.#held += String.fromCharCode(Number.parseInt(this.#escape.slice(2), 16))
    } else this.#held += ESCAPED[kind] ?? kind
    this.#escape = ''
  }

  /** Half a character waits for its other half. */
  #flush(ended: boolean): void {
    const waits = !ended && /[\ud800-\udbff]$/.test(this.#held)
    const whole = waits ? this.#held.slice(0, -1) : this.#held
    this.#held = this.#held.slice(whole.length)
    this.sent += JSON.stringify(whole).slice(1, -1)
  }
}

const NAMED =
  /^\s*\{[ \t\n\r]*"name"[ \t\n\r]*:[ \t\n\r]*"([^"\\\p{Cc}]+)"[ \t\n\r]*,[ \t\n\r]*"(?:arguments|parameters)"[ \t\n\r]*:/u

/** What is known of a call before its end. */
export interface BegunCall {
  readonly name: string
  /** Of its arguments, as the model wrote them so far. */
  readonly text: string
  readonly id?: string
}

/** `{"name": ..., "arguments" or "parameters":` and what follows; null as long as it is something else. */
export function begunNamed(text: string): BegunCall | null {
  const [before, name] = NAMED.exec(text) ?? []
  return before === undefined || name === undefined ? null : { name, text: text.slice(before.length) }
}
