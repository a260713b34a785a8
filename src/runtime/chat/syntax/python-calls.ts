/** Reads calls written as Python: `[name(key=literal, ...), ...]`. */
import type { RawCall } from './call.js'

class UnreadableCall extends Error {}

/** Parses `[name(key=literal, ...), ...]`, where the literals are Python's. */
export class PythonCalls {
  #at = 0

  constructor(private readonly text: string) {}

  /** Returns the calls of a whole text, or one malformed call when the text cannot be parsed. */
  calls(): RawCall[] {
    if (this.text.trim() === '') return []
    try {
      this.#expect('[')
      return this.#list(']', () => this.#call())
    } catch (error) {
      if (!(error instanceof UnreadableCall)) throw error
      return [{ name: '', arguments: this.text.trim() }]
    }
  }

  /**
   * Reads the calls with which the text begins: a list, or one call without brackets. Other text may follow them. `open`: more text may
   * complete the calls. `no`: no further text can.
   */
  read(isList: boolean): { readonly end: number; readonly calls: readonly RawCall[] } | 'open' | 'no' {
    try {
      if (isList) this.#expect('[')
      const calls = isList ? this.#list(']', () => this.#call()) : [this.#call()]
      return { end: this.#at, calls }
    } catch (error) {
      if (!(error instanceof UnreadableCall)) throw error
      return this.#at >= this.text.length ? 'open' : 'no'
    }
  }

  #call(): RawCall {
    const name = this.#match(/[\w.-]+/y)
    this.#expect('(')
    const pairs = this.#list(')', () => {
      const key = this.#match(/\w+/y)
      this.#expect('=')
      return `${JSON.stringify(key)}:${this.#value()}`
    })
    return { name, arguments: `{${pairs.join(',')}}` }
  }

  /** Reads a Python value and returns it as JSON text. */
  #value(): string {
    this.#space()
    const char = this.text.charAt(this.#at)
    if (char === '[' || char === '(') {
      this.#at++
      return `[${this.#list(char === '[' ? ']' : ')', () => this.#value()).join(',')}]`
    }
    if (char === '{') {
      this.#at++
      const pairs = this.#list('}', () => {
        const key = this.#value()
        this.#expect(':')
        // Keys in Python may be numbers and constants; they become strings here.
        return `${key.startsWith('"') ? key : JSON.stringify(key)}:${this.#value()}`
      })
      return `{${pairs.join(',')}}`
    }
    if (char === '"' || char === "'") return JSON.stringify(this.#string(char))
    const word = this.#match(/[\w.+-]+/y)
    const constants: Readonly<Record<string, string>> = { True: 'true', False: 'false', None: 'null' }
    if (Object.hasOwn(constants, word)) return constants[word]!
    if (this.#at >= this.text.length) throw new UnreadableCall()
    if (/^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)$/.test(word)) return word
    // Python accepts numbers that JSON does not: `+5`, `.5`, `007`. They keep their digits.
    const parts = /^([-+]?)(?=\.?\d)(\d*)(?:\.(\d*))?((?:[eE][-+]?\d+)?)$/.exec(word)
    if (parts === null) throw new UnreadableCall()
    const [, sign, whole = '', fraction, power = ''] = parts
    return `${sign === '-' ? '-' : ''}${whole.replace(/^0+(?=\d)/, '') || '0'}${fraction ? `.${fraction}` : ''}${power}`
  }

  #string(quote: string): string {
    let value = ''
    for (this.#at++; this.text.charAt(this.#at) !== quote; this.#at++) {
      if (this.#at >= this.text.length) throw new UnreadableCall()
      const char = this.text.charAt(this.#at)
      value += char === '\\' ? this.#escape() : char
    }
    this.#at++
    return value
  }

  #escape(): string {
    const char = this.text.charAt(++this.#at)
    const simple: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r', '\\': '\\', "'": "'", '"': '"', '\n': '' }
    const digits = { x: 2, u: 4, U: 8 }[char]
    if (digits === undefined) return simple[char] ?? `\\${char}`
    const code = Number.parseInt(this.text.slice(this.#at + 1, this.#at + 1 + digits), 16)
    this.#at += digits
    if (Number.isNaN(code) || code > 0x10ffff) throw new UnreadableCall()
    return String.fromCodePoint(code)
  }

  /** Parses items up to the closing bracket. A trailing comma is allowed. */
  #list<T>(close: string, item: () => T): T[] {
    const items: T[] = []
    for (;;) {
      this.#space()
      if (this.text.charAt(this.#at) === close) {
        this.#at++
        return items
      }
      if (items.length > 0) this.#expect(',')
      this.#space()
      if (this.text.charAt(this.#at) !== close) items.push(item())
    }
  }

  #match(pattern: RegExp): string {
    this.#space()
    pattern.lastIndex = this.#at
    const [found] = pattern.exec(this.text) ?? []
    if (found === undefined) throw new UnreadableCall()
    this.#at += found.length
    return found
  }

  #expect(char: string): void {
    this.#space()
    if (this.text.charAt(this.#at) !== char) throw new UnreadableCall()
    this.#at++
  }

  #space(): void {
    while (/\s/.test(this.text.charAt(this.#at))) this.#at++
  }
}
