/** Tests that grammars are made once, and that one made on another thread, as long ones are, is the same. */
import { describe, expect, it } from 'vitest'
import { jsonSchemaGrammar, leftOutOfTools } from '../../../src/runtime/chat/grammar.js'
import { forcedGrammar, grammarOfSchema, lazyGrammar, leftOutByCalls } from '../../../src/runtime/chat/made-grammars.js'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { detectSyntax } from '../../../src/runtime/chat/syntax/detect.js'
import { readJson } from '../../../src/runtime/core/written-json.js'

const source = '<think></think><tool_call></tool_call>'
const form = { tools: 'native', calls: 'object' } as const
const by = { source, form, prompt: '<think>' }
const syntax = detectSyntax(source, form)

const tool = (name: string, parameters: object, strict = false): ToolDefinition => ({
  name,
  description: `Does ${name}.`,
  parameters: parameters as ToolDefinition['parameters'],
  strict,
})
const fields = (count: number) =>
  Object.fromEntries(Array.from({ length: count }, (_, at) => [`field${at}`, { type: 'string', maxLength: 50 }]))
const few = [tool('one', { properties: { a: { type: 'array', uniqueItems: true } } }), tool('two', {})]
/** So much text that its grammar is made on another thread. */
const many = Array.from({ length: 60 }, (_, at) => tool(`tool${at}`, { properties: fields(10) }))
/** Little text that takes many steps. */
const doubled = {
  $defs: Object.fromEntries(
    Array.from({ length: 13 }, (_, at) => [
      `d${at}`,
      at === 0
        ? { type: 'object', properties: { x: { type: 'string' } } }
        : { allOf: [{ $ref: `#/$defs/d${at - 1}` }, { $ref: `#/$defs/d${at - 1}` }] },
    ]),
  ),
  $ref: '#/$defs/d9',
}

describe('the grammar of schemas', () => {
  it.each([
    ['few tools', few],
    ['many tools', many],
    ['tools with long schemas', [...few, tool('long', { properties: fields(1000) })]],
  ])('is the same of %s', async (_, tools) => {
    expect(await leftOutByCalls(tools)).toEqual(leftOutOfTools(tools))
    for (const single of [true, false]) {
      expect(await lazyGrammar(by, tools, single)).toEqual(syntax.lazy(tools, by.prompt, single))
      expect(await forcedGrammar(by, tools, single)).toEqual(syntax.grammar(tools, by.prompt, single))
    }
  })

  it.each([
    ['a short schema', { enum: ['red', 'blue'] }],
    ['a long schema', { enum: Array.from({ length: 5000 }, (_, at) => `value${at}`) }],
    ['a short schema of many steps', doubled],
    ['digits', readJson('{"enum":[9007199254740993,1.0]}')],
    ['digits of a long schema', readJson(`{"enum":[9007199254740993,1.0${',12345678901234567890'.repeat(2000)}]}`)],
  ])('is the same of %s', async (_, schema) => {
    expect(await grammarOfSchema(schema, false)).toEqual({ grammar: jsonSchemaGrammar(schema), leftOut: [] })
  })

  it('comes with the keywords that are left out', async () => {
    const properties = { ...fields(1000), a: { type: 'array', uniqueItems: true } }
    expect((await grammarOfSchema({ type: 'object', properties }, true)).leftOut).toEqual(['#/properties/a/uniqueItems'])
  })

  it.each([
    ['a short schema', {}],
    ['a long one', fields(1000)],
  ])('is refused with the same error as on this thread: %s', async (_, more) => {
    const schema = { type: 'object', properties: { ...more, a: { type: 'array', uniqueItems: true } } }
    await expect(grammarOfSchema(schema, false)).rejects.toMatchObject({
      code: 'engine/bad-grammar',
      message: 'The JSON schema at #/properties/a/uniqueItems is true, which is not supported.',
    })
    await expect(leftOutByCalls([...few, tool('exact', schema, true)])).rejects.toThrow('The tool "exact": ')
  })

  it('is made once, whatever the descriptions of the tools', async () => {
    const made = lazyGrammar(by, many, false)
    const again = lazyGrammar(
      by,
      structuredClone(many).map((each) => ({ ...each, description: 'Other.' })),
      false,
    )
    expect(again).toBe(made)
    expect(lazyGrammar({ ...by, prompt: '' }, many, false)).not.toBe(made)
    await made
  })
})
