/** Checks data from outside against a schema. Returns the value with its defaults, or the faults in plain words. */
import Type, { type Static, type TSchema } from 'typebox'
import { Check, Clean, Default, Errors } from 'typebox/value'
import { invariant } from './errors.js'
import { deeplyWrittenLike, numberText, writeJson } from './written-json.js'

/** One fault of a value. */
export interface Fault {
  /** The path from the whole value to the fault: field names and list indices. */
  readonly path: readonly string[]
  /** The value at the path as JSON, with its original digits; undefined if there is no value. */
  readonly given: string | undefined
  /** The broken rule, for example `must be a whole number` or `is missing`. */
  readonly message: string
  /** For an object with unknown fields: their names, and the names of the known fields. */
  readonly unknown?: { readonly names: readonly string[]; readonly known: readonly string[] }
}

export type Checked<T> =
  { readonly ok: true; readonly value: T } | { readonly ok: false; readonly faults: readonly [Fault, ...Fault[]] }

/** An object type that refuses unknown fields. Objects made by `Type.Object` drop them instead. */
export const strict = <P extends Parameters<typeof Type.Object>[0]>(properties: P) =>
  Type.Object(properties, { additionalProperties: false })

export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])

/** A string with at least one character. */
export const Text = Type.String({ minLength: 1 })

/**
 * Checks a value. Returns a copy in which missing fields have their defaults. Given values stay as they are, with the notes of `readJson`
 * about their text. Faults are in the order of the schema's fields.
 */
export function checked<T extends TSchema>(schema: T, given: unknown): Checked<Static<T>> {
  const value = deeplyWrittenLike(Default(schema, structuredClone(given)), given)
  if (Check(schema, value)) return { ok: true, value: deeplyWrittenLike(Clean(schema, value) as Static<T>, given) }
  return { ok: false, faults: faultsOf(schema, value) }
}

/**
 * Returns a fault as one clause: the path, the broken rule, and the given value.
 * @param top the name for the value as a whole
 */
export function inWords({ path, message, given }: Fault, top = 'it'): string {
  const where = path.length === 0 ? top : path.join('.')
  return `${where}: ${message}${given === undefined ? '' : `, not ${brief(given)}`}`
}

/** Returns all faults in one sentence, without a full stop. */
export const allInWords = (faults: readonly Fault[], top?: string): string =>
  faults.map((fault) => inWords(fault, top)).join('; ')

function faultsOf(schema: TSchema, value: unknown): [Fault, ...Fault[]] {
  const errors = Errors(schema, value)
  // Leave out the faults of a union's single alternatives. They are reported together below.
  const inside = errors.filter(
    ({ keyword, schemaPath }) => !['boolean', 'anyOf'].includes(keyword) && !schemaPath.includes('/anyOf/'),
  )
  const faults = new Map<string, Fault>()
  for (const { keyword, instancePath, schemaPath, params } of inside) {
    const path = namesIn(instancePath)
    const at = (names: readonly string[], message: string, more: Partial<Fault> = {}): void => {
      const place = names.join('/')
      if (!faults.has(place)) faults.set(place, { path: names, given: textAt(value, names), message, ...more })
    }
    const figures = params as Readonly<Record<string, unknown>>
    if (keyword === 'required') for (const name of figures['requiredProperties'] as string[]) at([...path, name], 'is missing')
    else if (keyword === 'additionalProperties') {
      const names = figures['additionalProperties'] as string[]
      const known = Object.keys(schemaAt(schema, schemaPath)['properties'] ?? {})
      const message = `has unknown fields: ${names.join(', ')}; it may have: ${known.join(', ') || 'none'}`
      faults.set(`${path.join('/')} unknown`, { path, given: undefined, message, unknown: { names, known } })
    } else at(path, phrase(keyword, figures))
  }
  const forms = new Set(errors.flatMap(({ schemaPath }) => /^(.*?)\/anyOf\//.exec(schemaPath)?.[1] ?? []))
  for (const form of forms) {
    const own = errors.filter(({ schemaPath }) => schemaPath.startsWith(`${form}/anyOf/`))
    const [nearest] = own.map(({ instancePath }) => namesIn(instancePath)).sort((a, b) => a.length - b.length)
    const flat = own.every(({ instancePath, keyword }) => keyword === 'type' && namesIn(instancePath).length === nearest?.length)
    const message = flat
      ? `must be ${[...new Set(own.map(({ params }) => kindOf(params)))].join(' or ')}`
      : 'has none of its allowed forms'
    const path = nearest ?? []
    if (!faults.has(path.join('/'))) faults.set(path.join('/'), { path, given: textAt(value, path), message })
  }
  const order = orderOf(schema)
  const rank = ({ path, unknown }: Fault): number => (unknown === undefined ? order.indexOf(path[0] ?? '') : order.length)
  const [first, ...rest] = [...faults.values()].sort((a, b) => rank(a) - rank(b))
  invariant(first !== undefined, 'a value fails its schema, but the check names no fault')
  return [first, ...rest]
}

const KINDS: Readonly<Record<string, string>> = {
  string: 'a string',
  integer: 'a whole number',
  number: 'a number',
  boolean: 'true or false',
  object: 'an object',
  array: 'a list',
  null: 'null',
}

/** Returns the type that an error asks for, in words. */
const kindOf = (params: object): string =>
  'type' in params ? (KINDS[String(params.type)] ?? String(params.type)) : 'something else'

function phrase(keyword: string, figures: Readonly<Record<string, unknown>>): string {
  const { limit, allowedValues, allowedValue } = figures
  switch (keyword) {
    case 'type':
      return `must be ${kindOf(figures)}`
    case 'enum':
      return `must be one of ${(allowedValues as unknown[]).map((value) => JSON.stringify(value)).join(', ')}`
    case 'const':
      return `must be ${JSON.stringify(allowedValue)}`
    case 'minimum':
      return `must be at least ${String(limit)}`
    case 'maximum':
      return `must be at most ${String(limit)}`
    case 'exclusiveMinimum':
      return `must be more than ${String(limit)}`
    case 'exclusiveMaximum':
      return `must be less than ${String(limit)}`
    case 'minLength':
      return limit === 1 ? 'must not be empty' : `must have at least ${String(limit)} characters`
    case 'minItems':
      return limit === 1 ? 'must not be empty' : `must have at least ${String(limit)} entries`
    case 'maxItems':
      return `must have at most ${String(limit)} entries`
    case 'uniqueItems':
      return 'must not have a value twice'
    default:
      return `does not fit (${keyword})`
  }
}

const namesIn = (pointer: string): string[] =>
  pointer
    .split('/')
    .slice(1)
    .map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'))

const valueAt = (value: unknown, path: readonly string[]): unknown =>
  path.reduce<unknown>((at, name) => (typeof at === 'object' && at !== null ? at[name as keyof typeof at] : undefined), value)

/** Returns the value at the path as JSON; undefined when there is none. */
function textAt(value: unknown, path: readonly string[]): string | undefined {
  const [holder, found] = [valueAt(value, path.slice(0, -1)), valueAt(value, path)]
  if (found === undefined) return undefined
  const digits = typeof holder === 'object' && holder !== null ? numberText(holder, path.at(-1) ?? '') : undefined
  return digits ?? writeJson(found)
}

const schemaAt = (schema: TSchema, pointer: string): Readonly<Record<string, unknown>> =>
  valueAt(schema, namesIn(pointer)) as Readonly<Record<string, unknown>>

const orderOf = (schema: TSchema): string[] => Object.keys((schema as { readonly properties?: object }).properties ?? {})

/** Cuts a long text off after 60 characters. */
const brief = (text: string): string => (text.length > 60 ? `${text.slice(0, 60)}...` : text)
