/** Tests the limits on schemas that multiply, the keywords that are left out and reported, and the bounds that are kept. */
import { getLlama } from 'node-llama-cpp'
import { describe, expect, test } from 'vitest'
import { jsonSchemaGrammar, lazyCalls, leftOutOfTools } from '../../../src/runtime/chat/grammar.js'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { rawTexts } from '../../../src/runtime/chat/schema/scalars.js'
import { satisfies } from '../../../src/runtime/chat/schema/merge.js'
import { Random } from '../../../src/runtime/core/random.js'
import { leftOut } from '../../../src/runtime/server/threads/generation.js'
import { Grammar } from '../../support/gbnf.js'
import { validator } from '../../support/schemas.js'

/** Definitions that each name the one before twice. */
function doublings(n: number, kind: 'allOf' | 'anyOf'): object {
  const $defs: Record<string, object> = { d0: { type: 'null' } }
  for (let i = 1; i <= n; i++) {
    const before = { $ref: `#/$defs/d${i - 1}` }
    $defs[`d${i}`] = { [kind]: [before, kind === 'allOf' ? before : { type: 'array', maxItems: 1, items: before }] }
  }
  return { $ref: `#/$defs/d${n}`, $defs }
}

/** Returns the seconds of CPU time that this process spends. */
function secondsOf(run: () => void): number {
  const begun = process.cpuUsage()
  run()
  const { user, system } = process.cpuUsage(begun)
  return (user + system) / 1e6
}

const nested = (depth: number, wrap: (inner: string) => string): string =>
  Array.from({ length: depth }).reduce<string>((inner) => wrap(inner), 'a')
const backwards = {
  enum: [`${'a'.repeat(40)}!`, ...Array.from({ length: 500 }, (_, i) => `${'a'.repeat(40)}${i}`)],
  pattern: '^(a+)+$',
}

describe('a schema that multiplies is refused quickly, with its place', () => {
  test.each([
    ['allOf of one definition twice', doublings(20, 'allOf'), /^The JSON schema at #.* expands to more than a grammar can hold/],
    ['counts of many properties', { ...properties(1500), maxProperties: 700 }, /at # expands/],
    [
      'a regular expression that goes back and forth',
      { properties: { a: backwards } },
      /at #\/properties\/a has a regular expression/,
    ],
    [
      'so for names',
      { propertyNames: { pattern: '^(a+)+$' }, properties: { [`${'a'.repeat(40)}!`]: {} } },
      /propertyNames has a regular/,
    ],
    ['repetitions within repetitions', { pattern: `^${nested(14, (inner) => `(${inner}){1,601}`)}$` }, /at #\/pattern repeats/],
    ['a very long pattern', { pattern: '\\u0041'.repeat(50_000) }, /at #\/pattern has 300000 characters/],
  ])('%s', (_, schema, message) => {
    const seconds = secondsOf(() => {
      expect(() => jsonSchemaGrammar(schema)).toThrow(message)
    })
    expect(seconds).toBeLessThan(2)
  })

  test.each([
    ['anyOf of one definition twice', doublings(30, 'anyOf')],
    ['a thousand properties', properties(1000)],
    ['large bounds within each other', { type: 'array', maxItems: 1e6, items: { type: 'string', maxLength: 1e6 } }],
  ])('a schema that is only large is accepted: %s', (_, schema) => {
    expect(secondsOf(() => jsonSchemaGrammar(schema))).toBeLessThan(2)
  })
})

function properties(count: number): object {
  const named = Array.from({ length: count }, (_, i) => [`property_${i}`, { type: 'string' }])
  return { type: 'object', properties: Object.fromEntries(named) as object }
}

/** Draws texts of the grammar, each with another seed. */
function drawn(grammar: string, count: number): string[] {
  const random = new Random(4)
  const made = new Grammar(grammar)
  return Array.from({ length: count }, () => made.draw(() => random.word() / 2 ** 32))
}

describe('the grammar keeps', () => {
  test.each([
    ['multiples', { type: 'integer', multipleOf: 7 }],
    ['multiples within bounds', { type: 'integer', multipleOf: 250, minimum: -1000, exclusiveMaximum: 123_456 }],
    ['multiples of a decimal', { type: 'number', multipleOf: 0.25, minimum: 0, maximum: 40 }],
    ['whole multiples of a decimal', { type: 'integer', multipleOf: 0.4 }],
    ['cents', { type: 'number', multipleOf: 0.01, exclusiveMinimum: 0, maximum: 99.5 }],
  ])('%s', (_, schema) => {
    const rest = Object.fromEntries(Object.entries(schema).filter(([name]) => name !== 'multipleOf'))
    for (const text of drawn(jsonSchemaGrammar(schema), 300)) {
      const value = JSON.parse(text) as number
      const ratio = value / schema.multipleOf
      expect(Math.abs(ratio - Math.round(ratio)), text).toBeLessThan(1e-6 * Math.max(1, Math.abs(ratio)))
      expect(satisfies(rest, value), text).toBe(true)
    }
  })

  test('every multiple between two bounds, and nothing else', () => {
    const all = new Set(
      drawn(jsonSchemaGrammar({ type: 'integer', multipleOf: 6, minimum: -20, maximum: 130 }), 3000).map(Number),
    )
    expect([...all].sort((a, b) => a - b)).toEqual(Array.from({ length: 25 }, (_, i) => -18 + 6 * i))
  })

  test.each([
    ['alone', { type: 'integer', minimum: 0, exclusiveMinimum: true, maximum: 3, exclusiveMaximum: true }],
    [
      'beside others',
      {
        allOf: [
          { type: 'integer', minimum: 0, exclusiveMinimum: true },
          { minimum: -5, exclusiveMinimum: false, exclusiveMaximum: 3 },
        ],
      },
    ],
    ['of an enum', { enum: [0, 1, 2, 3, 4], minimum: 0, exclusiveMinimum: true, exclusiveMaximum: 3 }],
    [
      'with an alternative',
      { type: 'integer', minimum: 0, exclusiveMinimum: true, anyOf: [{ exclusiveMaximum: 3 }, { exclusiveMaximum: 2 }] },
    ],
  ])('exclusive bounds of draft 4: %s', (_, schema) => {
    expect(new Set(drawn(jsonSchemaGrammar(schema), 100))).toEqual(new Set(['1', '2']))
  })

  test('nothing where there is no multiple', () => {
    expect(() => jsonSchemaGrammar({ type: 'integer', multipleOf: 10, minimum: 1, maximum: 9 })).toThrow('allows no value')
    // A large step would have a rule for each of its remainders.
    const began = performance.now()
    expect(() => jsonSchemaGrammar({ type: 'integer', multipleOf: 1_000_000_007 })).toThrow('multipleOf')
    expect(performance.now() - began).toBeLessThan(2000)
    expect(new Set(drawn(jsonSchemaGrammar({ multipleOf: 5, minimum: 0, maximum: 10 }), 200))).toEqual(new Set(['0', '5', '10']))
  })

  test.each([
    ['uri', 'http://localhost:11434'],
    ['uri', 'https://example.org:65535/a%20b?q=%C3%A9#x%2Fy'],
    ['url', 'http://example.org:11434/a%20b?q=%C3%A9#x%2Fy'],
    ['url', 'https://my-new-cool-app.vercel.app/'],
    ['hostname', 'my-new-cool-app.vercel.app'],
    ['hostname', `${'a'.repeat(32)}.org`],
    ['email', 'jo@my-new-cool-app.vercel.app'],
    ['ipv6', '::'],
    ['ipv6', '::1'],
    ['ipv6', 'fe80::1ff:fe23:4567:890a'],
    ['ipv6', '2001:db8::'],
    ['ipv6', '2001:db8::1:0:0:1'],
    ['ipv6', '1:2:3:4:5:6:7::'],
    ['ipv6', '::2:3:4:5:6:7:8'],
    ['ipv6', '1:2:3:4:5:6:7:8'],
  ])('everyday texts of a format: %s, %s', async (format, text) => {
    const grammar = await (
      await getLlama({ gpu: false, build: 'never', progressLogs: false, logger: () => undefined })
    ).createGrammar({ grammar: jsonSchemaGrammar({ type: 'string', format }) })
    expect((grammar as unknown as { _testText(text: string): boolean })._testText(JSON.stringify(text))).toBe(true)
  })

  test.each(['uri', 'url', 'hostname', 'ipv6', 'email'])('only texts of the format: %s', (format) => {
    const isRight = validator({ type: 'string', format })!
    for (const text of drawn(jsonSchemaGrammar({ type: 'string', format }), 2000))
      expect(isRight(JSON.parse(text)), text).toBe(true)
  })

  test.each([
    ['email', 20],
    ['email', 60],
    ['uri', 40],
    ['hostname', 12],
    ['date-time', 25],
  ])('lengths beside a format: %s, %i', (format, maxLength) => {
    const texts = drawn(jsonSchemaGrammar({ type: 'string', format, maxLength }), 200).map((text) => JSON.parse(text) as string)
    for (const text of texts) {
      expect(text.length, text).toBeLessThanOrEqual(maxLength)
      expect(satisfies({ format }, text), text).toBe(true)
    }
    expect(new Set(texts).size).toBeGreaterThan(20)
  })
})

const large: ToolDefinition = {
  name: 'large',
  description: '',
  parameters: doublings(20, 'allOf') as ToolDefinition['parameters'],
}
const tool = (name: string, parameters: object, strict?: boolean): ToolDefinition => ({
  ...{ name, description: '', parameters: { type: 'object', ...parameters } },
  ...(strict === undefined ? {} : { strict }),
})
const unique = { properties: { a: { type: 'array', items: { type: 'integer' }, uniqueItems: true } } }

describe('keywords that are left out are reported', () => {
  test('with tool and place', () => {
    const tools = [
      tool('plain', { properties: { n: { type: 'number', multipleOf: 0.5 } } }),
      tool('one', { ...unique, patternProperties: { '^x': {} } }),
      tool('two', { properties: { s: { type: 'string', pattern: '^(?=a)' }, t: { type: 'string', format: 'iri' } } }),
      large,
    ]
    expect(leftOutOfTools(tools)).toEqual([
      'one: #/properties/a/uniqueItems',
      'one: #/patternProperties',
      'two: #/properties/s/pattern',
      'two: #/properties/t/format',
      'large: #',
    ])
  })

  test('for a loose format; a strict one is refused', async () => {
    expect(await leftOut({ kind: 'schema', schema: unique, loose: true }, [])).toEqual(['format: #/properties/a/uniqueItems'])
    await expect(leftOut({ kind: 'schema', schema: unique }, [])).rejects.toThrow('#/properties/a/uniqueItems is true')
  })

  test('and a strict tool is refused with its name and the place', () => {
    expect(() => leftOutOfTools([tool('fine', {}), tool('exact', unique, true)])).toThrow(
      'The tool "exact": The JSON schema at #/properties/a/uniqueItems is true, which is not supported.',
    )
    expect(() => leftOutOfTools([{ ...large, strict: true }])).toThrow('The tool "large": The JSON schema at # expands')
  })

  test('and the grammar of the other tools is unaffected', () => {
    const form = {
      write: (name: string, args: string) => ` "${name}(" ${args} ")" `,
      between: null,
      reasoning: null,
      triggers: [],
    }
    const many = Array.from({ length: 20 }, (_, i) => ({ ...large, name: `large-${i}` }))
    const small = tool('small', { properties: { a: { const: 1 } }, required: ['a'] })
    let grammar = ''
    const seconds = secondsOf(() => {
      ;({ grammar } = lazyCalls(form, [...many, small], '', true))
    })
    expect(seconds).toBeLessThan(3)
    const calls = drawn(grammar, 400)
      .map((text) => text.trim())
      .filter((text) => text.startsWith('small('))
    expect(calls.length).toBeGreaterThan(0)
    for (const call of calls) expect(JSON.parse(call.slice('small('.length, -1)), call).toEqual({ a: 1 })
  })
})

test('texts between tags may contain tags where only their length is bounded', () => {
  const left: string[] = []
  expect(rawTexts({ minLength: 1, maxLength: 9 }, 'any', '/x', (place) => left.push(place))).toBe('any')
  expect(left).toEqual(['/x/minLength', '/x/maxLength'])
  expect(rawTexts({ minLength: 1 }, 'any', '/x', null)).not.toBe('any')
})
