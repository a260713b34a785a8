/** Reads and writes long JSON in pieces with yields to the event loop in between. The built-in parser reads each piece. */
import { weightOf } from '../core/json.js'
import type { Steps } from '../core/turns.js'
import { append, listOf, numberText, objectOf, writeJson, writtenEntries } from '../core/written-json.js'

/** Characters parsed or scanned between two yields to the event loop. */
const PART = 64 * 1024

/** The text is not JSON. `position`: character index of the first error; null: the text ends too early. */
export class JsonFault extends Error {
  constructor(readonly position: number | null) {
    super('not JSON')
  }
}

/**
 * `values`: the most values of a text, which bounds its memory. `object`: the most members of an object. `kept`: the most numbers of a list
 * that keep their written form, such as 1.0. More members or such numbers would block the event loop for too long.
 */
const MOST = { values: 2 ** 21, object: 2 ** 16, kept: 2 ** 17 }

/** The text, or one list or object in it, has too many members. */
export class TooManyMembers extends Error {
  constructor(
    readonly most: number,
    /** Which members are too many. */
    readonly what = 'members',
    /** Where there are too many of them. */
    readonly where = 'a list or an object',
  ) {
    super(`too many ${what}`)
  }
}

/** Counts the values inside a list or object, at all levels. */
function valuesIn(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  const members = Array.isArray(value) ? (value as unknown[]) : Object.values(value)
  let count = members.length
  for (const member of members) if (typeof member === 'object') count += valuesIn(member)
  return count
}

/**
 * Parses JSON with yields to the event loop. Short values are parsed together; long lists and objects are read member by member.
 * @param parse parses a piece of the text; `depth`: how many lists and objects surround the piece
 * @param member called for each member of an object whose value is too long to be parsed together with others
 * @throws JsonFault; TooManyMembers; what `parse` throws except SyntaxError; what `member` throws
 */
export function* jsonInSteps(
  text: string,
  parse: (part: string, depth: number) => unknown,
  member: (key: string, value: unknown) => void,
): Steps<unknown> {
  const reader = new Reader(text, parse, member)
  const { value, end } = yield* reader.value(reader.pastSpace(0))
  if (reader.pastSpace(end) < text.length) throw new JsonFault(reader.pastSpace(end))
  return value
}

class Reader {
  /** How many lists and objects surround the reader's position. */
  #depth = 0
  /** Values read so far. */
  #values = 0

  constructor(
    private readonly text: string,
    private readonly parse: (part: string, depth: number) => unknown,
    private readonly member: (key: string, value: unknown) => void,
  ) {}

  pastSpace(at: number): number {
    for (;;) {
      const char = this.text.charCodeAt(at)
      if (char !== SPACE && char !== NEWLINE && char !== TAB && char !== RETURN) return at
      at++
    }
  }

  /** Returns the value that begins at `start`, and the position after it. */
  *value(start: number): Steps<{ readonly value: unknown; readonly end: number }> {
    const end = this.#end(start, start + PART)
    if (end !== null) return { value: this.#parsed(start, end, '', ''), end }
    const first = this.text.charCodeAt(start)
    if (first === QUOTE) return yield* this.#string(start)
    if (first !== BRACKET && first !== BRACE) throw this.#fault(start)
    // Parse an empty list or object, so that `parse` checks the depth here.
    this.parse(first === BRACKET ? '[]' : '{}', this.#depth)
    this.#depth++
    const walked = first === BRACKET ? yield* this.#list(start) : yield* this.#object(start)
    this.#depth--
    return walked
  }

  *#list(start: number): Steps<{ readonly value: unknown[]; readonly end: number }> {
    const items: unknown[] = []
    let at = this.pastSpace(start + 1)
    if (this.text.charCodeAt(at) === BRACKET_END) return { value: items, end: at + 1 }
    for (;;) {
      const run = this.#run(at)
      if (run > at) {
        const kept = append(items, this.#parsed(at, run, '[', ']') as unknown[])
        if (kept > MOST.kept) throw new TooManyMembers(MOST.kept, 'numbers such as 1.0 and 1e5, which keep their text')
        at = run
      } else {
        const long = yield* this.value(at)
        items.push(long.value)
        at = this.pastSpace(long.end)
      }
      yield
      if (this.text.charCodeAt(at) === BRACKET_END) return { value: items, end: at + 1 }
      at = this.#pastComma(at)
    }
  }

  *#object(start: number): Steps<{ readonly value: object; readonly end: number }> {
    const entries: (readonly [key: string, value: unknown, text?: string | undefined])[] = []
    let at = this.pastSpace(start + 1)
    if (this.text.charCodeAt(at) === BRACE_END) return { value: {}, end: at + 1 }
    for (;;) {
      const run = this.#run(at)
      if (run > at) {
        for (const { key, value, text } of writtenEntries(this.#parsed(at, run, '{', '}') as object))
          entries.push([key, value, text])
        at = run
      } else {
        const named = yield* this.value(at)
        if (typeof named.value !== 'string') throw new JsonFault(at)
        const colon = this.pastSpace(named.end)
        if (this.text.charCodeAt(colon) !== COLON) throw this.#fault(colon)
        const long = yield* this.value(this.pastSpace(colon + 1))
        this.member(named.value, long.value)
        entries.push([named.value, long.value])
        at = this.pastSpace(long.end)
      }
      if (entries.length > MOST.object) throw new TooManyMembers(MOST.object)
      yield
      if (this.text.charCodeAt(at) === BRACE_END) return { value: objectOf(entries), end: at + 1 }
      at = this.#pastComma(at)
    }
  }

  /**
   * Returns the position of the comma or bracket that ends the longest run of members from `at` on that fits into `PART`; returns `at` if
   * not even the first fits.
   */
  #run(at: number): number {
    const limit = at + PART
    let last = at
    for (let next = at; ;) {
      const end = this.#member(next, limit)
      if (end === null) return last
      last = end
      if (this.text.charCodeAt(end) !== COMMA) return last
      next = this.pastSpace(end + 1)
    }
  }

  /** Returns the position of the comma or bracket after the member; null if it is at `limit` or later. */
  #member(at: number, limit: number): number | null {
    let depth = 0
    for (; at < limit; at++) {
      const char = this.text.charCodeAt(at)
      if (char === QUOTE) {
        const end = this.#quoted(at, limit)
        if (end === null) return null
        at = end - 1
      } else if (char === BRACE || char === BRACKET) depth++
      else if (char === BRACE_END || char === BRACKET_END) {
        if (depth-- === 0) return at
      } else if (char === COMMA && depth === 0) return at
      else if (Number.isNaN(char)) throw new JsonFault(null)
    }
    return null
  }

  /** Returns the position after the value; null if the value reaches `limit`. */
  #end(start: number, limit: number): number | null {
    const { text } = this
    const first = text.charCodeAt(start)
    if (first === QUOTE) return this.#quoted(start, limit)
    if (first !== BRACE && first !== BRACKET) {
      let at = start
      while (at < limit && at < text.length && !ENDS.has(text.charCodeAt(at))) at++
      return at < limit ? at : null
    }
    const inner = this.pastSpace(start + 1)
    for (let at = inner; ;) {
      const end = this.#member(at, limit)
      if (end === null) return null
      if (text.charCodeAt(end) !== COMMA) return end + 1
      at = end + 1
    }
  }

  /** Returns the position after the string; null if the string reaches `limit`. */
  #quoted(start: number, limit: number): number | null {
    for (let at = start + 1; at < limit; at++) {
      const char = this.text.charCodeAt(at)
      if (char === BACKSLASH) at++
      else if (char === QUOTE) return at + 1
      else if (Number.isNaN(char)) throw new JsonFault(null)
    }
    return null
  }

  /** Reads a long string, with a yield to the event loop after every `PART` characters. */
  *#string(start: number): Steps<{ readonly value: string; readonly end: number }> {
    const parts: string[] = []
    let from = start + 1
    let escaped = from
    for (let at = from; ; at++) {
      const char = this.text.charCodeAt(at)
      if (char === QUOTE || (at >= from + PART && at >= escaped)) {
        parts.push(this.#parsed(from, at, '"', '"') as string)
        if (char === QUOTE) return { value: parts.join(''), end: at + 1 }
        from = at
        yield
      }
      if (char === BACKSLASH) {
        // An escape such as `\u00e9` must not be split between two pieces.
        if (this.text.charAt(at + 1) === 'u') escaped = at + 6
        at++
      } else if (Number.isNaN(char)) throw new JsonFault(null)
    }
  }

  #pastComma(at: number): number {
    if (this.text.charCodeAt(at) !== COMMA) throw this.#fault(at)
    return this.pastSpace(at + 1)
  }

  #parsed(start: number, end: number, open: string, close: string): unknown {
    const part = this.text.slice(start, end)
    try {
      const value = open === '' ? this.parse(part, this.#depth) : this.parse(open + part + close, this.#depth - 1)
      if ((this.#values += valuesIn(value)) > MOST.values)
        throw new TooManyMembers(MOST.values, 'values together', 'lists and objects')
      return value
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error
      const at = /position (\d+)/.exec(error.message)?.[1]
      throw at === undefined ? this.#fault(start) : this.#fault(start + Number(at) - open.length)
    }
  }

  #fault(at: number): JsonFault {
    return new JsonFault(at < this.text.length ? at : null)
  }
}

const [SPACE, NEWLINE, TAB, RETURN, COMMA, COLON, QUOTE, BACKSLASH] = [0x20, 0x0a, 0x09, 0x0d, 0x2c, 0x3a, 0x22, 0x5c] as const
const [BRACE, BRACE_END, BRACKET, BRACKET_END] = [0x7b, 0x7d, 0x5b, 0x5d] as const
/** Characters that may follow a number or a word. */
const ENDS: ReadonlySet<number> = new Set([SPACE, NEWLINE, TAB, RETURN, COMMA, BRACE_END, BRACKET_END])

// Writing.

/** Values up to this weight are written without a yield. Each character and each value weighs 1. */
const WRITTEN = 16 * 1024

/** Bytes copied between two yields to the event loop. */
const COPIED = 2 ** 20

/** Returns whether a value is too long to be written without a yield. */
export const isLong = (value: unknown): boolean => weightOf(value, 2 * WRITTEN) >= 2 * WRITTEN

/** Writes a value as `writeJson` does, with yields to the event loop in between. */
export function* writtenInSteps(value: unknown): Steps<Buffer> {
  const parts: Buffer[] = []
  yield* written(value, parts)
  return yield* joined(parts)
}

function* joined(parts: readonly Buffer[]): Steps<Buffer> {
  const whole = Buffer.allocUnsafe(parts.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  let pause = COPIED
  for (const part of parts) {
    if (at >= pause) {
      pause = at + COPIED
      yield
    }
    at += part.copy(whole, at)
  }
  return whole
}

function* written(value: unknown, parts: Buffer[]): Steps<void> {
  const put = (text: string) => void parts.push(Buffer.from(text))
  const isList = Array.isArray(value)
  if (typeof value === 'string') {
    put('"')
    for (let at = 0; at < value.length;) {
      const end = endOfPart(value, at + PART)
      put(JSON.stringify(value.slice(at, end)).slice(1, -1))
      at = end
      yield
    }
    put('"')
    return
  }
  if (!isList && !isPlain(value)) {
    put(writeJson(value))
    return
  }
  let isFirst = true
  const comma = () => {
    if (!isFirst) put(',')
    isFirst = false
  }
  let waiting: (readonly [key: string, value: unknown, text: string | undefined])[] = []
  let weight = 0
  const flush = () => {
    const text = writeJson(isList ? listOf(waiting.map(([, item, text]) => [item, text])) : objectOf(waiting)).slice(1, -1)
    waiting = []
    weight = 0
    if (text === '') return
    comma()
    put(text)
  }
  put(isList ? '[' : '{')
  for (const [key, item, text] of isList
    ? itemsOf(value)
    : writtenEntries(value).map(({ key, value: item, text }) => [key, item, text] as const)) {
    const own = weightOf(item, WRITTEN)
    if (own >= WRITTEN || weight >= WRITTEN) {
      flush()
      yield
    }
    if (own < WRITTEN) {
      waiting.push([key, item, text])
      weight += own + 1
    } else {
      comma()
      if (!isList) put(`${JSON.stringify(key)}:`)
      yield* written(item, parts)
    }
  }
  flush()
  put(isList ? ']' : '}')
}

/** Returns `end`, or the index after it if `end` would split a surrogate pair. */
const endOfPart = (text: string, end: number): number => {
  const before = text.charCodeAt(end - 1)
  return before >= 0xd800 && before <= 0xdbff ? end + 1 : end
}

/** Yields the items of a list one by one, because a list of all entries would take too much memory for millions of items. */
function* itemsOf(list: readonly unknown[]): Generator<readonly [key: string, value: unknown, text: string | undefined]> {
  for (const [index, item] of list.entries()) {
    const key = String(index)
    yield [key, item, numberText(list, key)]
  }
}

const isPlain = (value: unknown): value is object => {
  if (typeof value !== 'object' || value === null || 'toJSON' in value) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === Object.prototype || prototype === null
}
