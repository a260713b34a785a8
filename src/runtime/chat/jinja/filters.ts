/** Jinja filters: versions of the library's filters that keep the origin of text, and filters that the library lacks. */
import { Tracked } from '../tracked.js'
import {
  ArrayValue,
  capitalize,
  FunctionValue,
  IntegerValue,
  isArray,
  isMapping,
  isNothing,
  isString,
  join,
  NullValue,
  replace,
  strip,
  title,
  trackedOf,
  TrackedString,
  TruthValue,
  UndefinedValue,
  type Value,
} from './values.js'

/**
 * Applies a filter. Returns null when the library's own filter does the job.
 * @throws Error on wrong operands, worded for the author of the template
 */
export function applyFilter(
  name: string,
  operand: Value,
  args: readonly Value[],
  named: ReadonlyMap<string, Value>,
): Value | null {
  const argument = (index: number, key: string): Value | undefined => args[index] ?? named.get(key)
  const text = (made: Tracked) => new TrackedString(made)
  switch (name) {
    case 'selectattr':
    case 'rejectattr':
    case 'select':
    case 'reject':
      return isNothing(operand) ? new ArrayValue([]) : null
    case 'tojson':
      return text(trackedJson(operand, jsonStyle(argument(0, 'indent'), named)))
    case 'string':
      return isString(operand) ? operand : text(textOf(operand))
    case 'join':
      return isArray(operand)
        ? text(
            join(
              trackedOf(argument(0, 'd') ?? named.get('separator') ?? text(Tracked.empty)),
              new ArrayValue(operand.value.map((item) => text(textOf(item)))),
            ),
          )
        : null
    case 'items':
      if (operand instanceof UndefinedValue) return new ArrayValue([])
      return isMapping(operand)
        ? new ArrayValue([...operand.value].map(([key, value]) => new ArrayValue([text(Tracked.of(key, 'unknown')), value])))
        : null
    case 'dictsort':
      return isMapping(operand) && args.length + named.size === 0 ? sortedPairs(operand.value) : null
    case 'default':
    case 'd': {
      const truthy = argument(1, 'boolean')?.__bool__().value === true && !operand.__bool__().value
      return operand instanceof UndefinedValue || truthy
        ? (args[0] ?? named.get('default_value') ?? text(Tracked.empty))
        : operand
    }
    case 'count':
    case 'length':
      if (isArray(operand)) return new IntegerValue(operand.value.length)
      if (isMapping(operand)) return new IntegerValue(operand.value.size)
      if (operand instanceof UndefinedValue) return new IntegerValue(0)
      return isString(operand) ? new IntegerValue(operand.value.length) : null
    case 'min':
    case 'max':
      return isArray(operand) ? extreme(operand.value, name) : null
    case 'list':
      if (operand instanceof UndefinedValue) return new ArrayValue([])
      return isString(operand) ? new ArrayValue(Array.from(operand.value, (char) => text(Tracked.of(char, 'unknown')))) : null
    case 'map':
      if (isNothing(operand)) return new ArrayValue([])
      return isArray(operand) && args.length > 0 ? new ArrayValue(operand.value.map((item) => mapped(item, args, named))) : null
    default:
      return isString(operand) || OF_ANY_VALUE.has(name) ? textFilter(name, textOf(operand), argument) : null
  }
}

/**
 * Filters that accept a value of any type and use its text, as in Jinja2. Tool schemas may have lists, or nothing, where templates expect
 * text.
 */
const OF_ANY_VALUE = new Set(['trim', 'upper', 'lower', 'capitalize', 'title', 'replace'])

function textFilter(name: string, text: Tracked, argument: (index: number, key: string) => Value | undefined): Value | null {
  switch (name) {
    case 'trim': {
      const set = argument(0, 'chars')
      return new TrackedString(strip(text, 'both', set !== undefined && isString(set) ? set.value : undefined))
    }
    case 'upper':
      return new TrackedString(text.mapCase((part) => part.toUpperCase()))
    case 'lower':
      return new TrackedString(text.mapCase((part) => part.toLowerCase()))
    case 'capitalize':
      return new TrackedString(capitalize(text))
    case 'title':
      return new TrackedString(title(text))
    case 'replace':
      return new TrackedString(replace(text, [argument(0, 'old'), argument(1, 'new'), argument(2, 'count')]))
    case 'indent':
      return new TrackedString(indent(text, argument(0, 'width'), argument(1, 'first'), argument(2, 'blank')))
    default:
      return null
  }
}

/** Applies a filter to one list item, for `map('tojson')` and `map('trim')`. */
function mapped(item: Value, [filter, ...args]: readonly Value[], named: ReadonlyMap<string, Value>): Value {
  const name = filter === undefined ? '' : String(filter.value)
  const made = applyFilter(name, item, args, named)
  if (made === null) throw new Error(`map() does not know the filter ${name}`)
  return made
}

function indent(text: Tracked, width: Value | undefined, first: Value | undefined, blank: Value | undefined): Tracked {
  const wide = typeof width?.value === 'number' ? width.value : 4
  const padding = Tracked.of(width !== undefined && isString(width) ? width.value : ' '.repeat(wide), 'template')
  const parts: Tracked[] = []
  for (const { 0: line, index } of text.value.matchAll(/[^\n]*(?:\n|$)/g)) {
    const empty = line === '' || line === '\n'
    if (index === 0 ? first?.__bool__().value === true : !empty || blank?.__bool__().value === true) parts.push(padding)
    parts.push(text.slice(index, index + line.length))
  }
  return Tracked.join(parts)
}

/** Sorts a mapping's pairs by key, ignoring case. If all keys are whole numbers, sorts by number. */
function sortedPairs(mapping: ReadonlyMap<string, Value>): Value {
  const numeric = [...mapping.keys()].every((key) => /^-?\d+$/.test(key))
  const order = (a: string, b: string) => (numeric ? Number(a) - Number(b) : a.toLowerCase() < b.toLowerCase() ? -1 : 1)
  const pairs = [...mapping].sort(([a], [b]) => order(a, b))
  const keyed = (key: string) => (numeric ? new IntegerValue(Number(key)) : new TrackedString(Tracked.of(key, 'unknown')))
  return new ArrayValue(pairs.map(([key, value]) => new ArrayValue([keyed(key), value])))
}

function extreme(items: readonly Value[], which: 'min' | 'max'): Value {
  const ordered = [...items].sort((a, b) => (a.value === b.value ? 0 : (a.value ?? 0) < (b.value ?? 0) ? -1 : 1))
  return (which === 'min' ? ordered[0] : ordered.at(-1)) ?? new UndefinedValue()
}

function jsonStyle(indent: Value | undefined, named: ReadonlyMap<string, Value>): JsonStyle {
  const separators = named.get('separators')
  const [item, key] = separators !== undefined && isArray(separators) ? separators.value : []
  return {
    ...plainJson,
    indent: typeof indent?.value === 'number' ? indent.value : null,
    ascii: named.get('ensure_ascii')?.__bool__().value === true,
    sorted: named.get('sort_keys')?.__bool__().value === true,
    separators: item !== undefined && key !== undefined && isString(item) && isString(key) ? [item.value, key.value] : null,
  }
}

/** Returns the text that the template prints for a value. */
export function textOf(value: Value): Tracked {
  if (value instanceof UndefinedValue) return Tracked.empty
  return isString(value) ? trackedOf(value) : pythonic(value)
}

/** Writes a value as Python's str() does inside a list or mapping: strings quoted, None, True, False. */
function pythonic(value: Value): Tracked {
  const literal = (text: string) => Tracked.of(text, 'template')
  if (isString(value)) {
    const quote = value.value.includes("'") && !value.value.includes('"') ? '"' : "'"
    const body = trackedOf(value).replace(/[\\'\n\r\t]/g, (char) =>
      char === "'" ? (quote === "'" ? "\\'" : char) : JSON.stringify(char).slice(1, -1),
    )
    return Tracked.join([literal(quote), body, literal(quote)])
  }
  if (isNothing(value)) return literal('None')
  if (value instanceof TruthValue) return literal(value.value ? 'True' : 'False')
  const list = (parts: Tracked[]) => parts.flatMap((part, index) => (index === 0 ? [part] : [literal(', '), part]))
  if (isArray(value)) return Tracked.join([literal('['), ...list(value.value.map(pythonic)), literal(']')])
  if (isMapping(value)) {
    const entries = [...value.value].map(([key, item]) =>
      Tracked.join([pythonic(new TrackedString(Tracked.of(key, 'unknown'))), literal(': '), pythonic(item)]),
    )
    return Tracked.join([literal('{'), ...list(entries), literal('}')])
  }
  return trackedOf(value)
}

// The filter `tojson`: JSON in which every string keeps its origin.

export interface JsonStyle {
  /** Spaces of indent per level; null: all on one line. */
  readonly indent: number | null
  /** Whether characters beyond ASCII are escaped. */
  readonly ascii: boolean
  readonly sorted: boolean
  /** The text between two items, and the text between key and value. Null: Python's defaults. */
  readonly separators: readonly [string, string] | null
}

export const plainJson: JsonStyle = { indent: null, ascii: false, sorted: false, separators: null }

const ESCAPED = /["\\\u0000-\u001f]|[\ud800-\udfff]/gu // eslint-disable-line no-control-regex
const ESCAPED_ASCII = /["\\\u0000-\u001f]|[\u007f-\u{10ffff}]/gu // eslint-disable-line no-control-regex

const literal = (text: string) => Tracked.of(text, 'template')
const QUOTE = literal('"')
const unit = (char: string) => '\\u' + char.charCodeAt(0).toString(16).padStart(4, '0')

/** Writes a value as JSON, as Python's json.dumps does. @throws Error for values that JSON cannot hold, such as functions */
export function trackedJson(value: Value, style: JsonStyle = plainJson): Tracked {
  const parts: Tracked[] = []
  write(value, style, 0, parts)
  return Tracked.join(parts)
}

/** Appends the JSON of a value to `parts`. The caller joins them once at the end, because a value may have thousands of parts. */
function write(value: Value, style: JsonStyle, depth: number, parts: Tracked[]): void {
  if (isNothing(value)) parts.push(literal('null'))
  else if (isString(value)) quote(trackedOf(value), style.ascii, parts)
  else if (value instanceof TruthValue || typeof value.value === 'number')
    parts.push(literal(value instanceof TruthValue ? String(value.value) : value.toString()))
  else if (isArray(value))
    bracket('[]', value.value, style, depth, parts, (item) => {
      write(item, style, depth + 1, parts)
    })
  else if (isMapping(value)) {
    const between = literal(separators(style)[1])
    const entries = [...value.value]
    if (style.sorted) entries.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
    bracket('{}', entries, style, depth, parts, ([key, item]) => {
      quote(Tracked.of(key, 'unknown'), style.ascii, parts)
      parts.push(between)
      write(item, style, depth + 1, parts)
    })
  } else throw new Error(`${value.type} cannot be written as JSON`)
}

function separators({ separators: given, indent }: JsonStyle): readonly [string, string] {
  return given ?? [indent === null ? ', ' : ',', ': ']
}

function bracket<T>(
  ...[brackets, items, style, depth, parts, writeItem]: [
    brackets: '[]' | '{}',
    items: readonly T[],
    style: JsonStyle,
    depth: number,
    parts: Tracked[],
    writeItem: (item: T) => void,
  ]
): void {
  const [open = '', close = ''] = brackets
  const line = (level: number) => (style.indent === null ? '' : '\n' + ' '.repeat(style.indent * level))
  const between = literal(separators(style)[0] + line(depth + 1))
  parts.push(literal(items.length === 0 ? brackets : open + line(depth + 1)))
  for (const [index, item] of items.entries()) {
    if (index > 0) parts.push(between)
    writeItem(item)
  }
  if (items.length > 0) parts.push(literal(line(depth) + close))
}

function quote(text: Tracked, ascii: boolean, parts: Tracked[]): void {
  const body = text.replace(ascii ? ESCAPED_ASCII : ESCAPED, (char) => {
    const short = JSON.stringify(char).slice(1, -1)
    return short.startsWith('\\') ? short : Array.from({ length: char.length }, (_, at) => unit(char.charAt(at))).join('')
  })
  parts.push(QUOTE, body, QUOTE)
}

// Python's list methods that templates call: append, extend, pop, insert, index, count. The first four change the list itself.

/** Returns the list method of this name; null for any other name. */
export function listMethod(items: Value[], name: string): Value | null {
  switch (name) {
    case 'append':
      return new FunctionValue(([item]) => {
        if (item !== undefined) items.push(item)
        return new NullValue()
      })
    case 'extend':
      return new FunctionValue(([more]) => {
        if (more !== undefined && isArray(more)) items.push(...more.value)
        return new NullValue()
      })
    case 'pop':
      return new FunctionValue(
        ([index]) => items.splice(typeof index?.value === 'number' ? index.value : -1, 1)[0] ?? new UndefinedValue(),
      )
    case 'insert':
      return new FunctionValue(([index, item]) => {
        if (item !== undefined && typeof index?.value === 'number') items.splice(index.value, 0, item)
        return new NullValue()
      })
    case 'index':
      return new FunctionValue(([item]) => new IntegerValue(items.findIndex(({ value }) => value === item?.value)))
    case 'count':
      return new FunctionValue(([item]) => new IntegerValue(items.filter(({ value }) => value === item?.value).length))
    default:
      return null
  }
}

// Python's strftime in the C locale, for templates that print the date.

const MONTHS = 'January February March April May June July August September October November December'.split(' ')
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ')
const two = (number: number) => String(number).padStart(2, '0')

/** Formats a date in local time. Unknown directives are left in the text. */
export function strftime(date: Date, format: string): string {
  const month = MONTHS[date.getMonth()] ?? ''
  const day = DAYS[date.getDay()] ?? ''
  const parts: Readonly<Record<string, string>> = {
    Y: String(date.getFullYear()),
    y: two(date.getFullYear() % 100),
    m: two(date.getMonth() + 1),
    d: two(date.getDate()),
    e: String(date.getDate()).padStart(2, ' '),
    B: month,
    b: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    H: two(date.getHours()),
    I: two(((date.getHours() + 11) % 12) + 1),
    p: date.getHours() < 12 ? 'AM' : 'PM',
    M: two(date.getMinutes()),
    S: two(date.getSeconds()),
    '%': '%',
  }
  return format.replace(/%-?(.)/g, (directive, letter: string) => {
    const part = parts[letter]
    if (part === undefined) return directive
    return directive.startsWith('%-') ? part.replace(/^0(?=.)/, '') : part
  })
}
