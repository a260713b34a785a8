/** Calls written in Python: `[name(key=literal, ...), ...]`. */
import type { RawCall } from './call.js'

class UnreadableCall extends Error {}

/** The deepest nesting of brackets. A model that repeats itself may open thousands. */
const DEEPEST = 200

/** The calls that a text begins with. `open`: more text may complete them. `no`: they cannot be read, whatever follows. */
export type PythonRead = { readonly end: number; readonly calls: readonly RawCall[] } | 'open' | 'no'

/** A parser that yields when it needs more text. */
type Reading<T> = Generator<undefined, T>

/** Parses `[name(key=literal, ...), ...]` with Python literals. */
export class PythonCalls {
  #at = 0
  #depth = 0
  #reading: Reading<readonly RawCall[]> | null = null
  #read: PythonRead = 'open'

  constructor(private text = '') {}

  /** Returns the calls of a complete text; one malformed call when it cannot be parsed. */
  calls(): readonly RawCall[] {
    if (this.text.trim() === '') return []
    const read = this.read(true)
    return typeof read === 'string' ? [{ name: '', arguments: this.text.trim() }] : read.calls
  }

  /**
   * Reads the calls that the text begins with: a list, or a single call without brackets. Other text may follow. @param text the text of
   * the last call, possibly longer
   */
  read(isList: boolean, text = this.text): PythonRead {
    this.text = text
    this.#reading ??= isList ? this.#calls() : this.#single()
    if (this.#read !== 'open') return this.#read
    try {
      const { done, value } = this.#reading.next()
      if (done === true) this.#read = { end: this.#at, calls: value }
    } catch (error) {
      if (!(error instanceof UnreadableCall)) throw error
      this.#read = 'no'
    }
    return this.#read
  }

  *#calls(): Reading<readonly RawCall[]> {
    yield* this.#expect('[')
    return yield* this.#list(']', () => this.#call())
  }

  *#single(): Reading<readonly RawCall[]> {
    return [yield* this.#call()]
  }

  *#call(): Reading<RawCall> {
    const name = yield* this.#match(/[\w.-]+/y)
    yield* this.#expect('(')
    const pairs = yield* this.#list(')', () => this.#argument())
    return { name, arguments: `{${pairs.join(',')}}` }
  }

  *#argument(): Reading<string> {
    const key = yield* this.#match(/\w+/y)
    yield* this.#expect('=')
    return `${JSON.stringify(key)}:${yield* this.#value()}`
  }

  /** Reads a Python value and returns it as JSON text. */
  *#value(): Reading<string> {
    yield* this.#space()
    const char = this.text.charAt(this.#at)
    if (char === '[' || char === '(') return `[${yield* this.#inside(char === '[' ? ']' : ')', () => this.#value())}]`
    if (char === '{') return `{${yield* this.#inside('}', () => this.#pair())}}`
    if (char === '"' || char === "'") return JSON.stringify(yield* this.#string(char))
    const word = yield* this.#match(/[\w.+-]+/y)
    const constants: Readonly<Record<string, string>> = { True: 'true', False: 'false', None: 'null' }
    if (Object.hasOwn(constants, word)) return constants[word]!
    if (/^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)$/.test(word)) return word
    // Numbers that Python accepts and JSON does not: `+5`, `.5`, `007`. They keep their digits.
    const parts = /^([-+]?)(?=\.?\d)(\d*)(?:\.(\d*))?((?:[eE][-+]?\d+)?)$/.exec(word)
    if (parts === null) throw new UnreadableCall()
    const [, sign, whole = '', fraction, power = ''] = parts
    return `${sign === '-' ? '-' : ''}${whole.replace(/^0+(?=\d)/, '') || '0'}${fraction ? `.${fraction}` : ''}${power}`
  }

  /** Reads the items between two brackets, from the opening one on. Returns them as JSON, joined by commas. */
  *#inside(close: string, item: () => Reading<string>): Reading<string> {
    if (++this.#depth > DEEPEST) throw new UnreadableCall()
    this.#at++
    const items = yield* this.#list(close, item)
    this.#depth--
    return items.join(',')
  }

  *#pair(): Reading<string> {
    const key = yield* this.#value()
    yield* this.#expect(':')
    // Python's keys may be numbers or constants. JSON needs strings.
    return `${key.startsWith('"') ? key : JSON.stringify(key)}:${yield* this.#value()}`
  }

  *#string(quote: string): Reading<string> {
    let value = ''
    for (this.#at++; ; this.#at++) {
      yield* this.#until(this.#at + 1)
      const char = this.text.charAt(this.#at)
      if (char === quote) break
      value += char === '\\' ? yield* this.#escape() : char
    }
    this.#at++
    return value
  }

  *#escape(): Reading<string> {
    this.#at++
    yield* this.#until(this.#at + 1)
    const char = this.text.charAt(this.#at)
    const simple: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r', '\\': '\\', "'": "'", '"': '"', '\n': '' }
    const digits = { x: 2, u: 4, U: 8 }[char]
    if (digits === undefined) return simple[char] ?? `\\${char}`
    yield* this.#until(this.#at + 1 + digits)
    const code = Number.parseInt(this.text.slice(this.#at + 1, this.#at + 1 + digits), 16)
    this.#at += digits
    if (Number.isNaN(code) || code > 0x10ffff) throw new UnreadableCall()
    return String.fromCodePoint(code)
  }

  /** Parses items up to the closing bracket. A trailing comma is allowed. */
  *#list<T>(close: string, item: () => Reading<T>): Reading<T[]> {
    const items: T[] = []
    for (;;) {
      yield* this.#space()
      if (this.text.charAt(this.#at) === close) {
        this.#at++
        return items
      }
      if (items.length > 0) yield* this.#expect(',')
      yield* this.#space()
      if (this.text.charAt(this.#at) !== close) items.push(yield* item())
    }
  }

  *#match(pattern: RegExp): Reading<string> {
    yield* this.#space()
    for (;;) {
      pattern.lastIndex = this.#at
      const [found] = pattern.exec(this.text) ?? []
      if (found === undefined) throw new UnreadableCall()
      if (this.#at + found.length < this.text.length) {
        this.#at += found.length
        return found
      }
      yield
    }
  }

  *#expect(char: string): Reading<void> {
    yield* this.#space()
    if (this.text.charAt(this.#at) !== char) throw new UnreadableCall()
    this.#at++
  }

  /** Skips white space, and waits until another character has arrived. */
  *#space(): Reading<void> {
    for (;;) {
      yield* this.#until(this.#at + 1)
      if (!/\s/.test(this.text.charAt(this.#at))) return
      this.#at++
    }
  }

  /** Waits until the text has at least this many characters. */
  *#until(length: number): Reading<void> {
    while (this.text.length < length) yield
  }
}
