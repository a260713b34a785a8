/** Tests KV events: what a router hears over ZeroMQ of a server's blocks is what the server has, and nothing of it is approximate. */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { KvEventPublisher, type KvEventsOptions } from '../../../src/fleet/events/kv-events.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { blockDigest, hashOf } from '../../../src/runtime/kv/block-events.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { serving, type Serving } from '../../runtime/server/support/serving.js'
import { serverProcess } from '../../runtime/server/support/process.js'
import { TEST_GPU } from '../../support/device.js'
import { Listener, replay } from './support/subscriber.js'

const LOCAL = { endpoint: 'tcp://127.0.0.1:*', replay: 'tcp://127.0.0.1:*' }

interface Heard extends Serving {
  readonly engine: LlamaEngine
  readonly publisher: KvEventPublisher
  readonly listener: Listener
}

async function heard(options: LlamaEngineOptions = {}, events: Partial<KvEventsOptions> = {}): Promise<Heard> {
  const publisher = await KvEventPublisher.open({ ...LOCAL, ...events })
  const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
    ...{ threads: 1, batchThreads: 1, slots: 2, blocks: publisher.outlet('builtin') },
    ...options,
  })
  const served = await serving({ engine: () => engine })
  const listener = await Listener.to(publisher.addresses.endpoint)
  return {
    ...{ ...served, engine, publisher, listener },
    close: async () => {
      await served.close()
      await publisher.close()
      await listener.close()
    },
  }
}

interface Answered {
  readonly choices: readonly { readonly message: { readonly role: string; readonly content: string } }[]
  readonly kvfold: { readonly thread: string; readonly ledger: readonly LedgerEntry[] }
}

async function chat({ url }: Pick<Serving, 'url'>, messages: readonly ChatMessage[], more: object = {}, headers: object = {}) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ messages, max_tokens: 4, kvfold: { ledger: true, contract: 'splice' }, ...more }),
  })
  expect(response.status).toBe(200)
  return (await response.json()) as Answered
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const words = (of: string) => `This is ${of}. ${'Some words that fill the page, one after another. '.repeat(8)}`
const shown = ({ engine }: Heard, messages: readonly ChatMessage[]) =>
  engine.format.render({ messages, tools: [], edits: [] }).tokens
const whole = (tokens: Int32Array) => tokens.length - (tokens.length % 16)

let served: Heard
beforeAll(async () => {
  served = await heard()
})
afterAll(() => served.close())

describe('a server says which blocks it has', () => {
  it('stores the blocks of a prompt in order, each behind its parent, with the tokens of the prompt', async () => {
    const messages = [user(words('a prompt in blocks'))]
    const prompt = shown(served, messages)
    await chat(served, messages)
    const index = await served.listener.index((now) => now.has(prompt) === whole(prompt))
    expect(index.orphans).toBe(0)
    // The names are those that the documents say.
    let digest: Buffer = Buffer.alloc(32)
    for (let at = 0; at + 16 <= prompt.length; at += 16) {
      digest = blockDigest(digest, prompt.subarray(at, at + 16))
      expect(index.blocks.get(hashOf(digest))?.text).toEqual([...prompt.subarray(0, at + 16)])
    }
    const { messages: batches } = served.listener
    expect(batches.map(({ sequence }) => sequence)).toEqual(batches.map((_, at) => batches[0]!.sequence + BigInt(at)))
    for (const { time, rank, topic } of batches) {
      expect([rank, topic]).toEqual([0, ''])
      expect(Math.abs(time - Date.now() / 1000)).toBeLessThan(60)
    }
    // A stored block is a hit: the same beginning in another conversation is not computed.
    const { kvfold } = await chat(served, [...messages, { role: 'assistant', content: 'Yes.' }, user('Why?')])
    expect(kvfold.ledger[0]!.reused).toBeGreaterThanOrEqual(whole(prompt))
  })

  it('says nothing of cells behind a splice, and says it once they are exact', async () => {
    const messages: ChatMessage[] = [{ role: 'system', content: 'You read what is spliced.' }, user(words('what goes'))]
    const first = await chat(served, messages)
    const next = [...messages, first.choices[0]!.message as ChatMessage, user(words('what stays'))]
    const before = shown(served, messages)
    await chat(served, next)
    await served.listener.index((now) => now.has(before) === whole(before))

    const rest = [next[0]!, next[3]!]
    const after = shown(served, rest)
    const dropped = await chat(served, next, { drop_message: { '3': [1, 2] } })
    expect(dropped.kvfold.ledger[0]!.approximate).toBeGreaterThan(50)
    // The request forks the thread, so what it drops stays until the thread goes.
    await fetch(`${served.url}/kvfold/threads/${first.kvfold.thread}`, { method: 'DELETE' })
    const index = await served.listener.index((now) => now.has(before) < whole(before))
    // What both prompts begin with stays; what went is removed; what stands behind the splice is not told.
    const common = before.findIndex((token, at) => token !== after[at])
    expect(index.has(before)).toBe(common - (common % 16))
    expect(index.has(after)).toBe(common - (common % 16))

    const refreshed = await fetch(`${served.url}/kvfold/threads/${dropped.kvfold.thread}/refresh`, { method: 'POST' })
    expect(refreshed.status).toBe(200)
    const fresh = await served.listener.index((now) => now.has(after) === whole(after))
    expect(fresh.orphans).toBe(0)
  })

  it('removes the blocks of a conversation that is deleted', async () => {
    const messages = [user(words('to be deleted'))]
    const prompt = shown(served, messages)
    const { kvfold } = await chat(served, messages)
    await served.listener.index((now) => now.has(prompt) === whole(prompt))
    await fetch(`${served.url}/kvfold/threads/${kvfold.thread}`, { method: 'DELETE' })
    await served.listener.index((now) => now.has(prompt) <= 16)
  })

  it('answers what a subscriber missed while it was away', async () => {
    const { publisher } = served
    const { endpoint, replay: again } = publisher.addresses
    const first = await Listener.to(endpoint)
    await chat(served, [user(words('before it went away'))])
    await first.index(({ blocks }) => blocks.size > 0)
    await first.close()
    const messages = [user(words('while it was away'))]
    const prompt = shown(served, messages)
    await chat(served, messages)
    await served.listener.index((now) => now.has(prompt) === whole(prompt))
    const last = first.messages.at(-1)!.sequence
    const missed = await replay(again!, last + 1n)
    expect(missed[0]!.sequence).toBe(last + 1n)

    // A router that starts now asks for everything. The first batch says that an earlier process's blocks are gone.
    const second = await Listener.to(endpoint)
    const all = await replay(again!, 0n)
    expect(all[0]).toMatchObject({ sequence: 0n, events: [['AllBlocksCleared']] })
    const further = [user(words('after it came back'))]
    await chat(served, further)
    const asked = shown(served, further)
    const theirs = await second.index((now) => now.has(asked) === whole(asked), all)
    const ours = await served.listener.index(
      (now) => now.has(asked) === whole(asked),
      all.filter(({ sequence }) => sequence < served.listener.messages[0]!.sequence),
    )
    expect(theirs.contents).toEqual(ours.contents)
    expect(theirs.orphans).toBe(0)
    await second.close()
  })
})

describe('a small cache', () => {
  let small: Heard
  afterEach(() => small.close())

  it.each([
    { hostBytes: 0, then: 'nowhere' },
    { hostBytes: 2 ** 28, then: 'in memory' },
  ])('says that evicted blocks are $then', async ({ hostBytes }) => {
    small = await heard({ cells: 512, hostBytes })
    const messages = [user(words('an evicted conversation').repeat(2))]
    const prompt = shown(small, messages)
    await chat(small, messages)
    await small.listener.index((now) => now.has(prompt) === whole(prompt))
    await chat(small, [user(`${words('another conversation').repeat(2)} End.`)])
    const kept = hostBytes === 0 ? 0 : whole(prompt)
    const index = await small.listener.index((now) => now.has(prompt) < whole(prompt) && now.has(prompt, 'CPU') === kept)
    expect(index.orphans).toBe(0)
    // What it says of memory is true as well.
    const { kvfold } = await chat(small, messages)
    expect(kvfold.ledger[0]!.tiers.host).toBeGreaterThanOrEqual(kept === 0 ? 0 : kept - 32)
  })

  it('takes everything back when the engine ends, and keeps as many batches as it should', async () => {
    small = await heard({}, { bufferSteps: 2, topic: 'kv@pod@{model}' })
    for (const each of ['one', 'two', 'three']) await chat(small, [user(words(each))])
    await small.engine.dispose()
    const end = await small.listener.index(({ blocks }) => blocks.size === 0 && small.listener.messages.length > 2)
    expect(end.contents).toEqual([])
    expect(new Set(small.listener.messages.map(({ topic }) => topic))).toEqual(new Set(['kv@pod@builtin']))
    const kept = await replay(small.publisher.addresses.replay!, 0n)
    expect(kept.map(({ sequence }) => sequence)).toEqual(small.listener.messages.slice(-2).map(({ sequence }) => sequence))
  })
})

it('tenants have blocks of their own, which name them', async () => {
  const port = 20_000 + (process.pid % 20_000)
  const where = `tcp://127.0.0.1:${port}`
  const process_ = await serverProcess([
    ...['--kv-events', `tcp://*:${port}`, '--kv-events-replay', `tcp://*:${port + 1}`, '--store', 'none'],
    ...['--api-key', 'sk-one', '--api-key', 'sk-two'],
  ])
  try {
    const listener = await Listener.to(where)
    const messages = [user(words('the same for both'))]
    for (const key of ['sk-one', 'sk-two']) await chat(process_, messages, {}, { authorization: `Bearer ${key}` })
    const index = await listener.index(({ blocks }) => new Set([...blocks.values()].map(({ tenant }) => tenant)).size === 2)
    const texts = [...index.blocks.values()].map(({ text }) => text.join(' '))
    expect(texts.length).toBe(2 * new Set(texts).size)
    expect([...index.blocks.values()].every(({ tenant }) => tenant?.startsWith('key-'))).toBe(true)
    expect((await replay(`tcp://127.0.0.1:${port + 1}`, 0n)).length).toBeGreaterThan(1)
    await listener.close()
  } finally {
    await process_.kill()
  }
})
