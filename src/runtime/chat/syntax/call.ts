/** Converts a call as the model wrote it to a `ToolCall`. Arguments that are not a JSON object are kept as `malformed`. */
import { isRecord } from '../../core/json.js'
import { numberText, readJson, writeJson } from '../../core/written-json.js'
import type { ToolCall } from '../message.js'

/** A call as the model wrote it. */
export interface RawCall {
  readonly name: string
  /** JSON text, or values that are already parsed. */
  readonly arguments: string | Readonly<Record<string, unknown>>
  readonly id?: string
}

/** Converts a raw call to a `ToolCall`. @param id the id of the result; the model's own id is ignored */
export function toolCall({ name, arguments: given }: Omit<RawCall, 'id'>, id: string): ToolCall {
  const call = { id, name }
  if (typeof given !== 'string') return { ...call, arguments: given }
  const parsed = parseObject(given)
  return parsed === null ? { ...call, arguments: {}, malformed: given } : { ...call, arguments: parsed }
}

/** Parses a JSON object, or a JSON string that contains one. Returns null for anything else. */
export function parseObject(text: string): Readonly<Record<string, unknown>> | null {
  const value = parseJson(text)
  const inner = typeof value === 'string' ? parseJson(value) : value
  return isRecord(inner) ? inner : null
}

export function parseJson(text: string): unknown {
  try {
    return readJson(text)
  } catch {
    return undefined
  }
}

/** Matches a broken call up to its arguments. The end is cut off by code, because a pattern would take cubic time on a run of spaces. */
const BROKEN = /^\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"(?:arguments|parameters)"\s*:/

/** Parses `{"name": ..., "arguments" or "parameters": ...}`. If the JSON is broken, keeps the name when that is readable. */
export function namedCall(text: string): RawCall {
  const call = namedCallOf(parseJson(text))
  if (call !== null) return call
  const [before, name] = BROKEN.exec(text) ?? []
  if (before === undefined || name === undefined) return { name: '', arguments: text.trim() }
  const rest = text.slice(before.length).trim()
  return { name, arguments: rest.endsWith('}') ? rest.slice(0, -1).trimEnd() : rest }
}

/** Like `namedCall`, for a parsed value. Returns null when the value is not a call. */
export function namedCallOf(value: unknown): RawCall | null {
  if (!isRecord(value)) return null
  const { name, id } = value
  const key = value['arguments'] == null ? 'parameters' : 'arguments'
  const given = value[key] ?? ('arguments' in value || 'parameters' in value ? null : {})
  if (typeof name !== 'string') return null
  return {
    name,
    arguments: isRecord(given) ? given : typeof given === 'string' ? given : (numberText(value, key) ?? writeJson(given)),
    ...(typeof id === 'string' && id !== '' ? { id } : {}),
  }
}

// Finds the end of a JSON value in streamed text, in one pass.

type JsonScan =
  { readonly state: 'complete'; readonly end: number } | { readonly state: 'incomplete' } | { readonly state: 'invalid' }

/** What may come next in the innermost object or array. */
type Expect = 'value' | 'value-or-end' | 'key-or-end' | 'key' | 'colon' | 'comma-or-end'

const SCALAR = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/
const ESCAPES = new Set('"\\/bfnrtu')

/** Scans one JSON value from offset `start`. Each call of `scan` must get the same text as before, possibly longer. */
export class JsonScanner {
  #at: number
  /** The offset before the character or word scanned last. */
  #before = 0
  #expect: Expect = 'value'
  readonly #open: ('[' | '{')[] = []
  /** The offset at which the current string, number or word began; null between them. */
  #from: number | null = null
  #escape = false
  #invalid = false
  #end: number | null = null

  constructor(start: number) {
    this.#at = start
  }

  /** Returns how many characters of `text` (the text scanned last) are certainly valid JSON. A number or word counts once it has ended. */
  valid(text: string): number {
    if (this.#from !== null && text.charAt(this.#from) !== '"') return this.#from
    return this.#invalid ? this.#before : this.#at
  }

  scan(text: string, final = false): JsonScan {
    while (this.#end === null && !this.#invalid && this.#at < text.length) {
      this.#before = this.#at
      this.#step(text)
    }
    if (final && this.#end === null && !this.#invalid) this.#finishScalar(text)
    if (this.#end !== null) return { state: 'complete', end: this.#end }
    return { state: this.#invalid ? 'invalid' : 'incomplete' }
  }

  #step(text: string): void {
    const char = text.charAt(this.#at)
    if (this.#from !== null) {
      if (text.charAt(this.#from) === '"') this.#inString(char)
      else if (/[\s,\]}]/.test(char)) this.#finishScalar(text)
      else this.#at++
      return
    }
    this.#at++
    if (char === ' ' || char === '\n' || char === '\t' || char === '\r') return
    const valueExpected = this.#expect === 'value' || this.#expect === 'value-or-end'
    if (char === '"' && (valueExpected || this.#expect === 'key' || this.#expect === 'key-or-end')) this.#from = this.#at - 1
    else if ((char === '{' || char === '[') && valueExpected) {
      this.#open.push(char)
      this.#expect = char === '{' ? 'key-or-end' : 'value-or-end'
    } else if (char === '}' || char === ']') this.#close(char)
    else if (char === ':' && this.#expect === 'colon') this.#expect = 'value'
    else if (char === ',' && this.#expect === 'comma-or-end') this.#expect = this.#open.at(-1) === '{' ? 'key' : 'value'
    else if (valueExpected && /[-\dtfn]/.test(char)) this.#from = this.#at - 1
    else this.#invalid = true
  }

  #inString(char: string): void {
    this.#at++
    if (this.#escape) {
      this.#escape = false
      if (!ESCAPES.has(char)) this.#invalid = true
    } else if (char === '\\') this.#escape = true
    else if (char < ' ') this.#invalid = true
    else if (char === '"') {
      this.#from = null
      const key = this.#expect === 'key' || this.#expect === 'key-or-end'
      if (key) this.#expect = 'colon'
      else this.#valueEnded()
    }
  }

  #finishScalar(text: string): void {
    if (this.#from === null || text.charAt(this.#from) === '"') return
    if (SCALAR.test(text.slice(this.#from, this.#at))) {
      this.#from = null
      this.#valueEnded()
    } else this.#invalid = true
  }

  #close(char: '}' | ']'): void {
    const matches = this.#open.at(-1) === (char === '}' ? '{' : '[')
    const allowed = this.#expect === 'comma-or-end' || this.#expect === (char === '}' ? 'key-or-end' : 'value-or-end')
    if (!matches || !allowed) {
      this.#invalid = true
      return
    }
    this.#open.pop()
    this.#valueEnded()
  }

  #valueEnded(): void {
    if (this.#open.length === 0) this.#end = this.#at
    else this.#expect = 'comma-or-end'
  }
}

// Streams the arguments of a call, in exactly the text that the finished call will have.

const ESCAPED: Readonly<Record<string, string>> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }

/**
 * Emits as much of a streamed JSON object as is certain. The emitted text has no white space between tokens and the escapes of
 * `JSON.stringify`. Numbers are emitted once they have ended, with their original digits. Keys keep their order; repeated keys are kept. If
 * the text is not an object, nothing is emitted.
 */
export class ArgumentText {
  /** The text emitted so far. */
  sent = ''
  readonly #scanner = new JsonScanner(0)
  #isComplete = false
  #at = 0
  #inString = false
  /** Characters that are not emitted yet: of a string, or of a number or word. */
  #held = ''
  #escape = ''
  #isStuck = false

  /** Whether the whole object was emitted. */
  get isComplete(): boolean {
    return this.#isComplete
  }

  get #isOver(): boolean {
    return this.#isComplete || this.#isStuck
  }

  /** Returns the text to emit next. How the text was split does not matter for the sum. @param text all of the arguments so far */
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
      this.sent += this.#held
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

  /** Emits the held characters of a string. While the string goes on, a high surrogate waits for its other half. */
  #flush(ended: boolean): void {
    const waits = !ended && /[\ud800-\udbff]$/.test(this.#held)
    const whole = waits ? this.#held.slice(0, -1) : this.#held
    this.#held = this.#held.slice(whole.length)
    this.sent += JSON.stringify(whole).slice(1, -1)
  }
}

const NAMED =
  /^\s*\{[ \t\n\r]*(?:"type"[ \t\n\r]*:[ \t\n\r]*"function"[ \t\n\r]*,[ \t\n\r]*)?"name"[ \t\n\r]*:[ \t\n\r]*"([^"\\\p{Cc}]+)"[ \t\n\r]*,[ \t\n\r]*"(?:arguments|parameters)"[ \t\n\r]*:/u

/** What is known of an unfinished call. */
export interface BegunCall {
  readonly name: string
  /** The arguments so far, as the model wrote them. */
  readonly text: string
  readonly id?: string
}

/**
 * Parses the beginning of a call: `{"name": ..., "arguments" or "parameters":` and the text after it. `"type": "function"` may come first.
 * Returns null when the text does not begin so, or not yet.
 */
export function begunNamed(text: string): BegunCall | null {
  const [before, name] = NAMED.exec(text) ?? []
  return before === undefined || name === undefined ? null : { name, text: text.slice(before.length) }
}
