/** `tojson` with provenance: the JSON text of a value, in which every string still knows where it comes from. */
import { Tracked } from '../text/tracked.js'
import type { Value } from './library.js'
import { isArray, isMapping, isNothing, isString, trackedOf, TruthValue } from './values.js'

export interface JsonStyle {
  /** Spaces per level; null: one line. */
  readonly indent: number | null
  /** Escape everything beyond ASCII. */
  readonly ascii: boolean
  readonly sorted: boolean
  /** Between items, and between key and value; null: Python's defaults. */
  readonly separators: readonly [string, string] | null
}

export const plainJson: JsonStyle = { indent: null, ascii: false, sorted: false, separators: null }

const ESCAPED = /["\\\u0000-\u001f]|[\ud800-\udfff]/gu // eslint-disable-line no-control-regex
const ESCAPED_ASCII = /["\\\u0000-\u001f]|[\u007f-\u{10ffff}]/gu // eslint-disable-line no-control-regex

const literal = (text: string) => Tracked.of(text, 'template')
const unit = (char: string) => '\\u' + char.charCodeAt(0).toString(16).padStart(4, '0')

/** Follows Python's json.dumps. @throws Error for functions */
export function trackedJson(value: Value, style: JsonStyle = plainJson, depth = 0): Tracked {
  if (isNothing(value)) return literal('null')
  if (isString(value)) return quoted(trackedOf(value), style.ascii)
  if (value instanceof TruthValue || typeof value.value === 'number')
    return literal(value instanceof TruthValue ? String(value.value) : value.toString())
  if (isArray(value))
    return bracketed(
      '[]',
      value.value.map((item) => trackedJson(item, style, depth + 1)),
      style,
      depth,
    )
  if (isMapping(value)) {
    const [, between] = separators(style)
    const entries = [...value.value]
    if (style.sorted) entries.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
    const parts = entries.map(([key, item]) =>
      Tracked.join([quoted(Tracked.of(key, 'unknown'), style.ascii), literal(between), trackedJson(item, style, depth + 1)]),
    )
    return bracketed('{}', parts, style, depth)
  }
  throw new Error(`${value.type} cannot be written as JSON`)
}

function separators({ separators: given, indent }: JsonStyle): readonly [string, string] {
  return given ?? [indent === null ? ', ' : ',', ': ']
}

function bracketed(brackets: '[]' | '{}', parts: readonly Tracked[], style: JsonStyle, depth: number): Tracked {
  const [open = '', close = ''] = brackets
  if (parts.length === 0) return literal(brackets)
  const [item] = separators(style)
  const line = (level: number) => (style.indent === null ? '' : '\n' + ' '.repeat(style.indent * level))
  const rest = parts.flatMap((part, index) => (index === 0 ? [part] : [literal(item + line(depth + 1)), part]))
  return Tracked.join([literal(open + line(depth + 1)), ...rest, literal(line(depth) + close)])
}

function quoted(text: Tracked, ascii: boolean): Tracked {
  const body = text.replace(ascii ? ESCAPED_ASCII : ESCAPED, (char) => {
    const short = JSON.stringify(char).slice(1, -1)
    return short.startsWith('\\') ? short : Array.from({ length: char.length }, (_, at) => unit(char.charAt(at))).join('')
  })
  return Tracked.join([literal('"'), body, literal('"')])
}
