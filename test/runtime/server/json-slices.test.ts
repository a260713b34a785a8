import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { atOnce } from '../../../src/runtime/core/turns.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'
import { parseJsonBody, readJsonBody } from '../../../src/runtime/server/json-body.js'
import { writtenInSteps } from '../../../src/runtime/server/json-slices.js'

/** Returns a body longer than one slice, with a value somewhere in it. */
const around = (inner: string, before: number): string =>
  `{ "list" : [${Array.from({ length: 3_000 }, (_, at) => `{"at":${at},"text":"some [text] {with} \\"quotes\\" ${at}"}`).join(' , ')}],
   "${'k'.repeat(before)}": {"inner": ${inner}, "more": [${'"x", '.repeat(20_000)}${inner}]}, "last": "${'y'.repeat(100_000)}"}\n`

const outcome = async (work: () => unknown): Promise<unknown> => {
  try {
    return await work()
  } catch (error) {
    return (error as Error).message
  }
}

describe('a long body', () => {
  it('reads the same in slices as at once, whatever is in it', async () => {
    await fc.assert(
      fc.asyncProperty(fc.json({ depthSize: 'medium' }), fc.nat(200), async (inner, before) => {
        const body = Buffer.from(around(inner, before))
        expect(await readJsonBody(body)).toEqual(parseJsonBody(body))
      }),
      { numRuns: 30 },
    )
  })

  it('may repeat keys, and begin with a byte order mark', async () => {
    const body = Buffer.from(`\ufeff{${'"a": [1, 2, 3], "b": 1, '.repeat(5_000)}"a": 7}`)
    expect(await readJsonBody(body)).toEqual(parseJsonBody(body))
  })

  it('keeps digits and the order of keys, read and written, wherever a slice ends', async () => {
    const numbers = Array.from({ length: 20_000 }, (_, at) => `${9_007_199_254_740_993n + BigInt(at)},1.0,${at}`).join(',')
    const keys = Array.from({ length: 9_000 }, (_, at) => `"${9_000 - at}":-0,"k${at}":{"2":1e400,"1":[1E5]}`).join(',')
    const text = `{"numbers":[${numbers}],"keys":{${keys}},"10":"${'x'.repeat(100_000)}","9":12345678901234567890}`
    const value = await readJsonBody(Buffer.from(text))
    expect(writeJson(value) === text).toBe(true)
    expect(atOnce(writtenInSteps(value)).toString() === text).toBe(true)
    expect(value).toEqual(readJson(text))
  })

  it('keeps long strings, wherever a slice ends in them', async () => {
    // Escapes of two and of six characters, and characters of one to four bytes, at every offset from the ends of slices.
    for (const piece of ['\n"', '\u0007', 'é', '\u{1f600}', 'x', '\\'])
      for (let before = 0; before < 6; before++) {
        const text = '-'.repeat(before) + piece.repeat(300_000 / piece.length)
        const written = JSON.stringify({ text }).replaceAll('\u{1f600}', before < 3 ? '\\ud83d\\ude00' : '\u{1f600}')
        expect(await readJsonBody(Buffer.from(written))).toEqual({ text })
      }
  })

  it('with too many numbers whose text is kept is refused', async () => {
    expect(await outcome(() => readJsonBody(Buffer.from(`{"a":[${'1.0,'.repeat(2 ** 17 + 1)}1]}`)))).toBe(
      'The body has a list or an object with more than 131072 numbers such as 1.0 and 1e5, which keep their text.',
    )
    expect(await readJsonBody(Buffer.from(`{"a":[${'1,'.repeat(2 ** 17)}1.0]}`))).toHaveProperty('a')
  })

  const long = 'x'.repeat(100_000)
  it.each([
    `{"a": "${long}"`,
    `{"a": "${long}\\u00"}`,
    `{"a": "${long}\\`,
    `{"a": "${long}",}`,
    `{"a": "${long}" "b": 1}`,
    `{"a" "${long}"}`,
    `{a: "${long}"}`,
    `{"a": "${long}"]`,
    `["${long}", 1, 2, }`,
    `["${long}"] ["more"]`,
    `"${long}`,
    long,
    ' '.repeat(100_000),
    `{"a": [${'1, '.repeat(50_000)}]}`,
    `{"a": [${'1, '.repeat(50_000)} x]}`,
    `{"a": "${long}", "b": "\n"}`,
  ])('that is not JSON is refused: %#', async (text) => {
    expect(await outcome(() => readJsonBody(Buffer.from(text)))).toMatch(/^The body is (not JSON|empty)/)
    expect(await outcome(() => parseJsonBody(Buffer.from(text)))).toMatch(/^The body is (not JSON|empty)/)
  })

  it.each([
    [`{"a": "${long}", "__proto__": {}}`, '__proto__'],
    [`{"__proto__": {"a": "${long}"}}`, '__proto__'],
    [`{"constructor": {"a": "${long}", "prototype": {}}}`, 'constructor'],
    [`{"a": "${long}", "b": {"constructor": {"prototype": 1}}}`, 'constructor'],
    [`{"\\u005f_proto__": ["${long}"]}`, '__proto__'],
  ])('with a key that poisons prototypes is refused: %#', async (text, key) => {
    const refusal = `The body has the key ${key}, which the server refuses.`
    expect(await outcome(() => readJsonBody(Buffer.from(text)))).toBe(refusal)
    expect(await outcome(() => parseJsonBody(Buffer.from(text)))).toBe(refusal)
  })

  it('that nests too deep is refused, wherever it does', async () => {
    const nested = (depth: number, inner: string) => '['.repeat(depth) + inner + ']'.repeat(depth)
    for (const text of [
      `{"a": "${long}", "b": ${nested(100, '1')}}`,
      nested(60, `"${long}", ${nested(41, '1')}`),
      nested(101, `"${long}"`),
    ])
      expect(await outcome(() => readJsonBody(Buffer.from(text)))).toBe('The body nests deeper than 100 levels.')
    const deepest = Buffer.from(nested(60, `"${long}", ${nested(40, '1')}`))
    expect(await readJsonBody(deepest)).toEqual(parseJsonBody(deepest))
  })

  it('with too many members is refused', async () => {
    const body = `{${Array.from({ length: 70_000 }, (_, at) => `"${at}":1`).join()}}`
    expect(await outcome(() => readJsonBody(Buffer.from(body)))).toBe(
      'The body has a list or an object with more than 65536 members.',
    )
  })

  it('with too many values in all lists and objects together is refused', async () => {
    const list = `[${'{},'.repeat(800_000)}{}]`
    expect(await outcome(() => readJsonBody(Buffer.from(`{"a":{"b":${list},"c":[${list},${list}]}}`)))).toBe(
      'The body has lists and objects with more than 2097152 values together.',
    )
    const numbers = await readJsonBody(Buffer.from(`{"a":[${'[1,2,3],'.repeat(520_000)}[]]}`))
    expect((numbers as { a: unknown[] }).a).toHaveLength(520_001)
  })

  it('that is not UTF-8 is refused', async () => {
    const body = Buffer.concat([Buffer.from(`{"a": "${long}`), Buffer.of(0xff), Buffer.from('"}')])
    expect(await outcome(() => readJsonBody(body))).toBe('The body is not UTF-8.')
  })
})

describe('a long answer', () => {
  it('is written as by JSON.stringify', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.nat(100), (value, size) => {
        const long = {
          value,
          none: undefined,
          list: [value, undefined, ...Array.from({ length: 500 * size }, (_, at) => ({ at, value }))],
          inner: { date: new Date(0), text: 'ü"\ud800'.repeat(1000 * size), value, left: undefined },
        }
        expect(String(atOnce(writtenInSteps(long)))).toBe(JSON.stringify(long))
      }),
      { numRuns: 30 },
    )
  })
})
