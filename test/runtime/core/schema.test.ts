import Type from 'typebox'
import { describe, expect, it } from 'vitest'
import { checked, inWords, nullable, strict, Text } from '../../../src/runtime/core/schema.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'

const Order = strict({
  count: Type.Integer({ minimum: 1, maximum: 9, default: 5 }),
  name: Type.Optional(Text),
  size: Type.Union([Type.String(), Type.Number()]),
  kind: Type.Enum(['new', 'old'], { default: 'new' }),
  limit: nullable(Type.Number({ exclusiveMinimum: 0 })),
  parts: Type.Array(Type.Object({ role: Type.Enum(['top', 'side']) }), { minItems: 1, uniqueItems: true }),
  place: Type.Optional(Type.Union([Text, strict({ at: Type.String() })])),
})
const words = (given: unknown) => {
  const read = checked(Order, given)
  return read.ok ? [] : read.faults.map((fault) => inWords(fault))
}
const whole = { size: 1, limit: null, parts: [{ role: 'top' }] }

describe('checked', () => {
  it('fills in defaults, drops fields that the schema does not name, and leaves the input alone', () => {
    const given = { ...whole, parts: [{ role: 'top', more: 1 }], name: undefined }
    const before = structuredClone(given)
    expect(checked(Order, given)).toEqual({ ok: true, value: { ...whole, count: 5, kind: 'new' } })
    expect(given).toEqual(before)
  })

  it('keeps the digits of numbers and the order of keys, in the value and in the faults', () => {
    const Call = Type.Object({
      step: Type.Number(),
      args: Type.Record(Type.String(), Type.Unknown()),
      seen: Type.Array(Type.Unknown()),
    })
    const text = '{"args":{"z":1.50,"7":{"id":9007199254740993}},"seen":[1e400,{"b":0,"1":0}],"step":1}'
    const read = checked(Call, readJson(text))
    expect(read.ok && writeJson(read.value)).toBe(text)
    expect(words(readJson('{"size":1,"limit":null,"parts":[{"role":"top"}],"count":9007199254740993}'))).toEqual([
      'count: must be at most 9, not 9007199254740993',
    ])
    expect(words(readJson('{"size":1,"limit":null,"parts":[{"role":{"b":1.0,"1":2}}]}'))).toEqual([
      'parts.0.role: must be one of "top", "side", not {"b":1.0,"1":2}',
    ])
  })

  it.each([
    [{}, ['size: is missing', 'limit: is missing', 'parts: is missing']],
    [{ ...whole, count: 0 }, ['count: must be at least 1, not 0']],
    [{ ...whole, count: 10 }, ['count: must be at most 9, not 10']],
    [{ ...whole, count: 1.5 }, ['count: must be a whole number, not 1.5']],
    [{ ...whole, count: NaN }, ['count: must be a whole number, not null']],
    [{ ...whole, name: '' }, ['name: must not be empty, not ""']],
    [{ ...whole, size: true }, ['size: must be a string or a number, not true']],
    [{ ...whole, kind: 'q' }, ['kind: must be one of "new", "old", not "q"']],
    [{ ...whole, parts: [] }, ['parts: must not be empty, not []']],
    [
      { ...whole, parts: [{ role: 'q' }, 4] },
      ['parts.0.role: must be one of "top", "side", not "q"', 'parts.1: must be an object, not 4'],
    ],
    [{ ...whole, parts: [{ role: 'top' }, { role: 'top' }] }, [expect.stringContaining('parts: must not have a value twice')]],
    [{ ...whole, place: { at: 3 } }, ['place: has none of its allowed forms, not {"at":3}']],
    [{ ...whole, limit: 0 }, ['limit: has none of its allowed forms, not 0']],
    [
      { ...whole, x: 1, count: 0 },
      ['count: must be at least 1, not 0', expect.stringMatching(/^it: has unknown fields: x; it may have: count, name,/u)],
    ],
    [4, ['it: must be an object, not 4']],
    [null, ['it: must be an object, not null']],
  ])('says which fields of %j are wrong, and why', (given, said) => {
    expect(words(given)).toEqual(said)
  })
})
