/** Tests the attention of a thread's last answer on the built-in model, against requests made by hand on a separate engine. */
import { freshConversation } from '../../../../src/runtime/core/ids.js'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { place } from '../../../../src/runtime/attention/places.js'
import type { ChatMessage, Edit } from '../../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { span, type Span } from '../../../../src/runtime/core/span.js'
import type { Contract } from '../../../../src/runtime/core/contract.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { PUBLIC, type Ask } from '../../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import type { ThreadAttention } from '../../../../src/runtime/server/threads/thread-api.js'
import { TEST_GPU } from '../../../support/device.js'
import { serving, type Serving } from '../support/serving.js'
import { someCard } from '../../store/support/threads.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const notes = (lines: number): string =>
  Array.from({ length: lines }, (_, at) => `Line ${at}: the value of key ${at % 17} is ${at * 7}.`).join('\n')
const ALONE = { threads: 1, batchThreads: 1, slots: 1, cells: 4096, hostBytes: 0, attention: true } as const
const endless: NonNullable<Ask['format']> = { kind: 'grammar', grammar: 'root ::= [a-z ] root' }

let own: LlamaEngine
let looker: LlamaEngine | null = null
let loads = 0
let served: Serving
let service: ThreadService

const load = async () => LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), ALONE)

beforeAll(async () => {
  own = await load()
  served = await serving({
    rateLimit: { tokens: 1_000_000 },
    clock: () => 0,
    service: {
      models: [
        {
          name: 'builtin',
          slots: 2,
          load: async () =>
            LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
              threads: 1,
              batchThreads: 1,
              slots: 2,
              cells: 4096,
            }),
          loadForAttention: async () => {
            loads++
            return (looker = await load())
          },
        },
      ],
    },
  })
  service = served.service
})

afterAll(async () => {
  await served.close()
  await own.dispose()
})

const ask = (messages: readonly ChatMessage[], more: Partial<Ask> = {}) =>
  service.ask({ tenant: PUBLIC, messages, tools: [], toolChoice: 'auto', maxTokens: 12, ...more }).answer

/** Asks twice, and folds a third of the notes in between. */
async function folded(contract: Contract, lines: number) {
  const text = notes(lines)
  const question = user(`${text}\nWhat is the value of key 3?`)
  const first = await ask([question], { contract })
  const cut = {
    startMarker: `Line ${Math.floor(lines / 3)}:`,
    endMarker: `Line ${Math.floor((2 * lines) / 3)}:`,
    numFragments: 2,
  }
  const [hidden, open] = await service.threads.fragment(PUBLIC, first.thread, cut)
  await service.threads.fold(PUBLIC, first.thread, hidden!.id)
  const messages = [question, first.message, user('And of key 4?')]
  const second = await ask(messages, { contract })
  expect(second.thread).toBe(first.thread)
  const view = service.threads.get(PUBLIC, first.thread)
  const edits = view.all[0]!.fragments.flatMap(({ span: chars, state }): Edit[] =>
    state.kind === 'folded' ? [{ message: 0, span: chars, replacement: /\[folded [^\]]+\]/u.exec(view.all[0]!.shown)![0] }] : [],
  )
  expect(edits).toHaveLength(1)
  return { thread: first.thread, all: view.all.map(({ message }) => message), edits, hidden: hidden!, open: open! }
}

/** Returns the answer's mean weights on each of these spans, and on the first token, by a request made by hand. */
async function byHand(
  messages: readonly ChatMessage[],
  edits: readonly Edit[],
  contract: Contract,
  keys: readonly Span[],
  before: readonly (readonly ChatMessage[])[] = [],
) {
  const conversation = freshConversation()
  for (const earlier of before) await own.respond({ conversation, messages: earlier, maxTokens: 0 }).reply
  const from = own.count(messages.slice(0, -1), [], edits)
  const queries = span(from, from + messages.at(-1)!.sampled!.tokens.length)
  const { attention, ledger } = await own.respond({
    conversation,
    messages,
    edits,
    contract,
    maxTokens: 0,
    attention: { queries: { prompt: [queries] }, keys: keys.map((tokens, at) => ({ name: String(at), tokens: [tokens] })) },
  }).reply
  own.forget(conversation)
  const { mass, sink } = attention!
  const rows = mass.data.length / keys.length
  const masses = keys.map((_, at) => {
    let sum = 0
    for (let row = 0; row < rows; row++) sum += mass.data[row * keys.length + at]!
    return sum / rows
  })
  return { masses, sink: sink.data.reduce((sum, weight) => sum + weight, 0) / rows, approximate: ledger.approximate }
}

const whole = ({ messages, own: itself, rest }: ThreadAttention): number =>
  messages.reduce((sum, { mass }) => sum + mass, 0) + itself + rest

describe('the attention of the last answer', () => {
  it('equals a request made by hand, including the fold', async () => {
    const { thread, all, edits, hidden, open } = await folded('exact', 60)
    const seen = await service.threads.attention(PUBLIC, thread)
    expect(seen.message).toBe(3)
    expect(seen.replay).toMatchObject({ kind: 'prefill', prompts: 1, contract: 'exact' })
    expect(seen.replay.text).toMatch(/without flash attention.*one prefill/u)
    const placed = place(own.format, { messages: all, edits }, [{ message: 0, chars: open.span }])
    const keys = [...placed.messages.slice(0, 4).map((message) => message.span), placed.stretches[0] as Span, placed.markers[0]!]
    const { masses, sink } = await byHand(all, edits, 'exact', keys)
    const said = [...seen.messages.map(({ mass }) => mass), seen.own]
    said.forEach((mass, at) => {
      expect(mass).toBeCloseTo(masses[at]!, 5)
    })
    expect(seen.messages.map(({ role, tokens }) => [role, tokens])).toEqual(
      placed.messages.slice(0, 3).map(({ role, span: { start, end } }) => [role, end - start]),
    )
    const [marker, text] = seen.messages[0]!.cuts
    expect([marker!.id, marker!.shows, text!.id, text!.shows]).toEqual([hidden.id, 'marker', open.id, 'text'])
    expect(text!.mass).toBeCloseTo(masses[4]!, 5)
    expect(marker!.mass).toBeCloseTo(masses[5]!, 5)
    expect(marker!.mass).toBeGreaterThan(0)
    expect(seen.sink).toBeCloseTo(sink, 5)
    expect(whole(seen)).toBeCloseTo(1, 10)
    expect(Math.abs(seen.rest)).toBeLessThan(1e-4)

    // The answer did not see later folds.
    await service.threads.fold(PUBLIC, thread, open.id)
    expect(await service.threads.attention(PUBLIC, thread)).toEqual(seen)
    expect(await service.threads.attention(PUBLIC, thread, { layers: [1] })).toMatchObject({ layers: [1] })
    expect(loads).toBe(1)
  })

  it('shows the effect of a splice', async () => {
    const { thread, all, edits } = await folded('splice', 48)
    const seen = await service.threads.attention(PUBLIC, thread)
    expect(seen.replay).toMatchObject({ kind: 'steps', prompts: 2, contract: 'splice' })
    expect(seen.fallback).toBeNull()
    const keys = place(own.format, { messages: all, edits }, [])
      .messages.slice(0, 4)
      .map((message) => message.span)
    const spliced = await byHand(all, edits, 'splice', keys, [all.slice(0, 2)])
    const exact = await byHand(all, edits, 'exact', keys)
    expect([spliced.approximate > 0, exact.approximate]).toEqual([true, 0])
    const said = [...seen.messages.map(({ mass }) => mass), seen.own]
    said.forEach((mass, at) => {
      expect(mass).toBeCloseTo(spliced.masses[at]!, 5)
    })
    // It differs from a prefill of the same text.
    expect(Math.max(...said.map((mass, at) => Math.abs(mass - exact.masses[at]!)))).toBeGreaterThan(1e-4)

    // Once the thread was made exact and has answered again, the effect is gone.
    await service.threads.refresh(PUBLIC, thread)
    await ask([...all, user('And of key 5?')], { contract: 'splice' })
    expect((await service.threads.attention(PUBLIC, thread)).replay.kind).toBe('prefill')
  })

  it('is marked as a guess if the earlier prompts are not known any more', async () => {
    const { thread, all } = await folded('splice', 36)
    const records = service.threads.export(PUBLIC, thread)
    const { MemoryStore } = await import('../../../../src/runtime/server/threads/memory-store.js')
    const store = new MemoryStore()
    const messages = records.messages.map(({ message, seen }) => ({
      message:
        message.sampled === undefined
          ? message
          : { ...message, sampled: all.find(({ sampled }) => sampled?.text === message.sampled!.text)!.sampled! },
      seen,
    }))
    await store.create({ ...records, tenant: PUBLIC, messages: messages as never }, someCard(0))
    const again = await ThreadService.open({
      store,
      models: [{ name: 'builtin', slots: 1, load: () => Promise.reject(new Error('not wanted')), loadForAttention: load }],
    })
    try {
      const guessed = await again.threads.attention(PUBLIC, thread)
      expect(guessed.replay).toMatchObject({ kind: 'guess', prompts: 2, contract: 'splice' })
      expect(guessed.replay.text).toContain('not known any more')
      // The guess is close, because the notes were there in full before.
      const known = await service.threads.attention(PUBLIC, thread)
      expect(guessed.messages[0]!.mass).toBeCloseTo(known.messages[0]!.mass, 2)
    } finally {
      await again.close()
    }
  })

  it('shows no forgotten text to the model again, and says so', async () => {
    const respond = vi.spyOn(LlamaEngine.prototype, 'respond')
    const shown = async (thread: string) => {
      const from = respond.mock.calls.length
      const { replay } = await service.threads.attention(PUBLIC, thread)
      return { replay, edits: respond.mock.calls.slice(from).map(([{ edits = [] }]) => edits.map(({ span: chars }) => chars)) }
    }
    try {
      const { thread, hidden, open } = await folded('splice', 33)
      await service.threads.fold(PUBLIC, thread, open.id, { forget: true })
      const after = await shown(thread)
      expect(after.replay).toMatchObject({ kind: 'guess', prompts: 2 })
      expect(after.replay.text).toMatch(/a part of it is forgotten: this is everything that is not forgotten first/u)
      expect(after.edits).toEqual([[open.span], [hidden.span, open.span]])
      // The next answer was not shown that text.
      const messages = service.threads.view(PUBLIC, thread)
      await ask([...messages, user('And of key 5?')], { contract: 'splice' })
      for (const edits of (await shown(thread)).edits) expect(edits).toContainEqual(open.span)
    } finally {
      respond.mockRestore()
    }
  })

  it('is refused when a part of the answer itself is forgotten', async () => {
    const { thread, message } = await ask([user(notes(21))])
    const cut = { startMarker: message.content.slice(0, 5), endMarker: message.content.slice(-5), numFragments: 1 }
    const [fragment] = await service.threads.fragment(PUBLIC, thread, { ...cut, role: 'assistant' })
    await service.threads.fold(PUBLIC, thread, fragment!.id, { forget: true }, 'allow')
    await expect(service.threads.attention(PUBLIC, thread)).rejects.toMatchObject({ code: 'attention/unavailable' })
    await service.threads.restore(PUBLIC, thread, fragment!.id)
    await service.threads.attention(PUBLIC, thread)
  })

  it("is for the thread's tenant only, and leaves no cells behind", async () => {
    const { thread } = await ask([user(notes(20))], { tenant: 'anna' })
    await expect(service.threads.attention('bert', thread)).rejects.toMatchObject({ code: 'server/no-thread' })
    const before = looker!.submitted
    const seen = await service.threads.attention('anna', thread)
    const first = looker!.submitted - before
    await looker!.check('books')
    expect(looker!.cacheTotals.used).toBe(0)
    await service.threads.attention('anna', thread)
    // No cells were reused: all is computed again.
    expect(looker!.submitted - before).toBe(2 * first)
    expect(first).toBeGreaterThanOrEqual(seen.messages[0]!.tokens)
  })

  it('is computed beside a stream, one request at a time', async () => {
    const { thread } = await ask([user(notes(25))])
    const stop = new AbortController()
    const stream = service.ask({
      tenant: PUBLIC,
      messages: [user('Go on.')],
      tools: [],
      toolChoice: 'auto',
      maxTokens: 3000,
      format: endless,
      signal: stop.signal,
    })
    let tokens = 0
    const counted = (async () => {
      for await (const event of stream) if (event.type === 'tokens') tokens += event.tokens.length
    })()
    await expect.poll(() => tokens).toBeGreaterThan(0)
    const looks = [1, 2].map(() => service.threads.attention(PUBLIC, thread))
    const gone = service.threads.attention(PUBLIC, thread, { signal: AbortSignal.abort() })
    await expect(gone).rejects.toMatchObject({ code: 'engine/cancelled' })
    const before = tokens
    const [one, two] = await Promise.all(looks)
    expect(one).toEqual(two)
    await expect.poll(() => tokens).toBeGreaterThan(before)
    stop.abort()
    await counted.catch(() => undefined)
  })

  it('is served over HTTP, for the requested layers', async () => {
    const { thread } = await ask([user('The value of red is 4. What is red?')])
    const at = (query: string) => fetch(`${served.url}/kvfold/threads/${thread}/attention${query}`)
    const answered = await at('?layers=0,1')
    expect(answered.status).toBe(200)
    // The headers of a request say what was left when it came.
    const left = (response: Response) => Number(response.headers.get('x-ratelimit-remaining-tokens'))
    expect(left(answered) - left(await at('?layers=0'))).toBeGreaterThan(20)
    const seen = (await answered.json()) as ThreadAttention
    expect(seen.layers).toEqual([0, 1])
    expect(seen).toEqual(await service.threads.attention(PUBLIC, thread, { layers: [0, 1] }))
    expect(whole(seen)).toBeCloseTo(1, 10)
    const refused = await at('?layers=0,99')
    expect([refused.status, await refused.json()]).toMatchObject([400, { error: { code: 'attention/bad-request' } }])
    expect((await at('?layers=all')).status).toBe(400)
  })
})

describe('attention that is not available', () => {
  const scripted = () => new ScriptedEngine(() => ({ content: 'Yes.' }))
  const question = { tenant: PUBLIC, messages: [user('Well?')], tools: [], toolChoice: 'auto' } as const

  it.each([
    ["another server's model", {}, 'attention/unavailable', /--attention off/u],
    [
      'an engine without a format',
      { loadForAttention: () => Promise.resolve(scripted()) },
      'attention/unavailable',
      /chat format/u,
    ],
    [
      'a model that does not fit twice',
      { loadForAttention: () => Promise.reject(new KvfoldError('memory/insufficient', 'Too large.')) },
      'memory/insufficient',
      /Too large/u,
    ],
  ] as const)('%s is refused, and the model stays served', async (_, more, code, message) => {
    const other = await ThreadService.open({
      models: [{ name: 'm', slots: 1, load: () => Promise.resolve(scripted()), ...more }],
    })
    try {
      const { thread } = await other.ask(question).answer
      const looked = other.threads.attention(PUBLIC, thread)
      await expect(looked).rejects.toMatchObject({ code })
      await expect(looked).rejects.toThrow(message)
      expect(other.models()[0]!.state).toBe('loaded')
    } finally {
      await other.close()
    }
  })

  it('a thread without an answer', async () => {
    const failing = new ScriptedEngine(() => Promise.reject(new KvfoldError('native/failed', 'Gone.')))
    const other = await ThreadService.open({
      models: [{ name: 'm', slots: 1, load: () => Promise.resolve(failing), loadForAttention: load }],
    })
    try {
      await expect(other.ask(question).answer).rejects.toThrow('Gone.')
      const [{ id } = { id: '' }] = other.threads.list(PUBLIC)
      await expect(other.threads.attention(PUBLIC, id)).rejects.toThrow(/no answer yet/u)
    } finally {
      await other.close()
    }
  })
})

describe('the second context', () => {
  it('is unloaded to make room for served models', async () => {
    const gone: string[] = []
    const scripted = (name: string) => {
      const engine = new ScriptedEngine(() => ({ content: name }))
      const dispose = engine.dispose.bind(engine)
      engine.dispose = () => {
        gone.push(name)
        return dispose()
      }
      return Promise.resolve(engine)
    }
    const full = () => Promise.reject(new KvfoldError('memory/insufficient', 'Too large.'))
    const other = await ThreadService.open({
      models: [
        { name: 'one', slots: 1, load: () => scripted('one'), loadForAttention: () => scripted('looker') },
        { name: 'two', slots: 1, load: () => (gone.length === 0 ? full() : scripted('two')) },
      ],
    })
    try {
      const question = { tenant: PUBLIC, messages: [user('Well?')], tools: [], toolChoice: 'auto' } as const
      const { thread } = await other.ask(question).answer
      await expect(other.threads.attention(PUBLIC, thread)).rejects.toThrow(/chat format/u)
      expect((await other.ask({ ...question, model: 'two' }).answer).message.content).toBe('two')
      expect(gone).toEqual(['looker'])
      expect(other.models().map(({ state }) => state)).toEqual(['loaded', 'loaded'])
    } finally {
      await other.close()
    }
  })

  it('is unloaded after a while, and loaded again', async () => {
    const [engines, text]: [LlamaEngine[], ChatMessage] = [[], user('The value of red is 4.')]
    const source = { name: 'builtin', slots: 1, load }
    const loadForAttention = async () => {
      const engine = await load()
      engines.push(engine)
      return engine
    }
    const other = await ThreadService.open({ models: [{ ...source, loadForAttention }], attentionKeepAliveMs: 20 })
    try {
      const { thread } = await other.ask({ tenant: PUBLIC, messages: [text], tools: [], toolChoice: 'auto', maxTokens: 4 }).answer
      const seen = await other.threads.attention(PUBLIC, thread)
      await expect
        .poll(() =>
          engines[0]!.respond({ conversation: freshConversation(), messages: [text] }).reply.then(
            () => '',
            (error: unknown) => (error as KvfoldError).code,
          ),
        )
        .toBe('engine/disposed')
      expect(other.models()[0]!.state).toBe('loaded')
      expect(await other.threads.attention(PUBLIC, thread)).toEqual(seen)
      expect(engines).toHaveLength(2)
    } finally {
      await other.close()
    }
  })
})
