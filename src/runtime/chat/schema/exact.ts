/**
 * Exact numbers in a schema: const and enum values keep their text, and bounds beyond 2^53 keep all digits. JavaScript would change both.
 */
import { comparable, isNoted, objectOf, wholeNumber, writtenEntries } from '../../core/written-json.js'

/** A number whose text a JavaScript number would not keep. */
export class ExactNumber {
  /** The nearest JavaScript number. */
  readonly value: number

  constructor(readonly text: string) {
    this.value = Number(text)
  }

  /** The number as an integer with all digits; null when it is not written as an integer. */
  get whole(): bigint | null {
    return /^-?\d+$/.test(this.text) ? BigInt(this.text) : null
  }

  /** Returns a form for `JSON.stringify` in which equal numbers have equal text. */
  toJSON(): unknown {
    return comparable(this.value, this.text)
  }
}

/** A number in a schema. */
export type SchemaNumber = number | ExactNumber

export const isSchemaNumber = (value: unknown): value is SchemaNumber =>
  value instanceof ExactNumber || (typeof value === 'number' && Number.isFinite(value))

/** Returns the nearest JavaScript number. */
export const nearest = (number: SchemaNumber): number => (typeof number === 'number' ? number : number.value)

/** Returns a negative number when `a` is smaller than `b`, 0 when they are equal, else a positive one. */
export function compareNumbers(a: SchemaNumber, b: SchemaNumber): number {
  const [one, other] = [wholeOf(a), wholeOf(b)]
  if (one === null || other === null) return nearest(a) - nearest(b)
  return one < other ? -1 : one > other ? 1 : 0
}

/** Returns an integer with all its digits; null when the number is not an integer. */
export const wholeOf = (number: SchemaNumber): bigint | null =>
  typeof number === 'number' ? (Number.isInteger(number) ? wholeNumber(number) : null) : number.whole

export const negative = (number: SchemaNumber): SchemaNumber =>
  typeof number === 'number' ? -number : new ExactNumber(number.text.startsWith('-') ? number.text.slice(1) : `-${number.text}`)

/** What a JSON value within a schema is: a schema, a mapping from names to schemas, or a plain value (of const or enum). */
type Part = 'schema' | 'names' | 'value'

const PARTS: Readonly<Record<string, Part>> = {
  ...{ const: 'value', enum: 'value' },
  ...{ properties: 'names', patternProperties: 'names', $defs: 'names', definitions: 'names' },
}
const BOUNDS = new Set(['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'])
/** The longest bound that is kept exactly, in digits. Longer ones serve no purpose and are slow to compare. */
const MOST_DIGITS = 400

/** Returns the schema with exact numbers, its properties in the order in which they were written. */
export const exactSchema = <T>(schema: T): T => (isNoted(schema) ? (exactIn(schema, 'schema') as T) : schema)

function exactIn(value: unknown, part: Part): unknown {
  if (typeof value !== 'object' || value === null) return value
  const isList = Array.isArray(value)
  const entries = writtenEntries(value).map(({ key, value: inner, text }) => {
    const own = part === 'value' || isList ? part : part === 'names' ? 'schema' : (PARTS[key] ?? 'schema')
    if (text === undefined) return [key, exactIn(inner, own)] as const
    const isBound = part === 'schema' && BOUNDS.has(key) && text.length <= MOST_DIGITS && comparable(inner, text) !== inner
    return [key, own === 'value' || isBound ? new ExactNumber(text) : inner] as const
  })
  return isList ? entries.map(([, inner]) => inner) : objectOf(entries)
}

/**
 * Returns a value or schema with the nearest JavaScript numbers. A number too large for JavaScript becomes the largest finite one, because
 * a schema check does not accept Infinity.
 */
export function roundedNumbers(value: unknown): unknown {
  if (value instanceof ExactNumber) return Math.max(-Number.MAX_VALUE, Math.min(value.value, Number.MAX_VALUE))
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) return value.map(roundedNumbers)
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, roundedNumbers(inner)]))
}

/** Keywords that may refuse more values once the patterns inside them are dropped. */
const REFUSING = ['not', 'if', 'then', 'else', 'oneOf']

/**
 * Returns the schema without regular expressions, for type checks: an expression that backtracks might run for ever. Where expressions
 * choose properties, any further property is accepted. Keywords that would refuse more values without their patterns are dropped too.
 */
export function withoutPatterns(value: unknown, part: Part = 'schema'): unknown {
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber || part === 'value') return value
  if (Array.isArray(value)) return value.map((item) => withoutPatterns(item, part))
  if (part === 'names') return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withoutPatterns(inner)]))
  const schema = value as Readonly<Record<string, unknown>>
  const refuses = REFUSING.some((key) => mayHavePattern(schema[key]))
  const dropped = [
    'pattern',
    ...('patternProperties' in schema ? ['patternProperties', 'additionalProperties'] : []),
    ...(refuses ? REFUSING : []),
  ]
  const { oneOf, anyOf = oneOf } = schema
  return Object.fromEntries(
    Object.entries({ ...schema, ...(refuses && anyOf !== undefined && { anyOf }) })
      .filter(([key]) => !dropped.includes(key))
      .map(([key, inner]) => [key, withoutPatterns(inner, PARTS[key] ?? 'schema')]),
  )
}

const mayHavePattern = (part: unknown): boolean => part !== undefined && /"(?:pattern|\$ref)/.test(JSON.stringify(part))
