/** Tests long arguments of calls in a request: reading them ahead in steps gives the same as reading them at once. */
import { describe, expect, it } from 'vitest'
import { writeJson } from '../../../../src/runtime/core/written-json.js'
import { argumentsAhead, argumentsOf, callOf } from '../../../../src/runtime/server/dialects/tools.js'

const read = (body: object) =>
  new Promise<void>((resolve, reject) => {
    argumentsAhead({ body }, null, (error) => {
      if (error === undefined) resolve()
      else reject(error)
    })
  })

const list = (item: string, count: number): string => `{"list":[${`${item},`.repeat(count - 1)}${item}]}`
const LONG = 'x'.repeat(200_000)

describe('long arguments', () => {
  it.each([
    ['a text', JSON.stringify({ text: LONG })],
    ['a text with escapes', JSON.stringify({ text: '\n"\u0007'.repeat(50_000) })],
    ['digits and the order of keys', `{"10":9007199254740993,"9":1.0,"text":"${LONG}"}`],
    ['a key twice', `{"a":1,"a":2,"text":"${LONG}"}`],
    ['what is no JSON', LONG],
    ['JSON that ends too early', `{"text":"${LONG}`],
    ['JSON that is no object', `["${LONG}"]`],
    ['JSON that nests too deep', `{"a":${'['.repeat(200)}"${LONG}"${']'.repeat(200)}}`],
    ['many values', list('"twenty characters, say"', 8_000)],
    ['too many values', list('"twenty characters, say"', 8_300)],
    ['far too many values', list('1', 400_000)],
  ])('read in steps are the same as at once: %s', async (_, text) => {
    const called = { name: 'f', arguments: text }
    await read({ messages: [{ role: 'assistant', tool_calls: [{ function: called }] }] })
    const ahead = callOf('c', 'f', called, text)
    const atOnce = callOf('c', 'f', {}, text)
    expect(ahead).toEqual(atOnce)
    expect(argumentsOf(ahead)).toBe(argumentsOf(atOnce))
  })

  it('with more than 8192 values are kept as text, even in a short text', () => {
    const few = list('1', 8_190)
    expect(callOf('c', 'f', {}, few)).toEqual({ id: 'c', name: 'f', arguments: JSON.parse(few) as object })
    const many = list('1', 8_200)
    expect(callOf('c', 'f', {}, many)).toEqual({ id: 'c', name: 'f', arguments: {}, malformed: many })
  })

  it.each([
    ['a long text', { text: LONG }],
    ['many values', { list: Array.from({ length: 60_000 }, (_, at) => at) }],
    ['few values', { list: [1, 2] }],
  ])('given as an object are the same: %s', async (_, input) => {
    const block = { type: 'tool_use', id: 'c', name: 'f', input }
    await read({ messages: [{ role: 'assistant', content: [block] }] })
    const call = callOf('c', 'f', block, input)
    expect(call).toEqual(callOf('c', 'f', {}, input))
    expect(argumentsOf(call)).toBe(writeJson(input))
  })

  it('are found by their text if a call has two', async () => {
    const item = { type: 'function_call', arguments: JSON.stringify({ text: LONG }), input: JSON.stringify({ other: LONG }) }
    await read({ input: [item] })
    expect(callOf('c', 'f', item, item.arguments).arguments).toEqual({ text: LONG })
    expect(callOf('c', 'f', item, item.input).arguments).toEqual({ other: LONG })
  })
})
