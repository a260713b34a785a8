/** Tests context editing through the clients' own packages: clearing of tool results, cached counts, truncation, pins. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { ScriptedEngine } from '../../support/scripted.js'

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

  it('counts the notes on long messages beside the context tools', async () => {
    const scripted = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Read.' })) })
    const client = new Anthropic({ baseURL: scripted.url, apiKey: 'none', maxRetries: 0 })
    const edit = {
      type: 'clear_tool_uses_20250919',
      trigger: { type: 'tool_uses', value: 1 },
      keep: { type: 'tool_uses', value: 1 },
    }
    const [asked, ...rest] = session('notes', 3)
    const messages = [{ role: 'user', content: 'Some words that fill the page. '.repeat(80) }, asked, ...rest] as Param[]
    const body = { model, messages, tools, max_tokens: 2, context_management: { edits: [edit] }, kvfold: { acm: 'tools' } }
    const { context_management: managed } = await client.beta.messages.create(body as never)
    const { threads } = scripted.service
    const { saves } = threads.get('public', threads.list('public')[0]!.id).events.at(-1)!
    expect(managed).toMatchObject({ applied_edits: [{ cleared_tool_uses: 2, cleared_input_tokens: saves }] })
    await scripted.close()
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

  it('clears the inputs of the calls with their results, for all tools or those that are named', async () => {
    const written = (of: string): Param[] =>
      session(of, 5, (at) => (at % 2 === 0 ? 'read' : 'list')).map((message): Param => {
        if (message.role === 'system' || typeof message.content === 'string') return message
        const content = message.content.map((block) =>
          block.type === 'tool_use' ? { ...block, input: { text: `${of} ${'written by the model '.repeat(10)}` } } : block,
        )
        return { ...message, content }
      })
    const clear = { trigger: { type: 'tool_uses', value: 2 }, keep: { type: 'tool_uses', value: 1 } } as const
    const shown = async (of: string, inputs: Clear['clear_tool_inputs']) => {
      const answer = await ask(written(of), { ...clear, clear_tool_inputs: inputs! }, { kvfold: { ledger: true } })
      const [applied] = answer.context_management!.applied_edits
      return { answer, cleared: applied!.cleared_input_tokens, used: usedBy(answer) }
    }
    const [none, some, all] = [await shown('in0', false), await shown('in1', ['list']), await shown('in2', true)]
    // Four results go; two of them are of the tool that is named. An input has at least 30 tokens.
    expect(some.cleared - none.cleared).toBeGreaterThan(2 * 30)
    expect(all.cleared - some.cleared).toBeGreaterThan(2 * 30)
    expect(none.used - some.used).toBeGreaterThan(2 * 30)
    expect(some.used - all.used).toBeGreaterThan(2 * 30)
    expect(all.answer.context_management!.applied_edits).toMatchObject([{ cleared_tool_uses: 4 }])

    // The thread says so, keeps the text, and shows it again when asked.
    const { thread } = (all.answer as unknown as { kvfold: { thread: string } }).kvfold
    const view = served.service.threads.get('public', thread)
    const omitted = view.all.flatMap((message) => message.omitted)
    expect(omitted.map(({ omits }) => omits.part)).toEqual(['inputs', 'inputs', 'inputs', 'inputs'])
    expect(view.events.at(-1)!.folded).toEqual(expect.arrayContaining(omitted.map(({ id }) => id)))
    expect(view.all[1]!.message.toolCalls![0]!.arguments).toMatchObject({ text: expect.stringContaining('written') as string })
    await served.service.threads.restore('public', thread, omitted[0]!.id)
    expect(served.service.threads.get('public', thread).all.flatMap((message) => message.omitted)).toHaveLength(3)

    // They stay cleared, and the rest of the prompt is not computed again.
    const next: Param[] = [
      ...written('in1'),
      { role: 'assistant', content: some.answer.content as never },
      { role: 'user', content: 'And?' },
    ]
    const later = await ask(next, { ...clear, trigger: { type: 'tool_uses', value: 9 }, clear_tool_inputs: ['list'] })
    expect(later.context_management!.applied_edits).toMatchObject([{ cleared_tool_uses: 4 }])
    expect(later.usage.cache_read_input_tokens).toBeGreaterThan(some.used - 5)
  })

  it('refuses unsupported edits by name', async () => {
    const edits = (...given: object[]) => ask(session('five', 1), {}, { context_management: { edits: given } })
    const uses = { type: 'clear_tool_uses_20250919' }
    const thinking = { type: 'clear_thinking_20251015' }
    await expect(edits({ type: 'no_such_edit' })).rejects.toThrow(/edits\[0\] is of type .{0,2}"no_such_edit/)
    await expect(edits({ ...uses, clear_tool_inputs: 'all' })).rejects.toThrow(
      /edits\[0\]\.clear_tool_inputs must be true, false, or/,
    )
    await expect(edits({ ...uses, keep: 3 })).rejects.toThrow(/edits\[0\]\.keep must be/)
    await expect(edits(uses, uses)).rejects.toThrow(/edits\[1\] is a second clear_tool_uses/)
    await expect(edits({ ...thinking, keep: { type: 'thinking_turns', value: 0 } })).rejects.toThrow(
      /keep\.value must be at least 1/,
    )
    await expect(edits({ ...thinking, keep: { type: 'tool_uses', value: 1 } })).rejects.toThrow(/edits\[0\]\.keep must be/)
    await expect(edits(thinking, thinking)).rejects.toThrow(/edits\[1\] is a second clear_thinking/)
    // The built-in model's template shows no reasoning.
    expect((await edits(thinking)).context_management).toEqual({ applied_edits: [] })
  })
})

describe('clear_thinking', () => {
  /** Shows the reasoning of every answer, as few templates do. */
  const chatTemplate =
    `{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>\n{% endif %}` +
    `{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}`
  let thinking: Serving
  beforeAll(async () => {
    const options = { threads: 1, batchThreads: 1, chatTemplate }
    thinking = await serving({
      engine: async () => LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), options),
    })
  })
  afterAll(() => thinking.close())

  const thought = (of: string, turns: number): Param[] => [
    ...Array.from({ length: turns }, (_, at): Param[] => [
      { role: 'user', content: `Question ${at} of ${of}?` },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: `${of} ${at}: ${'I think of it. '.repeat(20)}`, signature: '' },
          { type: 'text', text: `Answer ${at}.` },
        ],
      },
    ]).flat(),
    { role: 'user', content: 'And now?' },
  ]
  const keeping = (messages: Param[], keep?: Anthropic.Beta.BetaClearThinking20251015Edit['keep'], more: object = {}) =>
    new Anthropic({ baseURL: thinking.url, apiKey: 'none', maxRetries: 0 }).beta.messages.create({
      model,
      messages,
      max_tokens: 2,
      context_management: { edits: [{ type: 'clear_thinking_20251015', ...(keep === undefined ? {} : { keep }) }] },
      ...more,
    })

  it('keeps the reasoning of the newest turns, and says how much is gone', async () => {
    const all = await keeping(thought('one', 4), 'all')
    expect(all.context_management).toEqual({ applied_edits: [] })
    const two = await keeping(thought('one', 4), { type: 'thinking_turns', value: 2 })
    const [applied] = two.context_management!.applied_edits as Anthropic.Beta.BetaClearThinking20251015EditResponse[]
    expect(applied).toMatchObject({ type: 'clear_thinking_20251015', cleared_thinking_turns: 2 })
    expect(applied!.cleared_input_tokens).toBe(usedBy(all) - usedBy(two))
    expect(applied!.cleared_input_tokens).toBeGreaterThan(2 * 60)
    const one = await keeping(thought('two', 4))
    expect(one.context_management!.applied_edits).toMatchObject([{ cleared_thinking_turns: 3 }])
  })

  it('under splice nothing behind the cleared reasoning is computed again', async () => {
    const kvfold = { contract: 'splice', ledger: true }
    const messages = thought('three', 4)
    await keeping(messages, 'all', { kvfold })
    const next = await keeping(
      [...messages, { role: 'assistant', content: 'So.' }, { role: 'user', content: 'Then?' }],
      undefined,
      { kvfold },
    )
    const { ledger } = (
      next as unknown as { kvfold: { ledger: readonly { recomputed: number; approximate: number; submitted: number }[] } }
    ).kvfold
    expect(next.context_management!.applied_edits).toMatchObject([{ cleared_thinking_turns: 3 }])
    expect(ledger[0]!.recomputed).toBe(0)
    expect(ledger[0]!.submitted).toBeLessThan(40)
    expect(ledger[0]!.approximate).toBeGreaterThan(0)
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
