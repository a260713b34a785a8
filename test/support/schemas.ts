/** Draws random JSON schemas for property tests, and makes validators with ajv. */
import { createRequire } from 'node:module'
import fc from 'fast-check'

/** ajv 8 is fastify's; the one at the top of node_modules is eslint's and older. */
const fastify = createRequire(createRequire(import.meta.url).resolve('fastify'))
const own = createRequire(fastify.resolve('@fastify/ajv-compiler'))
export interface Validator {
  (value: unknown): boolean
  readonly errors: unknown
}
type Make<T> = new (options: object) => T
const Ajv = own('ajv/dist/2020.js') as Make<{ compile(schema: unknown): Validator }>
const addFormats = own('ajv-formats') as (ajv: object) => void

/** Returns a validator, or null if ajv follows a reference to itself for ever, which it does even where no value is required. */
export function validator(schema: unknown): Validator | null {
  const ajv = new Ajv({ strict: false, allErrors: false, logger: false })
  addFormats(ajv)
  try {
    return ajv.compile(schema)
  } catch (error) {
    if (error instanceof RangeError) return null
    throw error
  }
}

const NAMES = ['a', 'b', 'ab', 'kind', 'a"b', 'é']
const PATTERNS = [
  '^[a-z]{2,4}$',
  'x+',
  '^(?:foo|ba[rz])$',
  '^\\d+\\.?\\d*$',
  '^[^a-c]\\W?$',
  'a|^b$',
  '^"\\\\\\n"$',
  '^\\S+@\\S+$',
  '[\\u00e0-\\u00ff]{2}',
]
const FORMATS = [
  ...['date', 'time', 'date-time', 'duration', 'uuid', 'email', 'hostname', 'ipv4', 'ipv6', 'uri', 'url', 'json-pointer', 'byte'],
]

const bounds = (names: readonly string[], value: fc.Arbitrary<number>) =>
  fc.record(Object.fromEntries(names.map((name) => [name, value])), { requiredKeys: [] })
const count = fc.integer({ min: 0, max: 4 })
const decimal = fc.oneof(
  fc.integer({ min: -30, max: 1200 }),
  fc.integer({ min: -999, max: 999 }).map((n) => n / 100),
  fc.constantFrom(1e-3, 1.5e-4, -2e-3, 1e6, 123456.789),
)
const json = fc.constantFrom<unknown>(null, true, 0, -1.5, 'x"', '', 'é', [], [1, 'a'], {}, { a: 1, 'b\\': [null] })

/** Draws schemas with every keyword; no value satisfies some of them. */
const { schema: anySchema } = fc.letrec<{ schema: unknown; leaf: unknown }>((tie) => ({
  leaf: fc.oneof(
    fc.constantFrom({}, true, { type: 'boolean' }, { type: 'null' }, { type: ['string', 'null'] }, { $ref: '#/$defs/one' }),
    fc.record({ enum: fc.array(json, { minLength: 1, maxLength: 3 }) }),
    fc.record({ const: json }),
    fc.record({ type: fc.constant('string'), pattern: fc.constantFrom(...PATTERNS) }),
    fc.record({ format: fc.constantFrom(...FORMATS) }),
    bounds(['minLength', 'maxLength'], count).map((lengths) => ({ type: 'string', ...lengths })),
    bounds(['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'], decimal).map((range) => ({
      type: 'number',
      ...range,
    })),
    bounds(['minimum', 'exclusiveMaximum'], decimal).map((range) => ({ type: 'integer', ...range })),
    bounds(['maximum', 'exclusiveMinimum'], decimal).map((range) => ({ type: 'integer', ...range })),
  ),
  schema: fc.oneof(
    { maxDepth: 3, depthIdentifier: 'schema', withCrossShrink: true },
    { arbitrary: tie('leaf'), weight: 3 },
    {
      arbitrary: fc
        .record(
          {
            properties: fc.dictionary(fc.constantFrom(...NAMES), tie('schema'), { maxKeys: 4 }),
            required: fc.uniqueArray(fc.constantFrom(...NAMES), { maxLength: 3 }),
            additionalProperties: fc.oneof(fc.boolean(), tie('schema')),
            unevaluatedProperties: fc.oneof(fc.boolean(), tie('schema')),
            minProperties: count,
            maxProperties: count,
            propertyNames: fc.constantFrom({ type: 'string' }, { pattern: '^[ab]+$' }, { maxLength: 3 }),
          },
          { requiredKeys: [] },
        )
        .map((object) => ({ type: 'object', ...object })),
      weight: 4,
    },
    {
      arbitrary: fc
        .record(
          {
            items: tie('schema'),
            prefixItems: fc.array(tie('schema'), { minLength: 1, maxLength: 3 }),
            minItems: count,
            maxItems: count,
          },
          { requiredKeys: [] },
        )
        .map((array) => ({ type: 'array', ...array })),
      weight: 2,
    },
    { arbitrary: fc.record({ anyOf: fc.array(tie('schema'), { minLength: 1, maxLength: 3 }) }), weight: 1 },
    { arbitrary: fc.record({ oneOf: fc.array(tie('schema'), { minLength: 1, maxLength: 3 }) }), weight: 1 },
    { arbitrary: fc.record({ allOf: fc.array(tie('schema'), { minLength: 1, maxLength: 2 }) }), weight: 1 },
    {
      arbitrary: fc
        .tuple(fc.constantFrom('allOf', 'anyOf', 'oneOf'), fc.array(tie('schema'), { minLength: 1, maxLength: 2 }), tie('schema'))
        .map(([keyword, parts, unevaluatedProperties]) => ({ [keyword]: parts, unevaluatedProperties })),
      weight: 1,
    },
    {
      arbitrary: fc
        .tuple(tie('schema'), tie('schema'))
        .map(([base, choice]) =>
          typeof base === 'object' && base !== null ? { ...base, anyOf: [choice, { type: ['object', 'string'] }] } : choice,
        ),
      weight: 1,
    },
  ),
}))
/** Draws a schema with one definition, which may refer to itself. */
export const anyWholeSchema = fc
  .tuple(anySchema, anySchema)
  .map(([schema, one]) =>
    typeof schema === 'object' && schema !== null ? { ...schema, $defs: { one } } : { anyOf: [schema], $defs: { one } },
  )
