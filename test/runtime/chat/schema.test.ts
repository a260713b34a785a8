import fc from 'fast-check'
import { getLlama, type Llama } from 'node-llama-cpp'
import { describe, expect, test } from 'vitest'
import { jsonSchemaGrammar } from '../../../src/runtime/chat/grammar.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Random } from '../../../src/runtime/core/random.js'
import { readJson } from '../../../src/runtime/core/written-json.js'
import { Grammar } from '../../support/gbnf.js'
import { anyWholeSchema, validator } from '../../support/schemas.js'
import { LONG } from '../../support/long.js'

/** How many random schemas are drawn that a grammar can keep to. */
const CASES = LONG ? 10_000 : 100

const grammarOrNull = (schema: unknown): Grammar | null => {
  try {
    return new Grammar(jsonSchemaGrammar(schema))
  } catch (error) {
    if (error instanceof KvfoldError && error.code === 'engine/bad-grammar') return null
    throw error
  }
}

describe('a JSON schema as a grammar', () => {
  test('every text of the grammar satisfies the schema', { timeout: 900_000 }, () => {
    let [made, refused] = [0, 0]
    fc.assert(
      fc.property(anyWholeSchema, fc.integer(), (schema, seed) => {
        const grammar = grammarOrNull(schema)
        if (grammar === null) {
          refused++
          return
        }
        const isRight = validator(schema)
        if (isRight === null) return
        made++
        const chance = new Random(seed)
        for (let draw = 0; draw < 5; draw++) {
          const text = grammar.draw(() => chance.word() / 2 ** 32)
          const value: unknown = JSON.parse(text)
          if (!isRight(value)) throw new Error(`${text} violates ${JSON.stringify(schema)}: ${JSON.stringify(isRight.errors)}`)
        }
      }),
      // Nothing satisfies some of the schemas, and a oneOf is refused when its alternatives overlap.
      { numRuns: 3 * CASES },
    )
    expect(made, `${refused} refused`).toBeGreaterThan(CASES)
  })

  const read = (json: string): unknown => readJson(json)
  let loaded: Promise<Llama> | null = null
  const llama = () => (loaded ??= getLlama({ gpu: false, build: 'never', progressLogs: false, logger: () => undefined }))
  /** Returns those of the texts that llama.cpp accepts under the grammar. */
  const accepted = async (schema: string, texts: readonly string[]): Promise<readonly string[]> => {
    const grammar = await (await llama()).createGrammar({ grammar: jsonSchemaGrammar(read(schema)) })
    return texts.filter((text) => (grammar as unknown as { _testText(text: string): boolean })._testText(text))
  }

  test.each<[string, readonly string[], readonly string[]]>([
    ['{"const":9007199254740993}', ['9007199254740993'], ['9007199254740992']],
    ['{"const":1.50}', ['1.50'], ['1.5']],
    ['{"const":1e400}', ['1e400'], ['null']],
    [
      '{"const":{"b":[12345678901234567890],"1":1.0}}',
      ['{"b":[12345678901234567890],"1":1.0}'],
      ['{"1":1.0,"b":[12345678901234567890]}'],
    ],
    ['{"enum":[12345678901234567890,"x"]}', ['12345678901234567890', '"x"'], ['12345678901234567000']],
    [
      '{"type":"integer","enum":[9007199254740993,9007199254740992],"maximum":9007199254740992}',
      ['9007199254740992'],
      ['9007199254740993'],
    ],
    [
      '{"allOf":[{"enum":[9007199254740993,1.0]},{"enum":[9007199254740992,1]}]}',
      ['1.0'],
      ['9007199254740993', '9007199254740992'],
    ],
    [
      '{"minimum":9007199254740993,"maximum":9007199254740993,"type":"integer"}',
      ['9007199254740993'],
      ['9007199254740992', '9007199254740994'],
    ],
    [
      '{"type":"integer","exclusiveMinimum":9007199254740993}',
      ['9007199254740994', '9007199254741000'],
      ['9007199254740993', '9007199254740992'],
    ],
    [
      '{"type":"integer","minimum":9223372036854770001,"exclusiveMaximum":9223372036854776000}',
      ['9223372036854770001', '9223372036854775999'],
      ['9223372036854770000', '9223372036854776000'],
    ],
    [
      '{"type":"integer","minimum":-9223372036854775808,"maximum":-9223372036854775807}',
      ['-9223372036854775808', '-9223372036854775807'],
      ['-9223372036854775809', '-9223372036854775806'],
    ],
    ['{"type":"integer","minimum":100000000000000000000000000}', ['100000000000000000000000000'], ['99999999999999999999999999']],
    [
      '{"type":"integer","maximum":-100000000000000000000000000}',
      ['-100000000000000000000000000'],
      ['-99999999999999999999999999', '1'],
    ],
    ['{"type":"integer","minimum":20000000000,"maximum":1e30}', ['20000000000', '12345678901234567890'], ['19999999999']],
    [
      '{"type":"number","minimum":9007199254740993,"maximum":9007199254740994}',
      ['9007199254740993', '9007199254740994'],
      ['9007199254740992', '9007199254740995'],
    ],
    [
      '{"allOf":[{"type":"integer","minimum":9007199254740993},{"minimum":9007199254740992}]}',
      ['9007199254740993'],
      ['9007199254740992'],
    ],
    [
      '{"type":"integer","format":"int64"}',
      ['9223372036854775807', '-9223372036854775808', '0'],
      ['9223372036854775808', '-9223372036854775809'],
    ],
    ['{"type":"integer"}', ['18446744073709551615', '-9223372036854775808'], []],
    [
      '{"oneOf":[{"type":"integer","maximum":9007199254740992},{"type":"integer","minimum":9007199254740993}]}',
      ['9007199254740992', '9007199254740993'],
      [],
    ],
    ['{"properties":{"const":{"type":"string","minLength":1.0}}}', ['{"const": "x"}'], ['{"const": ""}']],
  ])('keeps the numbers as they are written: %s', async (schema, right, wrong) => {
    expect(await accepted(schema, [...right, ...wrong])).toEqual(right)
  })

  test('distinguishes whole numbers that share a double', () => {
    const overlap =
      '{"oneOf":[{"type":"integer","exclusiveMaximum":9007199254740993},{"type":"integer","minimum":9007199254740992}]}'
    expect(() => jsonSchemaGrammar(read(overlap))).toThrow(/alternatives that the same value may satisfy/)
    const nothing = '{"type":"integer","minimum":9007199254740993,"maximum":9007199254740992}'
    expect(() => jsonSchemaGrammar(read(nothing))).toThrow(/allows no value/)
  })

  test('distinguishes a name with the signs of a character class from other names', async () => {
    const schema = '{"properties":{"^[x]-\\\\":{"const":1}},"additionalProperties":{"const":2}}'
    const right = ['{"^[x]-\\\\": 1}', '{"^": 2}', '{"^[x]": 2}', '{"a^": 2}']
    expect(await accepted(schema, [...right, '{"^[x]-\\\\": 2}'])).toEqual(right)
  })

  test('has properties in the order in which they are written', async () => {
    const properties = '"b":{"const":1},"2":{"const":2},"1":{"const":3}'
    const right = '{"b":1,"2":2,"1":3}'
    for (const schema of [
      `{"properties":{${properties}},"required":["b","2","1"]}`,
      `{"allOf":[{"properties":{${properties}}},{"properties":{"b":{"type":"integer"}},"required":["1"]}]}`,
    ])
      expect(await accepted(schema, [right, '{"1":3,"2":2,"b":1}'])).toEqual([right])
  })

  test('has escaped characters beyond U+FFFF as whole characters', async () => {
    const right = ['"\\ud83d\\ude00"', '"\\uDBFF\\uDFFF"', '"\\u00e9"', '"😀"']
    const halves = ['"\\ud83d"', '"\\ude00"', '"\\ude00\\ud83d"', '"\\ud83d\\ud83d"', '"\\ud83dx"', '"\\ud83d\\u00e9"']
    expect(await accepted('{"type":"string","minLength":1,"maxLength":1}', [...right, ...halves])).toEqual(right)
    expect(await accepted('{"type":"string"}', [...right, ...halves])).toEqual(right)
  })

  test.each<[string, readonly string[], readonly string[]]>([
    ['{"type":"object","unevaluatedProperties":false}', ['{}'], ['{"a": 1}']],
    ['{"type":"object","required":["a"],"unevaluatedProperties":{"type":"integer"}}', ['{"a": 1}'], ['{"a": "x"}', '{}']],
    ['{"properties":{"a":{"const":1}},"unevaluatedProperties":true}', ['{"a": 1, "b": "x"}', '{}'], ['{"a": 2}']],
    ['{"additionalProperties":{"const":1},"unevaluatedProperties":false}', ['{"a": 1}'], ['{"a": 2}']],
    [
      '{"allOf":[{"properties":{"a":{"const":1}}}],"required":["b"],"unevaluatedProperties":{"const":2}}',
      ['{"b": 2}', '{"a": 1, "b": 2, "c": 2}'],
      ['{"b": 1}', '{"a": 2, "b": 2}', '{"b": 2, "c": 1}'],
    ],
    [
      '{"type":"object","oneOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":2}},"required":["b"]}],"unevaluatedProperties":false}',
      ['{"a": 1}', '{"b": 2}'],
      ['{"a": 1, "b": 2}', '{"a": 1, "c": 1}', '{}'],
    ],
    ['{"$ref":"#/$defs/a","unevaluatedProperties":false,"$defs":{"a":{"minProperties":0}}}', ['{}'], ['{"a": 1}']],
  ])('restricts properties that no part of the schema names: %s', async (schema, right, wrong) => {
    expect(await accepted(schema, [...right, ...wrong])).toEqual(right)
  })

  test('refuses alternatives that overlap through unevaluatedProperties', () => {
    const [one, other] = ['a', 'b'].map((name) => `{"properties":{"${name}":{"const":1}},"required":["${name}"]}`)
    const schema = (others: string) => `{"type":"object","oneOf":[${one},${other}],"unevaluatedProperties":${others}}`
    expect(() => jsonSchemaGrammar(read(schema('{"const":1}')))).toThrow(/alternatives that the same value may satisfy/)
    expect(() => jsonSchemaGrammar(read(schema('{"const":2}')))).not.toThrow()
  })

  test('leaves unevaluatedProperties out beside properties that it cannot express', async () => {
    const places: string[] = []
    const schema = read('{"type":"object","patternProperties":{"^x":{"const":1}},"unevaluatedProperties":false}')
    const grammar = await (await llama()).createGrammar({ grammar: jsonSchemaGrammar(schema, (place) => places.push(place)) })
    expect((grammar as unknown as { _testText(text: string): boolean })._testText('{"x": 1}')).toBe(true)
    expect(places).toEqual(['#/patternProperties'])
  })

  test('allows every name where patternProperties chooses names', async () => {
    const schema = read(
      '{"type":"object","properties":{"a":{"const":1}},"patternProperties":{"^x":{"const":1}},"additionalProperties":false}',
    )
    const grammar = await (await llama()).createGrammar({ grammar: jsonSchemaGrammar(schema, () => undefined) })
    const reads = (text: string) => (grammar as unknown as { _testText(text: string): boolean })._testText(text)
    expect([reads('{"x-one": 1}'), reads('{"a": 1, "x": 1}'), reads('{"a": 2}')]).toEqual([true, true, false])
  })
})
