import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../src/native/binding.js'
import type { Native, NativeContext, NativeModel } from '../../src/native/types.js'
import { tinyModel } from '../support/models.js'
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

/** A text that the schema's grammar allows, written by the model; null when it did not end in time. */
async function written(schema: unknown, seed: number): Promise<string | null> {
  const sampler = model.createSampler({ grammar: await native.grammarFromSchema(schema), temperature: 1, seed })
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

/** True when the grammar takes the whole text. */
async function takes(schema: unknown, text: string): Promise<boolean> {
  const sampler = model.createSampler({ grammar: await native.grammarFromSchema(schema) })
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
  test('what is written is JSON of that shape', async () => {
    const schema = {
      type: 'object',
      title: 'A fold',
      properties: { fragment: { enum: ['f0', 'f1'] }, sure: { type: 'boolean' }, count: { type: ['integer', 'null'] } },
      required: ['fragment'],
      additionalProperties: false,
    }
    let ended = 0
    for (let seed = 0; seed < 12; seed++) {
      const text = await written(schema, seed)
      if (text === null) continue
      ended++
      const value = JSON.parse(text) as Record<string, unknown>
      expect(Object.keys(value)).toEqual(['fragment', 'sure', 'count'])
      expect(['f0', 'f1']).toContain(value['fragment'])
      expect([true, false]).toContain(value['sure'])
      expect(value['count'] === null || Number.isInteger(value['count'])).toBe(true)
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
    ['a date', { type: 'string', format: 'date' }, '"2024-01-31"', '"2024-1-31"'],
    ['minItems', { type: 'array', items: { const: 1 }, minItems: 2 }, '[1, 1]', '[1]'],
  ])('%s', async (_, schema, right, wrong) => {
    expect(await takes(schema, right)).toBe(true)
    expect(await takes(schema, wrong)).toBe(false)
  })

  test.each<[string, unknown]>([
    ['must be an object', 'text'],
    ['must be an object', null],
    ['no type', {}],
    ['pattern', { type: 'string', pattern: '^a' }],
    ['minimum', { type: 'integer', minimum: 3 }],
    ['allOf', { allOf: [{ type: 'string' }] }],
    ['not', { not: { type: 'string' } }],
    ['unknown type', { type: 'text' }],
    ['email', { type: 'string', format: 'email' }],
    ['requires "b"', { type: 'object', properties: { a: { type: 'null' } }, required: ['b'] }],
    ['#/properties/a uses pattern', { type: 'object', properties: { a: { type: 'string', pattern: 'x' } } }],
    ['nothing can satisfy', { type: 'string', minLength: 3, maxLength: 2 }],
    ['only texts, numbers', { enum: [{ a: 1 }] }],
    ['$ref', { $ref: 'http://example.com/schema' }],
    ['names no schema', { $ref: '#/$defs/missing' }],
    ['beside type', { type: 'object', oneOf: [{ type: 'null' }] }],
  ])('refuses, naming it: %s', async (what, schema) => {
    expect((await refused('engine/bad-grammar', () => native.grammarFromSchema(schema))).message).toContain(what)
  })
})
