/** Tests that digits and the order of keys survive reading and writing JSON, and that the values are those of JSON.parse. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  cloned,
  comparableJson,
  numberText,
  objectOf,
  readJson,
  writeJson,
  writtenEntries,
  writtenLike,
} from '../../../src/runtime/core/written-json.js'

const NUMBERS = [
  ...[
    '9007199254740993',
    '12345678901234567890',
    '-9223372036854775808',
    '123456789012345678901234567890',
    '1e400',
    '-0',
    '-0.0',
  ],
  ...['0.1000000000000000055511151231257827', '1.0', '1.50', '1E5', '1e5', '2e-7', '0.0000001', '0', '7', '-1', '0.1', '1e+2'],
]

/** Draws numbers with any digits, point and exponent. */
const number = fc.oneof(
  fc.constantFrom(...NUMBERS),
  fc
    .tuple(
      fc.boolean(),
      fc.bigInt({ min: 0n, max: 10n ** 25n }),
      fc.option(fc.nat(10 ** 8)),
      fc.option(fc.integer({ min: -30, max: 30 })),
    )
    .map(
      ([minus, whole, part, power]) =>
        `${minus ? '-' : ''}${whole}${part === null ? '' : `.${part}`}${power === null ? '' : `e${power}`}`,
    ),
)
const key = fc.oneof(
  fc.constantFrom('b', 'a', '10', '9', '1', '01', '-1', '4294967294', '4294967295', 'id'),
  fc.string({ maxLength: 5 }),
)

/** Draws JSON texts without white space, written as JSON.stringify writes them except for numbers and the order of keys. */
const { text } = fc.letrec<{ text: string }>((tie) => ({
  text: fc.oneof(
    { maxDepth: 4 },
    number,
    fc.string().map((said) => JSON.stringify(said)),
    fc.constantFrom('true', 'false', 'null'),
    fc.array(tie('text'), { maxLength: 4 }).map((items) => `[${items.join(',')}]`),
    fc
      .uniqueArray(fc.tuple(key, tie('text')), { maxLength: 5, selector: ([name]) => name })
      .map((fields) => `{${fields.map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(',')}}`),
  ),
}))
const container = text.map((inner) => `[${inner}]`)

describe('readJson and writeJson', () => {
  it('give back any text, and the values of JSON.parse', () => {
    fc.assert(
      fc.property(container, (json) => {
        const value = readJson(json)
        expect(JSON.stringify(value)).toBe(JSON.stringify(JSON.parse(json)))
        expect(writeJson(value)).toBe(json)
        expect(writeJson(cloned(value))).toBe(json)
        // Spaces and line breaks change nothing.
        expect(writeJson(readJson(writeJson(value, 2)))).toBe(json)
      }),
    )
  })

  it('indent as JSON.stringify does', () => {
    for (const value of [{ a: [1, { b: 'x\ny' }], c: {}, d: [] }, [], [[]], 'x', 1, null])
      expect(writeJson(value, 2)).toBe(JSON.stringify(value, null, 2))
    expect(writeJson(readJson('{"a":[1.0,{"b":"x\\ny","e":[]}],"c":{}}'), 2)).toBe(
      JSON.stringify({ a: [7, { b: 'x\ny', e: [] }], c: {} }, null, 2).replace('7', '1.0'),
    )
  })

  it('take the last value of a repeated key, at the place of the first', () => {
    expect(writeJson(readJson('{"b":1.0,"a":{"x":1.0},"1":2.0,"b":3,"a":{"x":1}}'))).toBe('{"b":3,"a":{"x":1},"1":2.0}')
    expect(writeJson(readJson('{"b":{"x":1.0},"b":[2.0]}'))).toBe('{"b":[2.0]}')
  })

  it('understand escaped keys, and strings that look like numbers', () => {
    expect(writeJson(readJson(String.raw`{"b":0,"\u0031":"1.0 \\","x\"":[9007199254740993]}`))).toBe(
      String.raw`{"b":0,"1":"1.0 \\","x\"":[9007199254740993]}`,
    )
  })

  it('read texts that nest more deeply than the call stack allows', () => {
    const json = `${'['.repeat(50_000)}1.0${']'.repeat(50_000)}`
    let value = readJson(json)
    while (Array.isArray(value) && Array.isArray(value[0])) value = value[0]
    expect(writeJson(value)).toBe('[1.0]')
  })

  it('throw where JSON.parse does', () => {
    for (const json of ['', '{', '[01]', '{"a":1.}', '[1.0]x', 'undefined']) expect(() => readJson(json)).toThrow(SyntaxError)
  })

  it('write a changed copy with its changes, and the rest as it was written', () => {
    const value = readJson('{"b":9007199254740993,"1":1.0,"a":{"x":2.0}}') as object
    expect(writeJson({ ...value, 1: 5, c: [1] })).toBe('{"b":9007199254740993,"1":5,"a":{"x":2.0},"c":[1]}')
    const { b, ...rest } = value as { b: number }
    expect(b).toBe(9007199254740992)
    expect(writeJson(rest)).toBe('{"1":1.0,"a":{"x":2.0}}')
    expect(writeJson(writtenLike({ a: 1, 1: 1 }, value))).toBe('{"1":1.0,"a":1}')
  })
})

describe('writtenEntries', () => {
  it('have the order and the numbers of the text', () => {
    expect(writtenEntries(readJson('{"b":1,"1":1.0}') as object)).toEqual([
      { key: 'b', value: 1, text: undefined },
      { key: '1', value: 1, text: '1.0' },
    ])
    expect(writtenEntries(readJson('[3,1E2]') as object)).toEqual([
      { key: '0', value: 3, text: undefined },
      { key: '1', value: 100, text: '1E2' },
    ])
    expect(numberText(readJson('{"n":12345678901234567890}') as object, 'n')).toBe('12345678901234567890')
  })

  it('are the entries that objectOf was given', () => {
    const object = objectOf([
      ['b', 9007199254740992, '9007199254740993'],
      ['2', 'x'],
      ['1', 5, '5'],
    ])
    expect(object).toEqual(expect.objectContaining({ b: 9007199254740992, 1: 5, 2: 'x' }))
    expect(writeJson(object)).toBe('{"b":9007199254740993,"2":"x","1":5}')
  })
})

describe('comparableJson', () => {
  const same = (a: string, b: string) => comparableJson(readJson(a)) === comparableJson(readJson(b))

  it('is the same for texts that mean the same', () => {
    expect(same('{"a":1.0,"b":[1e2,-0]}', '{"b":[100,0],"a":1}')).toBe(true)
    expect(same('[10000000000000000000000]', '[1e22]')).toBe(true)
    // Programs pass decimals on as doubles.
    expect(same('[3.14159265358979323846]', '[3.141592653589793]')).toBe(true)
  })

  it('distinguishes whole numbers that share a double', () => {
    expect(same('[9007199254740993]', '[9007199254740992]')).toBe(false)
    expect(same('{"a":[12345678901234567890]}', '{"a":[12345678901234567891]}')).toBe(false)
    expect(same('[9223372036854775808]', '[9223372036854776000]')).toBe(false)
    expect(same('[1e400]', '[null]')).toBe(false)
    expect(same('{"a":9007199254740993}', '{"a":9007199254740993}')).toBe(true)
  })
})
