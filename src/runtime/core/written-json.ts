/**
 * Keeps JSON as it was written. A JavaScript value rounds whole numbers beyond 2^53, writes `1.0` as `1`, and moves keys that look like
 * list indices to the front. `readJson` returns plain values, but attaches a note about the lost text to each object or list. `writeJson`
 * and `writtenEntries` read the note.
 *
 * The note is a property whose key is a symbol. Spreading (`{ ...value }`) copies it, `JSON.stringify` and `Object.keys` skip it, and
 * `structuredClone` drops it. A note applies only to numbers and keys that are still the same, so a changed copy is written with its
 * changes.
 */

/** A field of an object or an item of a list, with its original text. */
export interface WrittenEntry {
  /** The field's name, or the item's index. */
  readonly key: string
  readonly value: unknown
  /** The original text of a number, if JavaScript would write it differently; undefined for all other values. */
  readonly text: string | undefined
}

/** What the JavaScript value of an object or list loses of its text. */
interface Note {
  /** All keys of an object, in the order of the text. */
  readonly keys?: readonly string[]
  /** The texts of numbers, by field name or list index. */
  readonly numbers?: ReadonlyMap<string, string>
}

const NOTE = Symbol('written')

type Noted = object & { [NOTE]?: Note }

/**
 * Parses like `JSON.parse`, but `writeJson` writes the result with the numbers and the order of keys of the text. A text that is only a
 * number loses its digits.
 * @throws SyntaxError
 */
export function readJson(text: string): unknown {
  const value = JSON.parse(text) as unknown
  if (typeof value === 'object' && value !== null && MAY_DIFFER.test(text)) new Annotator(text).annotate(value)
  return value
}

/**
 * Writes like `JSON.stringify`, but with the numbers and the order of keys that `readJson` read.
 * @param indent spaces per level
 */
export function writeJson(value: unknown, indent = 0): string {
  const noted = new Set<object>()
  return findNoted(value, noted) ? written(value, indent, '\n', noted) : JSON.stringify(value, null, indent)
}

/** Returns an object's fields or a list's items in the order of the text that `readJson` read, with the original text of numbers. */
export function writtenEntries(container: object): WrittenEntry[] {
  const { keys: order, numbers } = (container as Noted)[NOTE] ?? {}
  const fields = container as Readonly<Record<string, unknown>>
  const keys =
    order === undefined
      ? Object.keys(container)
      : [...new Set([...order.filter((key) => Object.hasOwn(container, key)), ...Object.keys(container)])]
  return keys.map((key) => {
    const value = fields[key]
    const text = numbers?.get(key)
    return { key, value, text: text !== undefined && Object.is(Number(text), value) ? text : undefined }
  })
}

/** Returns the original text of one number in an object or list (`WrittenEntry.text`). */
export function numberText(container: object, key: string): string | undefined {
  const text = (container as Noted)[NOTE]?.numbers?.get(key)
  return text !== undefined && Object.is(Number(text), (container as Readonly<Record<string, unknown>>)[key]) ? text : undefined
}

/** Makes an object like `Object.fromEntries`, with a note: it is written with the entries in this order, and numbers with their `text`. */
export function objectOf(
  entries: Iterable<readonly [key: string, value: unknown, text?: string | undefined]>,
): Record<string, unknown> {
  const all = [...entries]
  const object: Record<string, unknown> = Object.fromEntries<unknown>(all as Iterable<readonly [string, unknown]>)
  const texts = new Map<string, string>()
  for (const [key, , text] of all) if (text !== undefined && !isUsual(text)) texts.set(key, text)
  note(object, all.some(([key]) => INDEX.test(key)) ? orderOf(all.map(([key]) => key)) : undefined, texts)
  return object
}

/** Makes a list of the values, with a note: numbers are written with their `text`. */
export function listOf(entries: Iterable<readonly [value: unknown, text?: string | undefined]>): unknown[] {
  const list: unknown[] = []
  const numbers = new Map<string, string>()
  for (const [value, text] of entries) {
    if (text !== undefined && !isUsual(text)) numbers.set(String(list.length), text)
    list.push(value)
  }
  note(list, undefined, numbers)
  return list
}

/**
 * Appends the items of `part` to `list`, with the texts of their numbers. `list` must not share its note with another list.
 * @returns the number of texts in the note of `list`
 */
export function append(list: unknown[], part: readonly unknown[]): number {
  const before = list.length
  for (const item of part) list.push(item)
  const numbers = ((list as Noted)[NOTE]?.numbers ?? new Map()) as Map<string, string>
  for (const [key, text] of (part as Noted)[NOTE]?.numbers ?? []) numbers.set(String(before + Number(key)), text)
  note(list, undefined, numbers)
  return numbers.size
}

/** Gives `copy` the note of `original`, so that numbers and keys that both have are written as in `original`. Returns `copy`. */
export function writtenLike<T extends object>(copy: T, original: object): T {
  const known = (original as Noted)[NOTE]
  if (known !== undefined) (copy as Noted)[NOTE] = known
  return copy
}

/** Whether the value, or any value inside it, has a note. */
export const isNoted = (value: unknown): boolean => findNoted(value, new Set())

/** Clones like `structuredClone`, and keeps the notes. */
export const cloned = <T>(value: T): T => deeplyWrittenLike(structuredClone(value), value)

/** Does what `writtenLike` does, also for all objects and lists inside the values that are at the same path in both. */
export function deeplyWrittenLike<T>(copy: T, original: unknown): T {
  const noted = new Set<object>()
  if (findNoted(original, noted)) noteLike(copy, original, noted)
  return copy
}

function noteLike(copy: unknown, original: unknown, noted: ReadonlySet<object>): void {
  if (typeof original !== 'object' || original === null || !noted.has(original)) return
  if (typeof copy !== 'object' || copy === null) return
  writtenLike(copy, original)
  for (const [key, inner] of Object.entries(original)) noteLike((copy as Readonly<Record<string, unknown>>)[key], inner, noted)
}

/**
 * Returns a copy in which `change` has replaced values at any depth. It is called with the value itself first. Where it returns another
 * value, the inside of that is not searched. Unchanged parts are written as in the original.
 */
export function mappedJson(value: unknown, change: (value: unknown) => unknown): unknown {
  const changed = change(value)
  if (changed !== value || typeof value !== 'object' || value === null) return changed
  if (Array.isArray(value))
    return writtenLike(
      value.map((item) => mappedJson(item, change)),
      value,
    )
  const fields = Object.entries(value).map(([key, inner]) => [key, mappedJson(inner, change)] as const)
  return writtenLike(Object.fromEntries(fields), value)
}

/**
 * Returns a value for comparison: equal results mean the same number. Whole numbers are compared with all their digits, other numbers as
 * doubles, because programs that forward JSON keep them so.
 * @param text the number's text in its `WrittenEntry`
 */
export function comparable(value: unknown, text: string | undefined): unknown {
  if (text === undefined || typeof value !== 'number') return value
  const isExact = Number.isFinite(value) && (!/^-?\d+$/.test(text) || BigInt(text) === wholeNumber(value))
  return isExact ? value : { number: text }
}

/** Returns the whole number that JavaScript writes for this value, with zeros instead of an exponent: 1e21 gives 1000... */
export function wholeNumber(value: number): bigint {
  const [mantissa = '', exponent = '0'] = String(value).split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  return BigInt(whole + fraction.padEnd(Number(exponent), '0'))
}

/** Returns JSON that is equal for values with the same meaning: with sorted keys and `comparable` numbers. */
export const comparableJson = (value: unknown): string => JSON.stringify(sorted(value, undefined))

function sorted(value: unknown, text: string | undefined): unknown {
  if (typeof value !== 'object' || value === null) return comparable(value, text)
  const entries = writtenEntries(value).map((entry) => [entry.key, sorted(entry.value, entry.text)] as const)
  if (Array.isArray(value)) return entries.map(([, item]) => item)
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)))
}

// Finds what the JavaScript value of a JSON text loses.

/** Matches texts that may lose something. Texts without a match need no note. A match inside a string only costs time. */
const MAY_DIFFER = /[\d.]{16}|\.\d*0(?!\d)|\d[eE]|-0|\.0{6}|"(?:\d|\\u003\d){1,10}"\s*:/

/** Matches keys that JavaScript moves to the front, in numeric order. */
const INDEX = /^(?:0|[1-9]\d{0,9})$/

const isUsual = (number: string): boolean => String(Number(number)) === number

/** Returns the distinct keys if a JavaScript object would have them in another order, else undefined. */
function orderOf(keys: readonly string[]): readonly string[] | undefined {
  if (!keys.some((key) => INDEX.test(key))) return undefined
  const order = [...new Set(keys)]
  const plain = Object.keys(Object.fromEntries(order.map((key) => [key, null])))
  return order.some((key, at) => key !== plain[at]) ? order : undefined
}

function note(container: object, keys: readonly string[] | undefined, numbers: ReadonlyMap<string, string>): void {
  if (keys === undefined && numbers.size === 0) return
  ;(container as Noted)[NOTE] = { ...(keys === undefined ? {} : { keys }), ...(numbers.size === 0 ? {} : { numbers }) }
}

/** The note of an object or list that is being read. */
class Draft {
  /** Keys of an object, in the order of the text. */
  readonly keys: string[] = []
  #name = ''
  #index = 0
  isKeyNext: boolean
  numbers: Map<string, string> = NO_TEXTS
  /** The objects and lists inside this one that need a note, by field name or list index. */
  inner: Map<string, Draft> = NO_DRAFTS
  order: readonly string[] | undefined

  constructor(readonly isList: boolean) {
    this.isKeyNext = !isList
  }

  get key(): string {
    return this.isList ? String(this.#index) : this.#name
  }

  get loses(): boolean {
    return this.numbers.size > 0 || this.inner.size > 0 || this.order !== undefined
  }

  name(key: string): void {
    this.keys.push(key)
    this.#name = key
    this.isKeyNext = false
    // If a key occurs twice, its last value counts.
    if (this.numbers.size > 0) this.numbers.delete(key)
    if (this.inner.size > 0) this.inner.delete(key)
  }

  next(): void {
    if (this.isList) this.#index++
    else this.isKeyNext = true
  }

  number(text: string): void {
    if (isUsual(text)) return
    if (this.numbers === NO_TEXTS) this.numbers = new Map()
    this.numbers.set(this.key, text)
  }

  add(inner: Draft): void {
    if (!inner.loses) return
    if (this.inner === NO_DRAFTS) this.inner = new Map()
    this.inner.set(this.key, inner)
  }
}

const NO_TEXTS = new Map<string, string>()
const NO_DRAFTS = new Map<string, Draft>()

/**
 * Makes the notes in one pass over a text that `JSON.parse` has accepted. It uses its own stack, because the text may nest deeper than
 * calls can.
 */
class Annotator {
  #at = 0

  constructor(private readonly text: string) {}

  annotate(root: object): void {
    const waiting: (readonly [unknown, Draft])[] = [[root, this.#draft()]]
    for (let each = waiting.pop(); each !== undefined; each = waiting.pop()) {
      const [value, draft] = each
      if (typeof value !== 'object' || value === null) continue
      note(value, draft.order, draft.numbers)
      for (const [key, inner] of draft.inner) waiting.push([(value as Readonly<Record<string, unknown>>)[key], inner])
    }
  }

  #draft(): Draft {
    const open: Draft[] = [new Draft(true)]
    for (; this.#at < this.text.length; this.#at++) {
      const draft = open.at(-1)!
      const char = this.text.charAt(this.#at)
      if (char === '"') this.#string(draft)
      else if (char === ',') draft.next()
      else if (char === '{' || char === '[') open.push(new Draft(char === '['))
      else if (char === '}' || char === ']') {
        draft.order = orderOf(draft.keys)
        open.pop()
        open.at(-1)!.add(draft)
      } else if (char === '-' || (char >= '0' && char <= '9')) draft.number(this.#number())
    }
    return open[0]!.inner.get('0') ?? new Draft(true)
  }

  /** Reads a string, and records it in the draft if it is a key. Stops at its last character. */
  #string(draft: Draft): void {
    const from = this.#at
    for (;;) {
      this.#at = this.text.indexOf('"', this.#at + 1)
      let before = this.#at - 1
      while (this.text.charAt(before) === '\\') before--
      if ((this.#at - before) % 2 === 1) break
    }
    if (draft.isKeyNext) draft.name(JSON.parse(this.text.slice(from, this.#at + 1)) as string)
  }

  /** Reads a number and returns its text. Stops at its last character. */
  #number(): string {
    const pattern = /[-+.\deE]+/y
    pattern.lastIndex = this.#at
    const [text = ''] = pattern.exec(this.text) ?? []
    this.#at += text.length - 1
    return text
  }
}

/** Whether the value, or any value inside it, has a note. Adds to `noted` every object and list with a note on it or inside. */
function findNoted(value: unknown, noted: Set<object>): boolean {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return false
  let isNoted = (value as Noted)[NOTE] !== undefined
  for (const inner of Array.isArray(value) ? (value as readonly unknown[]) : Object.values(value))
    if (typeof inner === 'object' && findNoted(inner, noted)) isNoted = true
  if (isNoted) noted.add(value)
  return isNoted
}

/** Writes a value as JSON. @param line a line break with the indentation of the line on which the value begins */
function written(value: unknown, indent: number, line: string, noted: ReadonlySet<object>): string {
  if (typeof value !== 'object' || value === null || !noted.has(value))
    return (JSON.stringify(value, null, indent) as string | undefined)?.replaceAll('\n', line) ?? 'null'
  const isList = Array.isArray(value)
  const inside = line + ' '.repeat(indent)
  const parts = writtenEntries(value)
    .filter((entry) => isList || !isLeftOut(entry.value))
    .map(({ key, value: inner, text }) => {
      const said = text ?? written(inner, indent, inside, noted)
      return isList ? said : `${JSON.stringify(key)}:${indent === 0 ? '' : ' '}${said}`
    })
  const [open, close] = isList ? ['[', ']'] : ['{', '}']
  return indent === 0 ? `${open}${parts.join(',')}${close}` : `${open}${inside}${parts.join(`,${inside}`)}${line}${close}`
}

const isLeftOut = (value: unknown): boolean => value === undefined || typeof value === 'function' || typeof value === 'symbol'
