/** Owns the way from a JSON schema to a grammar: node-llama-cpp's translation, and the refusal of what it would ignore in silence. */
import { LlamaJsonSchemaGrammar, type Llama } from 'node-llama-cpp'
import { invariant, KvfoldError } from '../core/errors.js'

type Schema = Readonly<Record<string, unknown>>

/** Keywords with an effect on the grammar. */
const SUPPORTED = [
  ...['type', 'enum', 'const', 'oneOf', 'anyOf', '$ref', '$defs'],
  ...['properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties'],
  ...['items', 'prefixItems', 'minItems', 'maxItems', 'minLength', 'maxLength', 'format'],
]
/** Keywords that restrict nothing. */
const REMARKS = [
  'title',
  'description',
  'default',
  'examples',
  '$schema',
  '$id',
  '$comment',
  'deprecated',
  'readOnly',
  'writeOnly',
]
const FORMATS = ['date-time', 'time', 'date']
const DEFS = '#/$defs/'
const SCALAR_TYPES = ['string', 'number', 'integer', 'boolean', 'null']

/**
 * GBNF, root rule `root`, whose texts satisfy the schema. Subset: type (one or several), enum and const of scalars, oneOf / anyOf (any one
 * alternative), $ref into #/$defs/, objects (all properties are written, in order; additionalProperties, minProperties, maxProperties),
 * arrays (items, prefixItems, minItems, maxItems), texts (minLength, maxLength, format date-time, time, date).
 * @throws KvfoldError engine/bad-grammar naming the keyword or value that is outside of the subset, and where it stands
 */
export async function grammarFromSchema(llama: Llama, schema: unknown): Promise<string> {
  const prepared = prepare(schema, '#')
  refuseDangling(prepared, new Set())
  let grammar: LlamaJsonSchemaGrammar<never>
  try {
    // The class declares its own, narrower type of schema; prepare() saw to it.
    grammar = await llama.createGrammarForJsonSchema(prepared as never)
  } catch (error) {
    throw bad(`cannot be made a grammar (${(error as Error).message})`, '#', error)
  }
  return tidied(grammar.grammar)
}

/** What node-llama-cpp puts behind the root rule to see that the model is done; ours ends with the end-of-generation token. */
const TAIL = String.raw` "\n\n\n\n" [\n]*`
const DIGITS = '"-"? ("0" | [1-9] [0-9]{0,15})'
const EXPONENT = ' ([eE] [-+]? ("0" | [1-9] [0-9]{0,15}))?'

/** Without the tail, and with integers that have no exponent: 1e-3 is none. */
function tidied(grammar: string): string {
  const [root = '', ...rules] = grammar.split('\n')
  invariant(
    root.startsWith('root ::= ') && root.endsWith(TAIL),
    `node-llama-cpp's grammar has another form than expected: ${root}`,
  )
  return [root.slice(0, -TAIL.length), ...rules].join('\n').replaceAll(DIGITS + EXPONENT, DIGITS)
}

/** node-llama-cpp takes a reference to nothing for one to anything; definitions of inner schemas count below them. */
function refuseDangling(value: unknown, names: ReadonlySet<string>): void {
  if (Array.isArray(value)) for (const inner of value) refuseDangling(inner, names)
  if (!isRecord(value)) return
  const known = isRecord(value['$defs']) ? new Set([...names, ...Object.keys(value['$defs'])]) : names
  const reference = value['$ref']
  if (typeof reference === 'string' && !known.has(reference.slice(DEFS.length)))
    throw bad(`names no schema with ${reference}`, '#')
  for (const inner of Object.values(value)) refuseDangling(inner, known)
}

/** The schema in the words node-llama-cpp knows. */
function prepare(schema: unknown, path: string): Schema {
  if (!isRecord(schema)) throw bad('must be an object', path)
  const unknown = Object.keys(schema).find((keyword) => !SUPPORTED.includes(keyword) && !REMARKS.includes(keyword))
  if (unknown !== undefined) throw bad(`uses ${unknown}, which is not supported (supported: ${SUPPORTED.join(', ')})`, path)
  const kept = Object.fromEntries(Object.entries(schema).filter(([keyword]) => SUPPORTED.includes(keyword)))
  const defs = kept['$defs'] === undefined ? {} : { $defs: prepareAll(kept['$defs'], `${path}/$defs`) }
  if (kept['$ref'] !== undefined) {
    if (typeof kept['$ref'] !== 'string' || !kept['$ref'].startsWith(DEFS)) throw bad('has a $ref that is not #/$defs/name', path)
    return { $ref: kept['$ref'], ...defs }
  }
  const alternatives = kept['oneOf'] ?? kept['anyOf']
  if (alternatives !== undefined) {
    if (!Array.isArray(alternatives) || alternatives.length === 0) throw bad('has alternatives that are not a list', path)
    if (kept['type'] !== undefined || kept['properties'] !== undefined)
      throw bad('has alternatives beside type or properties; put those into each alternative', path)
    return { oneOf: alternatives.map((inner, index) => prepare(inner, `${path}/oneOf/${index}`)), ...defs }
  }
  if (kept['const'] !== undefined) return { const: scalar(kept['const'], path) }
  if (kept['enum'] !== undefined) {
    if (!Array.isArray(kept['enum']) || kept['enum'].length === 0) throw bad('has an enum that is not a list of values', path)
    return { enum: kept['enum'].map((value) => scalar(value, path)) }
  }
  return { ...prepareTyped(kept, path), ...defs }
}

function prepareTyped(schema: Schema, path: string): Schema {
  const { type } = schema
  if (Array.isArray(type)) {
    // node-llama-cpp reads lists of scalar types only.
    if (type.length === 0) throw bad('has no type', path)
    return { oneOf: type.map((one: unknown) => prepareTyped({ ...schema, type: one }, path)) }
  }
  if (type === 'object') return prepareObject(schema, path)
  if (type === 'array') return prepareArray(schema, path)
  if (type === 'string') {
    const { format, minLength = 0, maxLength = Infinity } = schema
    if (format !== undefined && !FORMATS.includes(format as string))
      throw bad(`has the format ${JSON.stringify(format)}; only ${FORMATS.join(', ')} are supported`, path)
    ordered(minLength, maxLength, 'minLength', 'maxLength', path)
    return pick(schema, ['type', 'format', 'minLength', 'maxLength'])
  }
  if (SCALAR_TYPES.includes(type as string)) return { type }
  throw bad(`has ${type === undefined ? 'no type' : `the unknown type ${JSON.stringify(type)}`}`, path)
}

function prepareObject(schema: Schema, path: string): Schema {
  const properties = schema['properties'] === undefined ? {} : prepareAll(schema['properties'], `${path}/properties`)
  const { required = [], additionalProperties, minProperties = 0, maxProperties = Infinity } = schema
  if (!Array.isArray(required)) throw bad('has a required that is not a list', path)
  const missing: unknown = required.find((name: unknown) => typeof name !== 'string' || !Object.hasOwn(properties, name))
  if (missing !== undefined) throw bad(`requires ${JSON.stringify(missing)} and does not describe it in properties`, path)
  ordered(Math.max(Number(minProperties), Object.keys(properties).length), maxProperties, 'properties', 'maxProperties', path)
  const additional = isRecord(additionalProperties)
    ? { additionalProperties: prepare(additionalProperties, `${path}/additionalProperties`) }
    : pick(schema, ['additionalProperties'])
  return { ...pick(schema, ['type', 'minProperties', 'maxProperties']), properties, ...additional }
}

function prepareArray(schema: Schema, path: string): Schema {
  const { items, prefixItems, minItems = 0, maxItems = Infinity } = schema
  if (prefixItems !== undefined && !Array.isArray(prefixItems)) throw bad('has prefixItems that are not a list', path)
  ordered(Math.max(Number(minItems), prefixItems?.length ?? 0), maxItems, 'minItems', 'maxItems', path)
  return {
    ...pick(schema, ['type', 'minItems', 'maxItems']),
    ...(items === undefined ? {} : { items: prepare(items, `${path}/items`) }),
    ...(prefixItems === undefined
      ? {}
      : { prefixItems: prefixItems.map((inner: unknown, index) => prepare(inner, `${path}/prefixItems/${index}`)) }),
  }
}

function prepareAll(schemas: unknown, path: string): Schema {
  if (!isRecord(schemas)) throw bad('must be an object of schemas', path)
  return Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, prepare(schema, `${path}/${name}`)]))
}

function scalar(value: unknown, path: string): unknown {
  if (value !== null && !['string', 'number', 'boolean'].includes(typeof value))
    throw bad(`has the value ${JSON.stringify(value)}; only texts, numbers, booleans and null are supported`, path)
  return value
}

function ordered(low: unknown, high: unknown, lowName: string, highName: string, path: string): void {
  if (typeof low !== 'number' || typeof high !== 'number' || low < 0 || !(low <= high))
    throw bad(`has ${lowName} and ${highName} that nothing can satisfy (${String(low)}, ${String(high)})`, path)
}

const isRecord = (value: unknown): value is Schema => typeof value === 'object' && value !== null && !Array.isArray(value)

const pick = (schema: Schema, names: readonly string[]): Schema =>
  Object.fromEntries(Object.entries(schema).filter(([name]) => names.includes(name)))

function bad(what: string, path: string, cause?: unknown): KvfoldError {
  return new KvfoldError('engine/bad-grammar', `The JSON schema at ${path} ${what}.`, { cause })
}
