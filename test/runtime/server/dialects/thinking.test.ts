/**
 * Tests the fields that control thinking: how they reach the template of a thinking model, how thoughts are separated, and how the cache
 * handles a change.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { CHATML_TEMPLATE } from '../../../../src/runtime/native/synthetic.js'
import { PUBLIC } from '../../../../src/runtime/server/ask.js'
import { SqliteStore } from '../../../../src/runtime/store/sqlite-store.js'
import { realTemplates } from '../../../support/bundle.js'
import { TEST_GPU } from '../../../support/device.js'
import { serving, type Serving } from '../support/serving.js'

const templateOf = (name: string) => realTemplates().find((each) => each.name === name)!.source
const load = async (template: string) =>
  LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
    ...{ threads: 1, batchThreads: 1, slots: 2 },
    chatTemplate: templateOf(template),
  })

/** A grammar for the thought and the answer that follow the prompt. */
const thinks = { grammar: String.raw`root ::= "<think>\nA hue.\n</think>\n\nRed."` }
const answers = { grammar: 'root ::= "Red."' }
const question = [{ role: 'user', content: 'Which colour?' }]
const EMPTY = '<think>\n\n</think>\n\n'

let engine: LlamaEngine
let served: Serving

beforeAll(async () => {
  engine = await load('Qwen-Qwen3-0.6B')
  served = await serving({ engine: () => engine })
})

afterAll(() => served.close())

async function post(route: string, body: object, { url } = served): Promise<{ status: number; text: string }> {
  const response = await fetch(`${url}/v1/${route}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ [route === 'responses' ? 'max_output_tokens' : 'max_tokens']: 60, ...body }),
  })
  return { status: response.status, text: await response.text() }
}

async function json(route: string, body: object, on = served): Promise<unknown> {
  const { status, text } = await post(route, body, on)
  expect(text).not.toContain('"error":{')
  expect(status).toBe(200)
  return JSON.parse(text)
}

/** Returns the prompt that the newest answer was sampled after. */
function lastPrompt(): string {
  const [newest] = served.service.threads.list(PUBLIC)
  const { all } = served.service.threads.get(PUBLIC, newest!.id)
  return all.at(-1)!.message.sampled!.prompt ?? 'the usual prompt'
}

describe.each([
  ['chat/completions', {}, { enable_thinking: false }],
  ['chat/completions', { enable_thinking: true }, { chat_template_kwargs: { enable_thinking: false } }],
  ['chat/completions', { reasoning_effort: null }, { reasoning_effort: 'none' }],
  ['messages', { thinking: { type: 'adaptive' } }, { thinking: { type: 'disabled' } }],
  ['messages', { thinking: { type: 'enabled' } }, { chat_template_kwargs: { enable_thinking: false } }],
  ['responses', {}, { reasoning: { effort: 'none' } }],
])('%s: %j or %j', (route, on, off) => {
  const asked = route === 'responses' ? { input: 'Which colour?' } : { messages: question }
  const shape: Record<string, (reasoning: string | null) => object> = {
    'chat/completions': (reasoning) => ({
      choices: [{ message: { content: 'Red.', ...(reasoning === null ? {} : { reasoning_content: reasoning }) } }],
    }),
    messages: (reasoning) => ({
      content: [...(reasoning === null ? [] : [{ type: 'thinking', thinking: reasoning }]), { type: 'text', text: 'Red.' }],
    }),
    responses: (reasoning) => ({
      output: [
        ...(reasoning === null ? [] : [{ type: 'reasoning', content: [{ type: 'reasoning_text', text: reasoning }] }]),
        { type: 'message', content: [{ type: 'output_text', text: 'Red.' }] },
      ],
    }),
  }

  it('opens the answer with an empty thought or leaves the thought to the model, and returns it separately', async () => {
    expect(await json(route, { ...asked, ...on, kvfold: thinks })).toMatchObject(shape[route]!('A hue.'))
    expect(lastPrompt()).toContain('the usual prompt')
    const silent = await json(route, { ...asked, ...off, kvfold: answers })
    expect(silent).toMatchObject(shape[route]!(null))
    expect(JSON.stringify(silent)).not.toMatch(/reasoning_content|thinking_delta|reasoning_text/)
    expect(silent).not.toHaveProperty('kvfold.ignored')
    expect(lastPrompt()).toContain(EMPTY)
  })

  it('does so in a stream', async () => {
    const thought = /"(reasoning_content|thinking_delta|response\.reasoning_text\.delta)"/
    const loud = (await post(route, { ...asked, ...on, stream: true, kvfold: thinks })).text
    expect(loud).toMatch(thought)
    expect(loud).not.toContain('think>')
    const silent = (await post(route, { ...asked, ...off, stream: true, kvfold: answers })).text
    expect(silent).toContain('"Re"')
    expect(silent).not.toMatch(thought)
  })
})

it('logprobs of a response are those of its text alone, whole and streamed', async () => {
  interface Part {
    readonly text: string
    readonly logprobs: readonly { readonly bytes: readonly number[] }[]
  }
  interface Told {
    readonly output: readonly { readonly content: readonly Part[] }[]
  }
  const text = 'Red <b>é</b>.'
  const kvfold = { grammar: String.raw`root ::= "<think>\nA hue.\n</think>\n\n${text}"` }
  const body = { input: 'Which colour?', include: ['message.output_text.logprobs'], kvfold }
  const whole = (await json('responses', body)) as Told
  const stream = (await post('responses', { ...body, stream: true })).text
  const events = [...stream.matchAll(/^data: (\{.*)$/gm)].map(
    ([, data]) => JSON.parse(data!) as { type: string; delta: string; response: Told } & Part,
  )
  const partOf = ({ output }: Told) => output[1]!.content[0]!
  const bytes = ({ logprobs }: Pick<Part, 'logprobs'>) => Buffer.from(logprobs.flatMap((one) => one.bytes)).toString()
  const deltas = events.filter(({ type }) => type === 'response.output_text.delta')
  expect(partOf(whole).text).toBe(text)
  expect(bytes(partOf(whole))).toBe(text)
  expect(bytes(partOf(events.at(-1)!.response))).toBe(text)
  expect(bytes({ logprobs: deltas.flatMap(({ logprobs }) => logprobs) })).toBe(text)
  expect(partOf(events.at(-1)!.response).logprobs).toEqual(partOf(whole).logprobs)
})

it('a response that was cut off in its thought has an empty message behind it, whole and streamed', async () => {
  const body = { input: 'Which colour?', max_output_tokens: 8, kvfold: thinks }
  const whole = (await json('responses', body)) as { output: readonly object[] }
  expect(whole.output).toMatchObject([{ type: 'reasoning' }, { type: 'message', content: [{ text: '' }] }])
  const events = [...(await post('responses', { ...body, stream: true })).text.matchAll(/^data: (\{.*)$/gm)].map(
    ([, data]) => JSON.parse(data!) as { type: string; response: typeof whole; item: object },
  )
  const shape = whole.output.map((item) => ({ ...item, id: expect.any(String) as string }))
  expect(events.at(-1)).toMatchObject({ type: 'response.incomplete', response: { output: shape } })
  expect(events.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item)).toEqual(shape)
})

it('a thread whose settings change is shown with the new ones, and reuses the unchanged beginning', async () => {
  const long = [{ role: 'user', content: `Which colour? ${'Name one colour. '.repeat(20)}` }]
  interface Completion {
    readonly choices: readonly { readonly message: { readonly content: string; readonly reasoning_content?: string } }[]
    readonly usage: { readonly prompt_tokens: number; readonly prompt_tokens_details: { readonly cached_tokens: number } }
    readonly kvfold: { readonly thread: string }
  }
  const ask = async (messages: object[], more: object, grammar: object): Promise<Completion> =>
    (await json('chat/completions', { messages, ...more, kvfold: grammar })) as Completion
  const first = await ask(long, { enable_thinking: false }, answers)
  const again = [...long, first.choices[0]!.message, { role: 'user', content: 'Another?' }]
  const second = await ask(again, {}, thinks)
  expect(second.kvfold.thread).toBe(first.kvfold.thread)
  const { all, ledger } = served.service.threads.get(PUBLIC, first.kvfold.thread)
  const messages = all.slice(0, 3).map(({ message }) => message)
  // The empty thought stays before the answer that was sampled after it.
  const shown = engine.format.render({ messages })
  expect(shown.text).toContain(`${EMPTY}Red.`)
  expect(second.usage.prompt_tokens).toBe(shown.tokens.length)
  expect(second.usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(first.usage.prompt_tokens)
  await engine.check('full')
  expect(ledger.map((entry) => entry.shown - entry.reused - entry.recomputed - entry.fresh)).toEqual([0, 0])
  const conversation = conversationId('fresh')
  const { ledger: fresh } = await engine.respond({ conversation, maxTokens: 0, tenant: 'another', messages }).reply
  expect(fresh).toMatchObject({ shown: second.usage.prompt_tokens, reused: 0 })
})

it('the prompt of a sampled answer survives a restart', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-thinking-'))
  try {
    const counts: number[] = []
    for (const restarts of [false, true]) {
      const own = join(folder, String(restarts))
      const open = () => serving({ engine: () => load('Qwen-Qwen3-0.6B'), service: { store: SqliteStore.open({ folder: own }) } })
      let server = await open()
      try {
        const off = { enable_thinking: false, kvfold: answers }
        await json('chat/completions', { messages: question, ...off }, server)
        if (restarts) {
          await server.close()
          server = await open()
        }
        const next = [...question, { role: 'assistant', content: 'Red.' }, { role: 'user', content: 'Another?' }]
        const { usage } = (await json('chat/completions', { messages: next, ...off }, server)) as {
          usage: { prompt_tokens: number }
        }
        counts.push(usage.prompt_tokens)
      } finally {
        await server.close()
      }
    }
    expect(counts[1]).toBe(counts[0])
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

describe('fields that the template does not read', () => {
  it('are named, one by one', async () => {
    const body = {
      messages: question,
      reasoning_effort: 'high',
      chat_template_kwargs: { enable_thinking: false, style: 'terse' },
      kvfold: answers,
    }
    expect(await json('chat/completions', body)).toMatchObject({
      kvfold: { ignored: ['reasoning_effort', 'chat_template_kwargs.style'] },
    })
    expect((await post('chat/completions', { ...body, stream: true })).text).toContain(
      '"ignored":["reasoning_effort","chat_template_kwargs.style"]',
    )
    expect(await json('responses', { input: 'Hi.', reasoning: { effort: 'low' }, kvfold: answers })).toMatchObject({
      reasoning: { effort: 'low' },
      kvfold: { ignored: ['reasoning.effort'] },
    })
  })

  it('are counted if the template reads them', async () => {
    const count = async (more: object) =>
      ((await json('messages/count_tokens', { messages: question, ...more })) as { input_tokens: number }).input_tokens
    expect((await count({ thinking: { type: 'disabled' } })) - (await count({}))).toBe(
      engine.model.tokenize(EMPTY, { parseSpecial: true }).length,
    )
  })

  it('that the request has other fields for are refused', async () => {
    const { status, text } = await post('chat/completions', { messages: question, chat_template_kwargs: { tools: [] } })
    expect(status).toBe(400)
    expect(text).toContain('chat_template_kwargs.tools is what other fields of the request say')
    expect((await post('chat/completions', { messages: question, enable_thinking: 'no' })).status).toBe(400)
  })
})

describe('a budget', () => {
  const SPEND = 7
  let thinker: Serving
  /** Letters without end unless the server closes the reasoning; the model's own closing tokens are banned. */
  let ponders: object

  beforeAll(async () => {
    const chatTemplate = CHATML_TEMPLATE.replace(
      "'<|im_start|>assistant\\n' -}}{%- endif",
      "'<|im_start|>assistant\\n<think>' -}}{%- endif",
    )
    const own = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
      ...{ threads: 1, batchThreads: 1, slots: 4, chatTemplate },
    })
    thinker = await serving({ engine: () => own, slots: 4 })
    const tokens = Array.from({ length: own.model.info.vocabulary }, (_, token) => token)
    const isClosing = (token: number) => Buffer.from(own.model.piece(token, true)).includes('<')
    const closing = tokens.filter((token) => isClosing(token) && !own.model.isEndOfGeneration(token))
    ponders = {
      messages: question,
      logit_bias: Object.fromEntries(closing.map((token) => [token, -100])),
      kvfold: { grammar: String.raw`root ::= [a-z]* "</think>" "Red."`, ledger: true },
    }
  })
  afterAll(() => thinker.close())

  interface Pondered {
    readonly choices: readonly { readonly message: object; readonly finish_reason: string }[]
    readonly usage: {
      readonly prompt_tokens: number
      readonly completion_tokens: number
      readonly completion_tokens_details: object
    }
    readonly kvfold: object
  }
  const ask = async (more: object) => (await json('chat/completions', { ...ponders, ...more }, thinker)) as Pondered

  it.each([
    ['thinking_budget_tokens', { thinking_budget_tokens: SPEND }],
    ['thinking_token_budget', { thinking_token_budget: SPEND, reasoning_budget: SPEND }],
    ['reasoning.max_tokens', { reasoning: { max_tokens: SPEND } }],
  ])('that is used up closes the reasoning, and the answer follows: %s', async (_, budget) => {
    const { choices, usage, kvfold } = await ask(budget)
    expect(choices).toMatchObject([{ message: { content: 'Red.' }, finish_reason: 'stop' }])
    expect(usage).toMatchObject({ completion_tokens_details: { reasoning_tokens: SPEND } })
    expect(kvfold).toMatchObject({
      generated_tokens: usage.completion_tokens,
      ledger: [{ shown: usage.prompt_tokens + usage.completion_tokens }],
    })
    expect(kvfold).not.toHaveProperty('ignored')
  })

  it('of 0 closes it at once; -1 and no budget let it continue', async () => {
    const { choices } = await ask({ reasoning_budget: 0 })
    expect(choices).toMatchObject([{ message: { content: 'Red.' } }])
    expect(choices[0]!.message).not.toHaveProperty('reasoning_content')
    for (const more of [{}, { reasoning_budget: -1 }])
      expect((await ask(more)).choices).toMatchObject([{ message: { content: '' }, finish_reason: 'length' }])
  })

  /** Asks, calls the control route at the first thought, and returns its reply and the answer's text. */
  async function askAndEnd(more: object) {
    const response = await fetch(`${thinker.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...ponders, max_tokens: 400, stream: true, ...more }),
    })
    let [content, seen, reply] = ['', '', null as unknown]
    for await (const bytes of response.body!.pipeThrough(new TextDecoderStream())) {
      seen += bytes
      const chunks = seen
        .split('\n\n')
        .filter((line) => line.startsWith('data: {'))
        .map((line) => JSON.parse(line.slice(6)) as Chunk)
      content = chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('')
      const { id } = chunks.at(-1)!
      if (seen.includes('reasoning_content'))
        reply ??= await json('chat/completions/control', { id, action: 'reasoning_end' }, thinker)
    }
    return { content, reply, finish: /"finish_reason":"(\w+)"/.exec(seen)![1] }
  }
  interface Chunk {
    readonly id: string
    readonly choices: readonly { readonly delta: { readonly content?: string } }[]
  }

  it('can be used up while the answer runs, with other answers beside it', async () => {
    const [ended, refused] = await Promise.all([askAndEnd({ reasoning_control: true, seed: 1 }), askAndEnd({ seed: 1 })])
    expect(ended).toEqual({ content: 'Red.', reply: { success: true }, finish: 'stop' })
    expect(refused).toMatchObject({ content: '', reply: { success: false }, finish: 'length' })
    const late = await json('chat/completions/control', { id: 'chatcmpl-1', action: 'reasoning_end' }, thinker)
    expect(late).toMatchObject({
      success: false,
      message: expect.stringContaining('No running completion has this id') as string,
    })
    const { status } = await post('chat/completions/control', { id: 'chatcmpl-1', action: 'begin' }, thinker)
    expect(status).toBe(400)
  })

  it('holds for each of several answers in one batch, with the same results as alone', async () => {
    const budgets = [2, 5, 11, 3, 0, 8].map((thinking_budget_tokens) => ({ thinking_budget_tokens }))
    const alone: unknown[] = []
    for (const budget of budgets) alone.push((await ask(budget)).choices)
    const together = await Promise.all(budgets.map(async (budget) => (await ask(budget)).choices))
    expect(together).toEqual(alone)
  })

  it('holds in streams and with log-probabilities', async () => {
    const body = { ...ponders, thinking_budget_tokens: SPEND, logprobs: true, top_logprobs: 2 }
    const whole = await ask({ thinking_budget_tokens: SPEND })
    const { text } = await post('chat/completions', { ...body, stream: true }, thinker)
    const deltas = [...text.matchAll(/^data: (\{.*)$/gm)].flatMap(
      ([, data]) => (JSON.parse(data!) as { choices: { delta: { content?: string; reasoning_content?: string } }[] }).choices,
    )
    const joined = {
      content: deltas.map(({ delta }) => delta.content ?? '').join(''),
      reasoning_content: deltas.map(({ delta }) => delta.reasoning_content ?? '').join(''),
    }
    expect(whole.choices[0]!.message).toMatchObject(joined)
  })

  const red = { type: 'object', properties: { colour: { const: 'red' } }, required: ['colour'], additionalProperties: false }
  it.each([
    [
      'a schema',
      { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: red } } },
      /^\{\s*"colour": ?"red"\s*\}$/,
    ],
    ['any object', { response_format: { type: 'json_object' } }, /^\{/],
    ['a regular expression', { regex: 'red|green' }, /^(?:red|green)$/],
    ['a choice', { guided_choice: ['red', 'green'] }, /^(?:red|green)$/],
  ])('is followed by the form of the answer: %s', async (_, form, content) => {
    const { choices, usage } = await ask({ ...form, kvfold: undefined, thinking_budget_tokens: SPEND })
    expect(choices).toMatchObject([{ message: { content: expect.stringMatching(content) as string } }])
    expect(usage).toMatchObject({ completion_tokens_details: { reasoning_tokens: SPEND } })
  })

  it('is followed by the form or by a call', async () => {
    const tools = [{ type: 'function', function: { name: 'now', parameters: { type: 'object', properties: {} } } }]
    const form = { regex: 'red|green', tools, kvfold: undefined, thinking_budget_tokens: SPEND }
    const texts = []
    // Without the tag of a call the form remains.
    for (const more of [{}, { logit_bias: undefined }]) {
      const { choices } = await ask({ ...form, ...more })
      const { message } = choices[0] as { message: { content: string | null; tool_calls?: readonly unknown[] } }
      texts.push(message.tool_calls === undefined ? message.content : 'a call')
    }
    expect(texts).toEqual([expect.stringMatching(/^(?:red|green)$/), expect.stringMatching(/^(?:red|green|a call)$/)])
  })

  it("can be Anthropic's field, too", async () => {
    const body = { ...ponders, logit_bias: undefined, thinking: { type: 'enabled', budget_tokens: SPEND } }
    const { content } = (await json('messages', body, thinker)) as { content: { type: string; thinking?: string }[] }
    expect(content).toMatchObject([{ type: 'thinking' }, { type: 'text', text: 'Red.' }])
  })

  it('that two fields give differently is refused', async () => {
    const { status, text } = await post(
      'chat/completions',
      { ...ponders, reasoning_budget: 1, thinking: 2, thinking_budget: 3 },
      thinker,
    )
    expect(status).toBe(400)
    expect(text).toContain('thinking_budget is 3 and reasoning_budget 1')
  })
})
