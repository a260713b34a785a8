/** From the raw text of a call to a ToolCall; what is not a JSON object is kept as `malformed`. */
import { isRecord } from '../../core/json.js'
import type { ToolCall } from '../message.js'

/** A call as the model wrote it. */
export interface RawCall {
  readonly name: string
  /** JSON text, or values already read. */
  readonly arguments: string | Readonly<Record<string, unknown>>
  readonly id?: string
}

export function toolCall({ name, arguments: given, id }: RawCall, fallbackId: string): ToolCall {
  const call = { id: id ?? fallbackId, name }
  if (typeof given !== 'string') return { ...call, arguments: given }
  const parsed = parseObject(given)
  return parsed === null ? { ...call, arguments: {}, malformed: given } : { ...call, arguments: parsed }
}

/** A JSON object, or a JSON string that holds one; null for anything else. */
export function parseObject(text: string): Readonly<Record<string, unknown>> | null {
  const value = parseJson(text)
  const inner = typeof value === 'string' ? parseJson(value) : value
  return isRecord(inner) ? inner : null
}

export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

const BROKEN = /^\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*([^]*?)\s*\}?\s*$/

/** `{"name": ..., "arguments" or "parameters": ...}` as text. Broken JSON keeps its name when it has got one. */
export function namedCall(text: string): RawCall {
  const call = namedCallOf(parseJson(text))
  if (call !== null) return call
  const [, name, rest] = BROKEN.exec(text) ?? []
  return name === undefined || rest === undefined ? { name: '', arguments: text.trim() } : { name, arguments: rest }
}

/** The same as a value; null when it is no call. */
export function namedCallOf(value: unknown): RawCall | null {
  if (!isRecord(value)) return null
  const { name, id } = value
  const given = value['arguments'] ?? value['parameters'] ?? ('arguments' in value || 'parameters' in value ? null : {})
  if (typeof name !== 'string') return null
  return {
    name,
    arguments: isRecord(given) ? given : typeof given === 'string' ? given : JSON.stringify(given),
    ...(typeof id === 'string' && id !== '' ? { id } : {}),
  }
}

// Finds where a JSON value ends in text that is still coming, in one pass over it.

type Outcome =
  { readonly state: 'complete'; readonly end: number } | { readonly state: 'incomplete' } | { readonly state: 'invalid' }

/** What may come next inside the innermost container. */
type Expect = 'value' | 'value-or-end' | 'key-or-end' | 'key' | 'colon' | 'comma-or-end'

const SCALAR = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/
const ESCAPES = new Set('"\\/bfnrtu')

/** Scans one value from `start` on. `scan` is called with the same text, longer each time. */
export class JsonScanner {
  #at: number
  /** Where the last step began. */
  #before = 0
  #expect: Expect = 'value'
  readonly #open: ('[' | '{')[] = []
  /** Where the string or scalar being read began. */
  #from: number | null = null
  #escape = false
  #invalid = false
  #end: number | null = null

  constructor(start: number) {
    this.#at = start
  }

  /** Up to where `text`, the last that was scanned, is known to be JSON: a number or a word is when it has ended. */
  valid(text: string): number {
    if (this.#from !== null && text.charAt(this.#from) !== '"') return this.#from
    return this.#invalid ? this.#before : this.#at
  }

  scan(text: string, final = false): Outcome {
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
