import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { jsonSchemaGrammar } from '../../../src/runtime/chat/grammar.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeContext, NativeModel } from '../../../src/runtime/native/types.js'
import { tinyModel } from '../../support/models.js'
import { feed, refused, someTokens } from './support/fixture.js'

let native: Native
let model: NativeModel
let context: NativeContext

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  model = await native.loadModel(await tinyModel())
  context = await model.createContext({ cells: 512, threads: 1 })
  await feed(context, someTokens(10))
})
afterAll(() => model.dispose())

/** Returns a text that the model writes under the schema's grammar, or null when it does not end in time. */
function written(schema: unknown, seed: number): string | null {
  const sampler = model.createSampler({ grammar: jsonSchemaGrammar(schema), temperature: 1, seed })
  const tokens: number[] = []
  try {
    while (tokens.length < 400) {
      const token = sampler.sample(context, 9)
      if (model.isEndOfGeneration(token)) return model.detokenize(tokens)
      tokens.push(token)
    }
    return null
  } finally {
    sampler.dispose()
  }
}

/** Returns true when the grammar accepts the whole text. */
function takes(schema: unknown, text: string): boolean {
  const sampler = model.createSampler({ grammar: jsonSchemaGrammar(schema) })
  try {
    for (const token of model.tokenize(text)) sampler.accept(token)
    sampler.accept(model.special.eos ?? -1)
    return true
  } catch {
    return false
  } finally {
    sampler.dispose()
  }
}

describe('a schema as a grammar', () => {
  test('the model writes JSON of that shape', () => {
    const schema = {
      type: 'object',
      title: 'A fold',
      properties: { fragment: { enum: ['f0', 'f1'] }, sure: { type: 'boolean' }, count: { type: ['integer', 'null'] } },
      required: ['fragment'],
      additionalProperties: false,
    }
    let ended = 0
    for (let seed = 0; seed < 12; seed++) {
      const text = written(schema, seed)
      if (text === null) continue
      ended++
      const value = JSON.parse(text) as Record<string, unknown>
      expect(['f0', 'f1']).toContain(value['fragment'])
      for (const key of Object.keys(value)) expect(['fragment', 'sure', 'count']).toContain(key)
      expect([true, false, undefined]).toContain(value['sure'])
      expect(value['count'] == null || Number.isInteger(value['count'])).toBe(true)
    }
    expect(ended).toBeGreaterThan(0)
  })

  test.each<[string, unknown, string, string]>([
    ['oneOf', { oneOf: [{ const: 'a' }, { type: 'integer' }] }, '"a"', '"b"'],
    ['anyOf', { anyOf: [{ type: 'boolean' }, { type: 'null' }] }, 'null', '1'],
    ['types that node-llama-cpp does not list', { type: ['array', 'null'], items: { const: 1 } }, 'null', 'true'],
    [
      '$ref',
      { type: 'object', properties: { next: { $ref: '#/$defs/item' } }, $defs: { item: { const: 7 } } },
      '{"next": 7}',
      '{"next": 8}',
    ],
    ['prefixItems', { type: 'array', prefixItems: [{ const: 1 }, { const: 2 }], maxItems: 2 }, '[1, 2]', '[2, 1]'],
    ['maxLength', { type: 'string', maxLength: 2 }, '"ab"', '"abc"'],
    ['a recursive one', { type: 'object', properties: { next: { $ref: '#' } } }, '{"next": {"next": {}}}', '{"next": 1}'],
    ['an integer of bounds', { type: 'integer', minimum: -3, exclusiveMaximum: 120 }, '119', '120'],
    ['a number of bounds', { type: 'number', minimum: 0.25, maximum: 1 }, '0.3', '0.2'],
    ['a pattern', { type: 'string', pattern: '^[a-z]+(-\\d{2})?$' }, '"ab-12"', '"ab-1"'],
    ['allOf', { allOf: [{ type: 'integer', minimum: 3 }, { maximum: 5 }] }, '4', '6'],
    ['anything', {}, '{"a": [1, null]}', '{a: 1}'],
    ['minLength', { type: 'string', minLength: 1200, maxLength: 1201 }, `"${'a'.repeat(1200)}"`, `"${'a'.repeat(1199)}"`],
    ['a date', { type: 'string', format: 'date' }, '"2024-01-31"', '"2024-1-31"'],
    ['minItems', { type: 'array', items: { const: 1 }, minItems: 2 }, '[1, 1]', '[1]'],
  ])('%s', (_, schema, right, wrong) => {
    expect(takes(schema, right)).toBe(true)
    expect(takes(schema, wrong)).toBe(false)
  })

  test.each<[string, unknown]>([
    ['must be an object', 'text'],
    ['must be an object', null],
    ['#/minLength must be a whole number', { type: 'string', minLength: -1 }],
    ['#/properties must be an object', { properties: [] }],
    ['uses not', { not: { type: 'string' } }],
    ['#/items uses patternProperties', { items: { patternProperties: {} } }],
    ['#/properties/a/pattern uses the group (?=b', { type: 'object', properties: { a: { type: 'string', pattern: '(?=b)' } } }],
    ['#/uniqueItems', { type: 'array', uniqueItems: true }],
    ['unknown type', { type: 'text' }],
    ['#/format is "iri"', { type: 'string', format: 'iri' }],
    ['allows no value', { type: 'string', minLength: 3, maxLength: 2 }],
    ['allows no value', { allOf: [{ type: 'string' }, { type: 'null' }] }],
    ['allows no value', { type: 'object', properties: { next: { $ref: '#' } }, required: ['next'] }],
    ['$ref', { $ref: 'http://example.com/schema' }],
    ['where there is no schema', { $ref: '#/$defs/missing' }],
    ['#/oneOf has alternatives', { oneOf: [{ type: 'integer' }, { type: 'number' }] }],
    ['refers to itself', { anyOf: [{ type: 'null' }, { $ref: '#' }] }],
  ])('refuses, and names: %s', async (what, schema) => {
    expect((await refused('engine/bad-grammar', () => jsonSchemaGrammar(schema))).message).toContain(what)
  })
})
