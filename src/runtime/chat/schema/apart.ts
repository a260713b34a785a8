/** For oneOf: decides whether a value that the grammar writes for one alternative may also satisfy another. */
import { definedFields } from '../../core/json.js'
import { compareNumbers, isSchemaNumber } from './exact.js'
import {
  alternatives,
  canonical,
  isSchema,
  listed,
  refuse,
  resolve,
  typesOf,
  type AnySchema,
  type Plain,
  type Schema,
  type SchemaRoot,
} from './merge.js'

/** The most levels of nesting at which two schemas are compared. */
const DEEPEST = 6

/**
 * Returns true when no value that the grammar writes for `written` can satisfy `other`: their types, values or ranges differ, or one
 * requires a property that the other forbids or restricts differently. Returns false when it cannot tell.
 * The grammar writes only properties that a schema names, unless the schema allows others or `isOpen` (the schema is only one of several
 * requirements).
 */
function areApart(root: SchemaRoot, written: AnySchema, other: AnySchema, isOpen: boolean, depth = 0): boolean {
  if (depth > DEEPEST) return false
  root.work.spend(1, '#')
  const plain = (schema: AnySchema): readonly Plain[] => {
    const known = typeof schema === 'object' ? root.plains.get(schema) : undefined
    if (known !== undefined) return known
    const found = alternatives(root, schema, '#').flatMap((each) =>
      each['$ref'] === undefined ? [each] : depthless(root, each['$ref'] as string),
    )
    if (typeof schema === 'object') root.plains.set(schema, found)
    return found
  }
  return plain(written).every((a) => plain(other).every((b) => plainApart(root, a, b, isOpen, depth)))
}

/** Returns the alternatives behind a reference. An alternative that is itself a reference counts as any value. */
function depthless(root: SchemaRoot, reference: string): readonly Plain[] {
  return alternatives(root, resolve(root, reference, '#'), '#').map((each) => (each['$ref'] === undefined ? each : {}))
}

function plainApart(root: SchemaRoot, a: Plain, b: Plain, isOpen: boolean, depth: number): boolean {
  const [ours, theirs] = [listed(a), listed(b)]
  if (ours !== null && theirs !== null) {
    const known = new Set(theirs.map(canonical))
    return !ours.some((value) => known.has(canonical(value)))
  }
  const [types, others] = [kindsOf(a), kindsOf(b)]
  if (types !== null && others !== null && !types.some((type) => others.includes(type))) return true
  if (types?.length !== 1 || others?.length !== 1) return false
  if (types[0] === 'number') return rangeApart(a, b) || rangeApart(b, a)
  if (types[0] === 'string') return lengthApart(a, b) || lengthApart(b, a)
  return types[0] === 'object' && objectsApart(root, a, b, isOpen, depth)
}

/** Returns the types of a schema's values, with integers counted as numbers; null when any type is allowed. */
function kindsOf(schema: Plain): readonly string[] | null {
  const values = listed(schema)
  if (values !== null) return [...new Set(values.map(kindOf))]
  return typesOf(schema)?.map((type) => (type === 'integer' ? 'number' : type)) ?? null
}

function kindOf(value: unknown): string {
  if (value === null) return 'null'
  return isSchemaNumber(value) ? 'number' : Array.isArray(value) ? 'array' : typeof value
}

const number = (value: unknown, missing: number): number => (typeof value === 'number' ? value : missing)

/** Whether an upper bound of `a` excludes a lower bound of `b`. */
function rangeApart(a: Schema, b: Schema): boolean {
  const isBelow = (upper: unknown, lower: unknown, isOpen: boolean) => {
    if (!isSchemaNumber(upper) || !isSchemaNumber(lower)) return false
    const order = compareNumbers(upper, lower)
    return order < 0 || (order === 0 && isOpen)
  }
  return (
    isBelow(a['maximum'], b['minimum'], false) ||
    isBelow(a['maximum'], b['exclusiveMinimum'], true) ||
    isBelow(a['exclusiveMaximum'], b['minimum'], true) ||
    isBelow(a['exclusiveMaximum'], b['exclusiveMinimum'], true)
  )
}

const lengthApart = (a: Schema, b: Schema): boolean => number(a['maxLength'], Infinity) < number(b['minLength'], 0)

function objectsApart(root: SchemaRoot, a: Schema, b: Schema, isOpen: boolean, depth: number): boolean {
  const [ours, theirs] = [a, b].map(({ properties }) => (isSchema(properties) ? properties : {})) as [Schema, Schema]
  const [needed, wanted] = [a, b].map(({ required }) => (Array.isArray(required) ? (required as readonly string[]) : []))
  const isClosed =
    !isOpen && (a['additionalProperties'] === false || (a['additionalProperties'] === undefined && a['properties'] !== undefined))
  if (isClosed && wanted!.some((name) => !Object.hasOwn(ours, name) && !needed!.includes(name))) return true
  return needed!.some((name) => {
    const own = (Object.hasOwn(ours, name) ? ours[name] : true) as AnySchema
    const its = (Object.hasOwn(theirs, name) ? theirs[name] : (b['additionalProperties'] ?? true)) as AnySchema
    return its === false || areApart(root, own, its, false, depth + 1)
  })
}

/** Refuses a oneOf whose alternatives may overlap. @throws KvfoldError engine/bad-grammar when one value may satisfy two of them */
export function refuseOverlap(root: SchemaRoot, schema: Schema, path: string, isPart: boolean): void {
  // `unevaluatedProperties` depends on the properties of the chosen alternative. So it is not part of `rest`.
  const { oneOf, unevaluatedProperties, ...rest } = schema
  const choices = oneOf as readonly AnySchema[]
  const beside = Object.keys(schema).length === 1
  const whole = (choice: AnySchema): AnySchema =>
    beside ? choice : { allOf: [rest, choice], ...definedFields({ unevaluatedProperties }) }
  const wholes = choices.map(whole)
  wholes.forEach((a, i) => {
    wholes.forEach((b, j) => {
      if (i !== j && !areApart(root, a, b, isPart))
        refuse(
          `has alternatives that the same value may satisfy (${i} and ${j}), and a grammar cannot allow exactly one of them; use anyOf`,
          path,
        )
    })
  })
}
