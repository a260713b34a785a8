/**
 * Reduces a JSON schema to plain alternatives: follows references, merges allOf, splits anyOf and oneOf. Refuses keywords that no grammar
 * can express.
 */
import { createContext, Script } from 'node:vm'
import { Check } from 'typebox/schema'
import { KvfoldError } from '../../core/errors.js'
import { definedFields } from '../../core/json.js'
import { objectOf, writtenEntries } from '../../core/written-json.js'
import { compareNumbers, isSchemaNumber, nearest, roundedNumbers } from './exact.js'

export type Schema = Readonly<Record<string, unknown>>
export type AnySchema = Schema | boolean

export const isSchema = (value: unknown): value is Schema => typeof value === 'object' && value !== null && !Array.isArray(value)

/** Throws the error for a schema that cannot be used. `path` is the position in the schema. @throws KvfoldError engine/bad-grammar */
export function refuse(what: string, path: string): never {
  throw new KvfoldError('engine/bad-grammar', `The JSON schema at ${path} ${what}.`)
}

export const TYPES = ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object'] as const
export type TypeName = (typeof TYPES)[number]

/** Keywords that do not restrict values, so grammars ignore them. */
const REMARKS = new Set([
  ...['title', 'description', 'default', 'example', 'examples', 'deprecated', 'readOnly', 'writeOnly', 'nullable'],
  ...['$schema', '$id', 'id', '$comment', '$anchor', '$vocabulary', 'discriminator', 'xml', 'externalDocs'],
  ...['contentEncoding', 'contentMediaType', 'contentSchema', 'markdownDescription', 'enumNames', 'enumDescriptions'],
])

/**
 * The most steps of work that one schema may take: one or two tenths of a second. A schema with a thousand properties takes about ten
 * thousand.
 */
export const MOST_WORK = 200_000

/** Thrown inside `within` when the work takes more steps than allowed. The caller then moves it to another thread. */
export class TooMuchHere extends Error {}

/** How many steps the running `within` has left; null while none runs. */
let allowance: number | null = null

/** Runs `work` with a limit of `steps` steps. @throws TooMuchHere when it takes more, or when a single step may take long */
export function within<T>(steps: number, work: () => T): T {
  allowance = steps
  try {
    return work()
  } finally {
    allowance = null
  }
}

/** Counts the steps of work on a schema, and limits them. Without a limit, a small schema could expand to a huge grammar. */
export class Work {
  #spent = 0

  constructor(
    private readonly most = MOST_WORK,
    private readonly of: Work | null = null,
  ) {}

  get spent(): number {
    return this.#spent
  }

  /** Makes a counter for one attempt at the schema. Its limit is a share of this one's; its steps count here, too. */
  part(share: number): Work {
    return new Work(this.most * share, this)
  }

  /** Counts steps of work. @throws KvfoldError engine/bad-grammar when they exceed the limit */
  spend(steps: number, path: string): void {
    this.#spent += steps
    if (this.of !== null) this.of.#spent += steps
    if (allowance !== null && (allowance -= steps) < 0) throw new TooMuchHere()
    if (this.#spent > this.most)
      refuse(
        'expands to more than a grammar can hold; use fewer or shorter repetitions, and fewer definitions, allOf and anyOf that refer to each other',
        path,
      )
  }
}

/** A whole schema, within which references are resolved. */
export interface SchemaRoot {
  readonly schema: unknown
  readonly work: Work
  /** A cache of schemas' alternatives (apart.ts). */
  readonly plains: WeakMap<object, readonly Plain[]>
}

/** Whether a value satisfies a schema. False also when the check fails with an error. */
export function satisfies(schema: AnySchema, value: unknown): boolean {
  try {
    return Check(roundedNumbers(schema) as never, roundedNumbers(value)) && isWithin(schema, value)
  } catch {
    return false
  }
}

/** Whether a number satisfies the schema's bounds, integers beyond 2^53 included, which the library's check would round. */
function isWithin(schema: AnySchema, value: unknown): boolean {
  if (typeof schema === 'boolean' || !isSchemaNumber(value)) return true
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = boundsOf(schema)
  return (
    (!isSchemaNumber(minimum) || compareNumbers(value, minimum) >= 0) &&
    (!isSchemaNumber(maximum) || compareNumbers(value, maximum) <= 0) &&
    (!isSchemaNumber(exclusiveMinimum) || compareNumbers(value, exclusiveMinimum) > 0) &&
    (!isSchemaNumber(exclusiveMaximum) || compareNumbers(value, exclusiveMaximum) < 0)
  )
}

/** Returns the schema with its bounds in the form of later drafts. In draft 4, `exclusiveMinimum: true` makes `minimum` exclusive. */
function boundsOf(schema: Schema): Schema {
  const bound = (plain: string, exclusive: string) => {
    const isExclusive = schema[exclusive] === true
    return {
      [plain]: isExclusive ? undefined : schema[plain],
      [exclusive]: isExclusive ? schema[plain] : schema[exclusive] === false ? undefined : schema[exclusive],
    }
  }
  return definedFields({ ...schema, ...bound('minimum', 'exclusiveMinimum'), ...bound('maximum', 'exclusiveMaximum') })
}

/** The most milliseconds to test all values of a schema against regular expressions. A pattern that backtracks might run for ever. */
const LONGEST_MATCH = 100
const room = createContext({ judge: () => [] as readonly unknown[] })
const judging = new Script('judge()')

/** Returns the values that satisfy the schema. @throws KvfoldError engine/bad-grammar when a regular expression in it takes too long */
export function satisfying<T>(schema: AnySchema, values: readonly T[], path: string): readonly T[] {
  const judge = () => values.filter((value) => satisfies(schema, value))
  if (!JSON.stringify(schema).includes('attern')) return judge()
  if (allowance !== null) throw new TooMuchHere()
  room['judge'] = judge
  try {
    return judging.runInContext(room, { timeout: LONGEST_MATCH }) as readonly T[]
  } catch {
    return refuse(
      'has a regular expression that takes too long to match its values; write it without repetitions within repetitions',
      path,
    )
  }
}

const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0
const isText = (value: unknown): value is string => typeof value === 'string'
const isList = (value: unknown): value is readonly unknown[] => Array.isArray(value)

/** For each keyword: a test whether its value is valid, and words for a valid value, for error messages. */
const VALUES: Readonly<Record<string, readonly [(value: unknown) => boolean, string]>> = {
  ...Object.fromEntries(
    ['minLength', 'maxLength', 'minItems', 'maxItems', 'minProperties', 'maxProperties'].map((name) => [
      name,
      [isCount, 'a whole number, 0 or more'] as const,
    ]),
  ),
  minimum: [isSchemaNumber, 'a number'],
  maximum: [isSchemaNumber, 'a number'],
  // In draft 4 of JSON Schema, these two are true or false.
  exclusiveMinimum: [(value) => isSchemaNumber(value) || typeof value === 'boolean', 'a number'],
  exclusiveMaximum: [(value) => isSchemaNumber(value) || typeof value === 'boolean', 'a number'],
  pattern: [isText, 'a string'],
  format: [isText, 'a string'],
  enum: [(value) => isList(value) && value.length > 0, 'a list of at least one value'],
  const: [() => true, ''],
  required: [(value) => isList(value) && value.every(isText), 'a list of names'],
  multipleOf: [(value) => isSchemaNumber(value) && nearest(value) > 0, 'a number above 0'],
  uniqueItems: [(value) => typeof value === 'boolean', 'true or false'],
  $ref: [isText, 'a string'],
}
const OF_SCHEMAS = ['allOf', 'anyOf', 'oneOf', 'prefixItems']
const OF_NAMED = ['properties', '$defs', 'definitions']
const OF_ONE = ['items', 'additionalProperties', 'additionalItems', 'propertyNames', 'unevaluatedProperties']
/** Keywords that restrict values in ways that our grammars cannot express. */
const BEYOND = new Set([
  ...['not', 'if', 'then', 'else', 'patternProperties', 'dependencies', 'dependentRequired', 'dependentSchemas'],
  ...['contains', 'minContains', 'maxContains', 'unevaluatedItems', '$dynamicRef', '$recursiveRef'],
])

/** Those of `BEYOND` that may allow further properties. Next to one of them, `unevaluatedProperties` cannot be expressed either. */
const ALLOWING = ['patternProperties', 'if', 'dependencies', 'dependentSchemas', '$dynamicRef', '$recursiveRef']

/** Returns the schema that a reference names. @throws KvfoldError engine/bad-grammar when it names none, or one outside the root schema */
export function resolve({ schema: root }: SchemaRoot, reference: string, path: string): AnySchema {
  if (reference !== '#' && !reference.startsWith('#/'))
    refuse(`has the $ref ${JSON.stringify(reference.slice(0, 200))}; only places in the same schema (#/...) are supported`, path)
  let found: unknown = root
  for (const part of reference.split('/').slice(1)) {
    const name = unescaped(part)
    found = isSchema(found) || isList(found) ? Object.entries(found).find(([key]) => key === name)?.[1] : undefined
  }
  if (!isSchema(found) && typeof found !== 'boolean')
    refuse(`refers to ${reference.slice(0, 200)}, where there is no schema`, path)
  return found
}

const escaped = (name: string): string => name.replace(/~/g, '~0').replace(/\//g, '~1')

function unescaped(part: string): string {
  const plain = part.replace(/~1/g, '/').replace(/~0/g, '~')
  try {
    return decodeURIComponent(plain)
  } catch {
    return plain
  }
}

/** The deepest nesting of schemas, references included. */
const DEEPEST = 200

/** Called with the position of each keyword that the grammar does not enforce. */
export type LeaveOut = (place: string) => void

/**
 * Checks a schema and all schemas inside it. With `leaveOut`, valid keywords that no grammar can express are left out; without it, they are
 * refused.
 * @throws KvfoldError engine/bad-grammar with the keyword and its position
 */
export function check(
  root: SchemaRoot,
  leaveOut: LeaveOut | null,
  onOneOf: (schema: Schema, path: string, isPart: boolean) => void,
): void {
  const seen = new Set<string>()
  /** Checks one schema of the tree. `isPart`: the value that must satisfy it must satisfy another schema too. */
  const visit = (schema: unknown, path: string, depth: number, isPart = false): void => {
    root.work.spend(1, path)
    if (typeof schema === 'boolean') return
    if (!isSchema(schema)) refuse('must be an object, true or false', path)
    if (depth > DEEPEST) refuse(`nests more than ${DEEPEST} levels`, path)
    const isMixed =
      isPart || Object.keys(schema).filter((keyword) => !REMARKS.has(keyword) && !OF_NAMED.slice(1).includes(keyword)).length > 1
    for (const [keyword, value] of Object.entries(schema)) {
      const at = `${path}/${escaped(keyword)}`
      const inner = (schemas: readonly (readonly [string | number, unknown])[]) => {
        const isShared = OF_SCHEMAS.includes(keyword) && keyword !== 'prefixItems' && (isMixed || keyword === 'allOf')
        for (const [name, each] of schemas) visit(each, `${at}/${escaped(String(name))}`, depth + 1, isShared)
      }
      const wanted = VALUES[keyword]
      if (wanted !== undefined && !wanted[0](value)) refuse(`must be ${wanted[1]}`, at)
      if (keyword === 'type') checkTypes(value, at)
      else if (keyword === '$ref') {
        const reference = value as string
        const key = `${isMixed} ${reference}`
        if (seen.has(key)) continue
        seen.add(key)
        visit(resolve(root, reference, at), reference, depth + 1, isMixed)
      } else if (OF_SCHEMAS.includes(keyword)) {
        if (!isList(value) || value.length === 0) refuse('must be a list of at least one schema', at)
        inner([...value.entries()])
        if (keyword === 'oneOf') onOneOf(schema, at, isPart)
      } else if (keyword === 'properties') {
        if (!isSchema(value)) refuse('must be an object of schemas', at)
        inner(Object.entries(value))
      } else if (OF_NAMED.includes(keyword)) {
        if (!isSchema(value)) refuse('must be an object of schemas', at)
      } else if (keyword === 'items' && isList(value)) inner([...value.entries()])
      else if (OF_ONE.includes(keyword)) visit(value, at, depth + 1)
      else {
        const why = beyond(keyword, value)
        if (why !== null && leaveOut === null) refuse(why, keyword in VALUES ? at : path)
        else if (why !== null) leaveOut!(at)
      }
    }
  }
  visit(root.schema, '#', 0)
}

function checkTypes(value: unknown, at: string): void {
  const listed = isList(value) ? value : [value]
  const unknown = listed.find((type) => !(TYPES as readonly unknown[]).includes(type))
  if (listed.length === 0 || unknown !== undefined)
    refuse(listed.length === 0 ? 'has no type' : `has the unknown type ${JSON.stringify(unknown)}`, at)
}

/** Returns why no grammar can express the keyword; null when it can. */
function beyond(keyword: string, value: unknown): string | null {
  if (keyword === 'uniqueItems') return value === true ? 'is true, which is not supported' : null
  if (keyword in VALUES || REMARKS.has(keyword) || keyword.startsWith('x-')) return null
  return `uses ${keyword}, which ${BEYOND.has(keyword) ? 'is not supported' : 'is an unknown keyword'}`
}

/** The most alternatives that a schema may expand to. */
const MOST_ALTERNATIVES = 256

/** A schema without references, allOf, anyOf and oneOf; or nothing but one reference. */
export type Plain = Schema

/**
 * Splits a schema into alternatives; a value satisfies the schema when it satisfies one of them. A reference without other keywords stays a
 * reference, so that a schema may refer to itself.
 * @throws KvfoldError engine/bad-grammar
 */
export function alternatives(root: SchemaRoot, schema: AnySchema, path: string, depth = 0): readonly Plain[] {
  root.work.spend(1, path)
  if (schema === true) return [{}]
  if (schema === false) return []
  if (depth > DEEPEST) refuse('refers to itself without end', path)
  const whole = (inner: AnySchema, far = depth + 1): readonly Plain[] =>
    alternatives(root, inner, path, far).flatMap((each) =>
      each['$ref'] === undefined ? [each] : whole(resolve(root, each['$ref'] as string, path), far + 1),
    )
  const { unevaluatedProperties, ...evaluated } = schema
  if (unevaluatedProperties !== undefined) return whole(evaluated).map((each) => withOthers(each, unevaluatedProperties))
  const { $ref, allOf, anyOf, oneOf, ...own } = schema
  // No grammar can express which names the patterns match. If they are left out, an object may have properties of any name.
  const rest = 'patternProperties' in own ? { ...own, additionalProperties: true } : own
  const base = boundsOf(
    Object.fromEntries(
      Object.entries(rest).filter(([keyword]) => !REMARKS.has(keyword) && !['$defs', 'definitions'].includes(keyword)),
    ),
  )
  const isBare = Object.keys(base).length === 0
  if (isBare && $ref !== undefined && allOf === undefined && anyOf === undefined && oneOf === undefined) return [{ $ref }]
  const lists: (readonly Plain[])[] = isBare ? [] : [[base]]
  const isAlone = isBare && $ref === undefined && allOf === undefined && [anyOf, oneOf].includes(undefined)
  const inside = isAlone ? (inner: AnySchema) => alternatives(root, inner, path, depth + 1) : whole
  if ($ref !== undefined) lists.push(whole(resolve(root, $ref as string, path)))
  for (const inner of (allOf as readonly AnySchema[] | undefined) ?? [])
    lists.push(
      isBare && (allOf as unknown[]).length === 1 && $ref === undefined && !anyOf && !oneOf
        ? alternatives(root, inner, path, depth + 1)
        : whole(inner),
    )
  if (anyOf !== undefined) lists.push((anyOf as readonly AnySchema[]).flatMap((each) => inside(each)))
  if (oneOf !== undefined) lists.push((oneOf as readonly AnySchema[]).flatMap((each) => inside(each)))
  if (lists.length === 0) return [{}]
  return lists.slice(1).reduce<readonly Plain[]>((before, next) => {
    if (before.length * next.length > MOST_ALTERNATIVES) refuse(`combines to more than ${MOST_ALTERNATIVES} alternatives`, path)
    return before.flatMap((a) => {
      root.work.spend(sizeOf(a) * next.length, path)
      return next.map((b) => merged(a, b, path)).filter((each) => each !== null)
    })
  }, lists[0]!)
}

/**
 * Adds a schema's `unevaluatedProperties` to one of its alternatives. They apply to properties that the alternative does not name. Next to
 * `additionalProperties` they have no effect.
 */
const withOthers = (plain: Plain, unevaluated: unknown): Plain =>
  ['additionalProperties', ...ALLOWING].some((name) => name in plain) ? plain : { ...plain, additionalProperties: unevaluated }

/** Estimates the steps of work to merge a schema with another. */
const sizeOf = ({ properties, enum: values, required }: Schema): number =>
  4 +
  [isSchema(properties) ? Object.keys(properties) : [], values, required].reduce(
    (sum: number, each) => sum + (isList(each) ? each.length : 0),
    0,
  )

const equal = (a: unknown, b: unknown): boolean => canonical(a) === canonical(b)

/** Returns a value's JSON with sorted keys: equal values give equal text. */
export const canonical = (value: unknown): string =>
  JSON.stringify(value, (_, item: unknown) =>
    isSchema(item) ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1))) : item,
  )

export const typesOf = ({ type }: Schema): readonly TypeName[] | null =>
  type === undefined ? null : ((isList(type) ? type : [type]) as readonly TypeName[])

/** Returns the values that `const` or `enum` list; null without either. */
export function listed(schema: Schema): readonly unknown[] | null {
  if ('const' in schema && 'enum' in schema)
    return (schema['enum'] as readonly unknown[]).filter((value) => equal(value, schema['const']))
  return 'const' in schema ? [schema['const']] : ((schema['enum'] as readonly unknown[] | undefined) ?? null)
}

const all = (a: unknown, b: unknown): unknown => (a === undefined ? b : b === undefined ? a : { allOf: [a, b] })

/** Merges two schemas into one whose values satisfy both. Returns null when no value can. */
function merged(a: Plain, b: Plain, path: string): Plain | null {
  if (Object.keys(a).length === 0) return b
  if (Object.keys(b).length === 0) return a
  const result: Record<string, unknown> = { ...a, ...b }
  const [types, others] = [typesOf(a), typesOf(b)]
  if (types !== null && others !== null) {
    const has = (list: readonly TypeName[], type: TypeName) =>
      list.includes(type) || (type === 'integer' && list.includes('number'))
    const common = TYPES.filter((type) => has(types, type) && has(others, type))
    if (common.length === 0) return null
    result['type'] = common.includes('number') ? common.filter((type) => type !== 'integer') : common
  }
  const [values, more] = [listed(a), listed(b)]
  if (values !== null && more !== null) {
    delete result['const']
    const known = new Set(more.map(canonical))
    result['enum'] = values.filter((value) => known.has(canonical(value)))
    if ((result['enum'] as unknown[]).length === 0) return null
  }
  for (const name of ['minLength', 'minItems', 'minProperties', 'minimum', 'exclusiveMinimum']) larger(result, a, b, name)
  for (const name of ['maxLength', 'maxItems', 'maxProperties', 'maximum', 'exclusiveMaximum']) smaller(result, a, b, name)
  for (const name of ['pattern', 'format'])
    if (a[name] !== undefined && b[name] !== undefined && a[name] !== b[name])
      refuse(`combines two different values of ${name}, which is not supported`, path)
  if (a['required'] !== undefined && b['required'] !== undefined)
    result['required'] = [...new Set([...(a['required'] as string[]), ...(b['required'] as string[])])]
  Object.assign(result, objects(a, b), arrays(a, b))
  for (const name of ['propertyNames', 'multipleOf'])
    if (a[name] !== undefined && b[name] !== undefined && !equal(a[name], b[name])) {
      if (name === 'multipleOf') refuse('combines two different values of multipleOf, which is not supported', path)
      result[name] = all(a[name], b[name])
    }
  return result
}

function larger(result: Record<string, unknown>, a: Schema, b: Schema, name: string): void {
  const [one, other] = [a[name], b[name]]
  if (isSchemaNumber(one) && isSchemaNumber(other)) result[name] = compareNumbers(one, other) > 0 ? one : other
}

function smaller(result: Record<string, unknown>, a: Schema, b: Schema, name: string): void {
  const [one, other] = [a[name], b[name]]
  if (isSchemaNumber(one) && isSchemaNumber(other)) result[name] = compareNumbers(one, other) < 0 ? one : other
}

/** Merges the properties of two schemas. For a property that only one schema names, the other's `additionalProperties` counts. */
function objects(a: Schema, b: Schema): Schema {
  const isObject = (schema: Schema) => schema['properties'] !== undefined || schema['additionalProperties'] !== undefined
  if (!isObject(a) || !isObject(b)) return {}
  const [ours, theirs] = [a, b].map(({ properties = {} }) => properties as Schema)
  const names = [...new Set([ours!, theirs!].flatMap((own) => writtenEntries(own).map(({ key }) => key)))]
  const of = (name: string, own: Schema, schema: Schema) =>
    Object.hasOwn(own, name) ? own[name] : schema['additionalProperties']
  const additional = all(a['additionalProperties'], b['additionalProperties'])
  return {
    properties: objectOf(names.map((name) => [name, all(of(name, ours!, a), of(name, theirs!, b)) ?? true] as const)),
    ...(additional === undefined ? {} : { additionalProperties: additional }),
  }
}

/** Returns the schemas of an array's first items, and the schema of all later items. */
export function itemsOf({ prefixItems, items, additionalItems }: Schema): {
  readonly first: readonly AnySchema[]
  readonly rest: AnySchema | undefined
} {
  if (isList(items)) return { first: items as readonly AnySchema[], rest: additionalItems as AnySchema | undefined }
  return { first: (prefixItems as readonly AnySchema[] | undefined) ?? [], rest: items as AnySchema | undefined }
}

function arrays(a: Schema, b: Schema): Schema {
  const [ours, theirs] = [itemsOf(a), itemsOf(b)]
  const rest = all(ours.rest, theirs.rest)
  const first = Array.from(
    { length: Math.max(ours.first.length, theirs.first.length) },
    (_, at) => all(ours.first[at] ?? ours.rest, theirs.first[at] ?? theirs.rest) ?? true,
  )
  return {
    ...(first.length === 0 ? {} : { prefixItems: first }),
    ...(rest === undefined ? {} : { items: rest }),
  }
}
