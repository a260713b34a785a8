/** Tests context editing through the clients' own packages: clearing of tool results, cached counts, truncation, pins. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'

const model = 'builtin'
let served: Serving
let anthropic: Anthropic
let openai: OpenAI

beforeAll(async () => {
  const options = { cells: 2048, threads: 1, batchThreads: 1 }
  served = await serving({ engine: async () => LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), options) })
  anthropic = new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
  openai = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
})

afterAll(() => served.close())

type Param = Anthropic.Beta.BetaMessageParam

/** Returns a session that read this many files, one in each turn; `of` makes it different from those of other tests. */
function session(of: string, files: number, tool = (_: number) => 'read'): Param[] {
  return [
    { role: 'user', content: `Read the files of ${of}.` },
    ...Array.from({ length: files }, (_, at): Param[] => [
      { role: 'assistant', content: [{ type: 'tool_use', id: `call_${of}_${at}`, name: tool(at), input: { at } }] },
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: `call_${of}_${at}`, content: `${of} ${at}: ${'some text '.repeat(30)}` }],
      },
    ]).flat(),
  ]
}

const tools = ['read', 'list'].map((name) => ({ name, description: 'Reads.', input_schema: { type: 'object' as const } }))
type Clear = Anthropic.Beta.BetaClearToolUses20250919Edit

const ask = (messages: Param[], clear: Partial<Clear>, more: object = {}) =>
  anthropic.beta.messages.create({
    model,
    messages,
    tools,
    tool_choice: { type: 'none' },
    max_tokens: 2,
    betas: ['context-management-2025-06-27'],
    context_management: { edits: [{ type: 'clear_tool_uses_20250919', ...clear }] },
    ...more,
  })

const usedBy = ({ usage }: { readonly usage: Anthropic.Beta.BetaUsage }) =>
  usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0)

describe('clear_tool_uses', () => {
  it('folds all but the newest results past the trigger, and reports how many results and tokens', async () => {
    const messages = session('one', 6)
    const whole = (await anthropic.messages.countTokens({ model, messages: messages as never, tools })).input_tokens
    const below = await ask(messages, { trigger: { type: 'input_tokens', value: whole } })
    expect(below.context_management).toEqual({ applied_edits: [] })
    expect(usedBy(below)).toBe(whole)

    const past = await ask(messages, {
      trigger: { type: 'input_tokens', value: whole - 1 },
      keep: { type: 'tool_uses', value: 2 },
    })
    const [applied] = past.context_management!.applied_edits
    expect(applied).toMatchObject({ type: 'clear_tool_uses_20250919', cleared_tool_uses: 4 })
    expect((applied as Anthropic.Beta.BetaClearToolUses20250919EditResponse).cleared_input_tokens).toBe(whole - usedBy(past))
    expect(whole - usedBy(past)).toBeGreaterThan(4 * 40)

    // They stay cleared when the conversation continues, below the trigger again.
    const next: Param[] = [
      ...messages,
      ...past.content.map((block) => ({ role: 'assistant' as const, content: [block] as never })),
      { role: 'user', content: 'And?' },
    ]
    const later = await ask(next, { trigger: { type: 'input_tokens', value: whole - 1 } })
    expect(later.context_management!.applied_edits).toMatchObject([{ cleared_tool_uses: 4 }])
    expect(later.usage.cache_read_input_tokens).toBeGreaterThan(usedBy(past) * 0.8)
  })

  it('can count tool uses, skips excluded tools and pins, and does nothing if it would clear too little', async () => {
    const trigger = { type: 'tool_uses', value: 3 } as const
    const keep = { type: 'tool_uses', value: 1 } as const
    const few = await ask(session('two', 3), { trigger, keep })
    expect(few.context_management!.applied_edits).toEqual([])
    const listed = session('three', 5, (at) => (at < 2 ? 'list' : 'read'))
    const little = await ask(listed, { trigger, keep, clear_at_least: { type: 'input_tokens', value: 1900 } })
    expect(little.context_management!.applied_edits).toEqual([])
    const rest = await ask(listed, { trigger, keep, exclude_tools: ['list'] }, { kvfold: { pin: ['call_three_2'] } })
    expect(rest.context_management!.applied_edits).toMatchObject([{ cleared_tool_uses: 1 }])
  })

  it('counts the tokens with and without clearing', async () => {
    const messages = session('six', 6)
    const count = async (clear: Partial<Clear>) => {
      const edits = [{ type: 'clear_tool_uses_20250919' as const, ...clear }]
      return anthropic.beta.messages.countTokens({ model, messages, tools, context_management: { edits } })
    }
    const { input_tokens: whole } = await anthropic.messages.countTokens({ model, messages: messages as never, tools })
    const below = { trigger: { type: 'input_tokens', value: whole } } as const
    expect(await count(below)).toEqual({ input_tokens: whole, context_management: { original_input_tokens: whole } })
    const past = { trigger: { type: 'input_tokens', value: whole - 1 }, keep: { type: 'tool_uses', value: 2 } } as const
    const counted = await count(past)
    expect(counted.context_management).toEqual({ original_input_tokens: whole })
    // Markers have other ids each time, which may take another token.
    expect(Math.abs(counted.input_tokens - usedBy(await ask(messages, past)))).toBeLessThanOrEqual(4 * 3)
    await expect(count({ keep: 3 as never })).rejects.toThrow(/edits\[0\]\.keep must be/)
  })

  it('is also reported at the end of a stream', async () => {
    const stream = anthropic.beta.messages.stream({
      model,
      messages: session('four', 5),
      tools,
      tool_choice: { type: 'none' },
      max_tokens: 2,
      context_management: { edits: [{ type: 'clear_tool_uses_20250919', trigger: { type: 'tool_uses', value: 2 } }] },
    })
    const { context_management: managed } = await stream.finalMessage()
    expect(managed!.applied_edits).toMatchObject([{ cleared_tool_uses: 2 }])
  })

  it('refuses unsupported edits by name, and accepts edits that change nothing', async () => {
    const edits = (edit: object) => ask(session('five', 1), {}, { context_management: { edits: [edit] } })
    await expect(edits({ type: 'compact_20260112' })).rejects.toThrow(/edits\[0\] is of type .{0,2}"compact_20260112/)
    await expect(edits({ type: 'clear_tool_uses_20250919', clear_tool_inputs: true })).rejects.toThrow(/clear_tool_inputs/)
    await expect(edits({ type: 'clear_tool_uses_20250919', keep: 3 })).rejects.toThrow(/edits\[0\]\.keep must be/)
    expect((await edits({ type: 'clear_thinking_20251015', keep: 'all' })).context_management).toEqual({ applied_edits: [] })
  })
})

it('cache_control divides the computed tokens at its place; without it none count as created', async () => {
  const block = (text: string, marked: boolean) => ({
    role: 'user' as const,
    content: [{ type: 'text' as const, text, ...(marked ? { cache_control: { type: 'ephemeral' as const } } : {}) }],
  })
  const said = { role: 'assistant' as const, content: 'Yes.' }
  const first = await anthropic.messages.create({
    model,
    messages: [block(`Remember this: ${'green and blue '.repeat(40)}`, true), said, block('What is it?', false)],
    max_tokens: 2,
  })
  const { input_tokens: input, cache_creation_input_tokens: created, cache_read_input_tokens: read } = first.usage
  // All prompts share this beginning.
  expect(read).toBeLessThan(5)
  expect(created).toBeGreaterThan(80)
  expect(input).toBeGreaterThan(3)
  expect(input).toBeLessThan(30)
  const plain = await anthropic.messages.create({
    model,
    messages: [block(`Remember that: ${'red '.repeat(40)}`, false)],
    max_tokens: 2,
  })
  expect(plain.usage.cache_creation_input_tokens).toBe(0)
  // The same request again reads all of it.
  const again = await anthropic.messages.create({
    model,
    messages: [block(`Remember this: ${'green and blue '.repeat(40)}`, true), said, block('What is it?', false)],
    max_tokens: 2,
  })
  expect(again.usage.cache_read_input_tokens).toBeGreaterThan(created! - 2)
  expect(again.usage.cache_creation_input_tokens).toBe(0)
})

it("truncation: auto folds the oldest messages of OpenAI's responses until they fit; disabled refuses", async () => {
  const input = [
    ...Array.from({ length: 8 }, (_, at) => [
      { role: 'user' as const, content: `Part ${at}: ${'one two three '.repeat(160)}` },
      { role: 'assistant' as const, content: 'So it is.' },
    ]).flat(),
    { role: 'user' as const, content: 'And now?' },
  ]
  const [disabled, auto] = (['disabled', 'auto'] as const).map((truncation) => ({ truncation }))
  await expect(openai.responses.create({ model, input, ...disabled })).rejects.toMatchObject({
    status: 400,
    code: 'context_length_exceeded',
  })
  const answer = await openai.responses.create({ model, input, max_output_tokens: 16, ...auto })
  expect(answer).toMatchObject(auto!)
  expect(answer.usage!.input_tokens).toBeLessThan(2048)
  // It folds no more than necessary.
  expect(answer.usage!.input_tokens).toBeGreaterThan(2048 - 700)
})
