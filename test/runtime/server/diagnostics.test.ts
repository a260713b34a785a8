/** Tests that the server names why its cache was lost: every cause is put in by hand, and its name, message and tokens are read back. */
import Anthropic from '@anthropic-ai/sdk'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Answer, Ask } from '../../../src/runtime/server/ask.js'
import { Diagnostics } from '../../../src/runtime/server/dialects/anthropic/diagnostics.js'
import type { Lost } from '../../../src/runtime/server/threads/cache-loss.js'
import { TEST_GPU } from '../../support/device.js'

type Param = Anthropic.Beta.BetaMessageParam
type Message = Anthropic.Beta.BetaMessage
type Body = Omit<Anthropic.Beta.MessageCreateParamsNonStreaming, 'max_tokens'> & { readonly kvfold?: object }
interface Told {
  readonly thread: string
  readonly lost: Lost | null
  readonly ledger: readonly LedgerEntry[]
}
const toldIn = (answer: Message): Told => (answer as unknown as { kvfold: Told }).kvfold

const engine = async (options: object = {}) =>
  LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), { threads: 1, batchThreads: 1, ...options })

let served: Serving
beforeAll(async () => {
  const models = ['builtin', 'other'].map((name) => ({ name, slots: 2, load: () => engine({ slots: 2, cells: 4096 }) }))
  const keys = [
    { name: 'anna', key: 'sk-anna' },
    { name: 'bob', key: 'sk-bob' },
  ]
  served = await serving({ service: { models }, keys })
})
afterAll(() => served.close())

const client = (apiKey = 'sk-anna', { url } = served) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 })

const ask = (
  body: Body,
  { previous, key, on }: { previous?: string | null; key?: string; on?: Serving } = {},
): Promise<Message> =>
  client(key, on).beta.messages.create({
    max_tokens: 4,
    kvfold: { ledger: true },
    ...body,
    ...(previous === undefined ? {} : { diagnostics: { previous_message_id: previous } }),
  } as Anthropic.Beta.MessageCreateParamsNonStreaming)

const tool = (name: string, description = 'Reads a file.') => ({
  name,
  description,
  input_schema: { type: 'object' as const, properties: { path: { type: 'string' } } },
})
const text = (of: string) => `This is about ${of}. ${'It is green and it grows and it has a leaf. '.repeat(6)}`

/** Has two turns, and returns the request that would go on with them. */
async function begun(of: string, on = served): Promise<{ body: Body; last: Message }> {
  const body: Body = { model: 'builtin', system: `You know all of ${of}.`, tools: [tool('read'), tool('list')], messages: [] }
  let messages: Param[] = [{ role: 'user', content: text(of) }]
  const first = await ask({ ...body, messages }, { previous: null, on })
  expect(first.diagnostics).toBeNull()
  messages = [...messages, { role: 'assistant', content: first.content as never }, { role: 'user', content: text(`${of}, too`) }]
  const last = await ask({ ...body, messages }, { previous: first.id, on })
  // Going on is no loss.
  expect([last.diagnostics, toldIn(last).lost]).toEqual([null, null])
  const next: Param[] = [
    ...messages,
    { role: 'assistant', content: last.content as never },
    { role: 'user', content: 'And now?' },
  ]
  return { body: { ...body, messages: next }, last }
}

const usedBy = ({ usage }: Message) =>
  usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0)

it('the requests of one key push out none of another', () => {
  const diagnostics = new Diagnostics()
  const wish = { previous_message_id: 'msg_0' }
  const asked = (tenant: string): Ask => ({ tenant, messages: [{ role: 'user', content: 'Hi' }], tools: [], toolChoice: 'auto' })
  const answer = { model: 'm', usage: { promptTokens: 9, completionTokens: 1 } } as Answer
  diagnostics.note(wish, 'msg_0', asked('anna'), answer)
  for (let at = 0; at < 5000; at++) diagnostics.note(wish, `msg_${at}`, asked('bob'), answer)
  expect(diagnostics.told(wish, asked('anna'), 'm', null)).toBeNull()
  expect(diagnostics.told(wish, asked('bob'), 'm', null)).toEqual({ cache_miss_reason: { type: 'previous_message_not_found' } })
})

interface Cause {
  readonly change: (body: Body) => Body
  /** Anthropic's name; null: nothing changed for the API. */
  readonly told: string | null
  /** Ours, with the request's message; null: nothing was lost. */
  readonly ours: { readonly cause: Lost['cause']; readonly message: number; readonly reason: RegExp } | null
}
const messagesOf = (change: (messages: Param[]) => Param[]) => (body: Body) => ({ ...body, messages: change(body.messages) })
const said = (at: number, content: string) => messagesOf((messages) => messages.with(at, { ...messages[at]!, content }))

const causes: Readonly<Record<string, Cause>> = {
  'a date in the system prompt': {
    change: (body) => ({ ...body, system: `${body.system as string} It is the 28th.` }),
    told: 'system_changed',
    ours: { cause: 'system_changed', message: 0, reason: /goes on at character \d+/ },
  },
  'no system prompt': {
    change: ({ system: _, ...body }) => body,
    told: 'system_changed',
    ours: { cause: 'system_changed', message: 0, reason: /it is left out/ },
  },
  'a tool more': {
    change: (body) => ({ ...body, tools: [...body.tools!, tool('write')] }),
    told: 'tools_changed',
    ours: { cause: 'tools_changed', message: 0, reason: /write added/ },
  },
  'a tool less': {
    change: (body) => ({ ...body, tools: body.tools!.slice(0, 1) }),
    told: 'tools_changed',
    ours: { cause: 'tools_changed', message: 0, reason: /list removed/ },
  },
  'a tool with another schema': {
    change: (body) => ({
      ...body,
      tools: [{ ...tool('read'), input_schema: { type: 'object', properties: { file: { type: 'string' } } } }, tool('list')],
    }),
    told: 'tools_changed',
    ours: { cause: 'tools_changed', message: 0, reason: /read defined otherwise/ },
  },
  // The thread keeps the order in which it first saw them.
  'tools in another order': { change: (body) => ({ ...body, tools: body.tools!.toReversed() }), told: null, ours: null },
  'one message': {
    change: said(2, text('something else')),
    told: 'messages_changed',
    ours: { cause: 'messages_changed', message: 3, reason: /differs from character \d+/ },
  },
  'a nonce in the first message': {
    change: (body) => said(0, `[id 7f3a] ${body.messages[0]!.content as string}`)(body),
    told: 'messages_changed',
    ours: { cause: 'messages_changed', message: 1, reason: /differs from character 0/ },
  },
  'messages in another order': {
    change: messagesOf((messages) => [messages[2]!, messages[1]!, messages[0]!, ...messages.slice(3)]),
    told: 'messages_changed',
    ours: { cause: 'messages_changed', message: 1, reason: /message 1 is not what it was: it/ },
  },
  'a message left out': {
    change: messagesOf((messages) => messages.toSpliced(0, 2)),
    told: 'messages_changed',
    ours: { cause: 'messages_changed', message: 1, reason: /message 1 is not what it was/ },
  },
  'another choice of tools': { change: (body) => ({ ...body, tool_choice: { type: 'none' } }), told: 'unavailable', ours: null },
}

describe('what changed is named, with the message and the tokens', () => {
  it.each(Object.entries(causes))('%s', async (name, { change, told, ours }) => {
    const { body, last } = await begun(name)
    const now = await ask(change(body), { previous: last.id })
    const reason = now.diagnostics?.cache_miss_reason ?? null
    expect(reason?.type ?? null).toBe(told)
    const { lost, ledger } = toldIn(now)
    if (ours === null) {
      expect(lost).toBeNull()
      return
    }
    expect(lost).toMatchObject({ cause: ours.cause, message: ours.message, reason: expect.stringMatching(ours.reason) as string })
    const before = usedBy(last) + last.usage.output_tokens
    const missed = (reason as Anthropic.Beta.BetaCacheMissMessagesChanged).cache_missed_input_tokens
    expect(missed).toBe(before - now.usage.cache_read_input_tokens!)
    expect(missed).toBeGreaterThan(80)
    // Each lost token was computed, and the messages add up. What was not computed was on the device.
    const [entry] = ledger as [LedgerEntry]
    expect(lost!.tokens).toBe(lost!.messages.reduce((sum, { tokens }) => sum + tokens, 0))
    expect(lost!.tokens).toBeGreaterThan(80)
    for (const { index, role, tokens } of lost!.messages) {
      const cost = entry.messages.find((each) => each.index === index)!
      expect([cost.role, tokens <= cost.recomputed + cost.fresh]).toEqual([role, true])
    }
    expect(lost!.tiers).toEqual({ device: entry.reused, host: 0, disk: 0 })
    expect(lost!.token).toBeLessThanOrEqual(entry.reused + 1)
  })
})

describe('what is compared with nothing', () => {
  it('another model is named; here it has its own threads', async () => {
    const { body, last } = await begun('models')
    const now = await ask({ ...body, model: 'other' }, { previous: last.id })
    expect(now.diagnostics!.cache_miss_reason).toEqual({
      type: 'model_changed',
      cache_missed_input_tokens: usedBy(last) + last.usage.output_tokens - now.usage.cache_read_input_tokens!,
    })
    expect(toldIn(now).lost).toBeNull()
  })

  it('another key, an unknown id, and a message without the field are not found', async () => {
    const { body, last } = await begun('keys')
    const missing = { cache_miss_reason: { type: 'previous_message_not_found' } }
    expect((await ask(body, { previous: last.id, key: 'sk-bob' })).diagnostics).toEqual(missing)
    expect((await ask(body, { previous: 'msg_none' })).diagnostics).toEqual(missing)
    const silent = await ask(body)
    expect('diagnostics' in silent).toBe(false)
    expect((await ask(body, { previous: silent.id })).diagnostics).toEqual(missing)
  })

  it('streams tell it at their beginning', async () => {
    const { body, last } = await begun('streams')
    const stream = client().beta.messages.stream({
      ...body,
      max_tokens: 4,
      system: 'Now it is late.',
      diagnostics: { previous_message_id: last.id },
    })
    const { diagnostics } = await stream.finalMessage()
    expect(diagnostics!.cache_miss_reason!.type).toBe('system_changed')
  })
})

describe('a session that comes back', () => {
  it.each([
    ['with its cells in host memory loses nothing', 2 ** 28],
    ['without them is told that they were evicted', 0],
  ])('%s', async (name, hostBytes) => {
    const on = await serving({ engine: () => engine({ cells: 768, slots: 1, hostBytes }), slots: 1 })
    try {
      const { body, last } = await begun(name, on)
      await ask({ model: 'builtin', messages: [{ role: 'user', content: text('others').repeat(5) }] }, { on })
      const now = await ask(body, { previous: last.id, on })
      expect(now.diagnostics).toBeNull()
      const { lost, ledger } = toldIn(now)
      const [entry] = ledger as [LedgerEntry]
      if (hostBytes > 0) {
        expect(lost).toBeNull()
        expect(entry.tiers.host).toBeGreaterThan(100)
        return
      }
      expect(lost).toMatchObject({ cause: 'evicted', tokens: entry.recomputed })
      expect(lost!.reason).toMatch(/^the cells of \d+ tokens were gone/)
      expect(lost!.tokens).toBeGreaterThan(100)
      expect(lost!.message).toBe(0)
    } finally {
      await on.close()
    }
  })

  it('of other dialects is told the same', async () => {
    const post = async (messages: readonly object[]) => {
      const response = await fetch(`${served.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: 'Bearer sk-anna' },
        body: JSON.stringify({ model: 'builtin', messages, max_tokens: 4, kvfold: {} }),
      })
      return (await response.json()) as { choices: { message: object }[]; kvfold: { lost: Lost | null } }
    }
    const system = { role: 'system', content: 'You know the chats.' }
    const first = await post([system, { role: 'user', content: text('chats') }])
    const next = [{ role: 'user', content: text('chats') }, first.choices[0]!.message, { role: 'user', content: 'And?' }]
    const { lost } = (await post([{ ...system, content: 'You know the chats of today.' }, ...next])).kvfold
    expect(lost).toMatchObject({ cause: 'system_changed', message: 0 })
    expect(lost!.tokens).toBeGreaterThan(80)
  })
})
