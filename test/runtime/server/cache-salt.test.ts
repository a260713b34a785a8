/** Tests vLLM's `cache_salt`: requests of one key share cells and threads only with those of the same salt, also after a restart. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { SavedCells } from '../../../src/runtime/engine/disk-tier-file.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { THREADS_FILE, SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { temporaryFolder } from '../../support/temporary-folder.js'
import { serving, type Serving } from './support/serving.js'

interface Message {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

interface Answered {
  readonly id: string
  readonly error?: { readonly message: string; readonly param: string | null }
  readonly choices: readonly { readonly message: { readonly content: string } }[]
  readonly usage: {
    readonly prompt_tokens_details?: { readonly cached_tokens: number }
    readonly input_tokens_details?: { readonly cached_tokens: number }
  }
  readonly kvfold: { readonly thread: string; readonly ignored?: readonly string[] }
}

const ONE = 'k3Jx0-the-salt-of-one'
const TWO = 'Zq81w-the-salt-of-two'
const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })
const long = (topic: string) => `About ${topic}: ${`the ${topic} is what it is, and it goes on. `.repeat(12)}`
const salted = (salt: unknown) => (salt === undefined ? {} : { cache_salt: salt })

const folder = temporaryFolder('cache-salt')
let served: Serving | undefined
afterEach(async () => {
  await served?.close()
  served = undefined
})

async function send(path: string, body: object, headers: Record<string, string> = {}): Promise<readonly [number, Answered]> {
  const response = await fetch(`${served!.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'builtin', temperature: 0, kvfold: {}, ...body }),
  })
  return [response.status, (await response.json()) as Answered]
}

async function chat(salt: unknown, messages: readonly Message[], more: object = {}, headers = {}): Promise<Answered> {
  const [status, answered] = await send('/v1/chat/completions', { messages, max_tokens: 8, ...salted(salt), ...more }, headers)
  expect([status, answered.error?.message]).toEqual([200, undefined])
  return answered
}

const cached = ({ usage }: Answered): number => (usage.prompt_tokens_details ?? usage.input_tokens_details)!.cached_tokens
const textOf = ({ choices }: Answered): string => choices[0]!.message.content

async function listed(): Promise<readonly string[]> {
  const { threads } = (await (await fetch(`${served!.url}/kvfold/threads`)).json()) as { threads: { id: string }[] }
  return threads.map(({ id }) => id).sort()
}

describe('requests of one key', () => {
  it('share tokens of the same text only under the same salt', async () => {
    served = await serving()
    const first = await chat(ONE, [user(long('stone'))])
    expect(cached(first)).toBe(0)
    expect(first.kvfold.ignored ?? []).not.toContain('cache_salt')
    const others = [await chat(TWO, [user(long('stone'))]), await chat(undefined, [user(long('stone'))])]
    expect(others.map(cached)).toEqual([0, 0])
    const again = await chat(ONE, [user(`${long('stone')} Why?`)])
    expect(cached(again)).toBeGreaterThan(100)
    const all = [first, ...others, again].map(({ kvfold }) => kvfold.thread)
    expect(new Set(all).size).toBe(4)
    // The key has all of them, whatever their salts.
    expect(await listed()).toEqual(all.sort())
  })

  it('share tokens of bare completions only under the same salt', async () => {
    served = await serving()
    const complete = async (salt: unknown) => {
      const [status, answered] = await send('/v1/completions', { prompt: long('wood'), max_tokens: 4, ...salted(salt) })
      expect(status).toBe(200)
      return cached(answered)
    }
    expect(await complete(ONE)).toBe(0)
    expect(await complete(TWO)).toBe(0)
    expect(await complete(undefined)).toBe(0)
    expect(await complete(ONE)).toBeGreaterThan(100)
  })

  it('continue a conversation under its own salt, and begin their own under another', async () => {
    served = await serving()
    const first = await chat(ONE, [user(long('paper'))])
    const next = [user(long('paper')), assistant(textOf(first)), user('Go on.')]
    const other = await chat(TWO, next)
    expect(other.kvfold.thread).not.toBe(first.kvfold.thread)
    expect(cached(other)).toBe(0)
    const plain = await chat(undefined, next)
    expect([first.kvfold.thread, other.kvfold.thread]).not.toContain(plain.kvfold.thread)
    expect(cached(plain)).toBe(0)
    const own = await chat(ONE, next)
    expect(own.kvfold.thread).toBe(first.kvfold.thread)
    expect(cached(own)).toBeGreaterThan(100)
    // A changed beginning is an edit of the own thread, and of no other.
    const edited = [user(long('ink')), ...next.slice(1), assistant(textOf(own)), user('And?')]
    expect((await chat(TWO, edited)).kvfold.thread).not.toBe(first.kvfold.thread)
    const threads = await Promise.all(
      (await listed()).map(
        async (id) => (await fetch(`${served!.url}/kvfold/threads/${id}`)).json() as Promise<{ parent: string | null }>,
      ),
    )
    expect(threads.map(({ parent }) => parent).filter((parent) => parent === first.kvfold.thread)).toEqual([])
  })

  it('find the thread of a session only under its salt', async () => {
    served = await serving()
    const session = { 'x-dynamo-session-id': 'one' }
    const child = { 'x-dynamo-session-id': 'two', 'x-dynamo-parent-session-id': 'one' }
    const first = await chat(ONE, [user(long('glass'))], {}, session)
    const next = [user(long('glass')), assistant(textOf(first)), user('Go on.')]
    for (const headers of [session, child]) {
      const other = await chat(TWO, next, {}, headers)
      expect(other.kvfold.thread).not.toBe(first.kvfold.thread)
    }
    const fork = await chat(ONE, next, {}, child)
    expect(fork.kvfold.thread).not.toBe(first.kvfold.thread)
    expect(cached(fork)).toBeGreaterThan(100)
    expect((await chat(ONE, next, {}, session)).kvfold.thread).toBe(first.kvfold.thread)
  })

  it('name a thread only with its salt', async () => {
    served = await serving()
    const name = (thread: string) => ({ kvfold: { thread } })
    const one = await chat(ONE, [user(long('iron'))])
    const plain = await chat(undefined, [user(long('iron'))])
    const next = (of: Answered) => [user(long('iron')), assistant(textOf(of)), user('Go on.')]
    for (const [salt, of, said] of [
      [TWO, one, /began with a cache_salt that this request does not have/],
      [undefined, one, /began with a cache_salt that this request does not have/],
      [ONE, plain, /began without a cache_salt; leave cache_salt out/],
    ] as const) {
      const body = { messages: next(of), max_tokens: 8, ...salted(salt), ...name(of.kvfold.thread) }
      const [status, { error }] = await send('/v1/chat/completions', body)
      expect([status, error?.message]).toEqual([400, expect.stringMatching(said)])
    }
    expect((await chat(ONE, next(one), name(one.kvfold.thread))).kvfold.thread).toBe(one.kvfold.thread)
    expect((await chat(undefined, next(plain), name(plain.kvfold.thread))).kvfold.thread).toBe(plain.kvfold.thread)
  })

  it('take over an earlier response of another salt, but not its thread', async () => {
    served = await serving()
    const respond = async (salt: unknown, input: string, previous?: string) => {
      const more = previous === undefined ? {} : { previous_response_id: previous }
      const [status, answered] = await send('/v1/responses', { input, max_output_tokens: 8, ...salted(salt), ...more })
      expect([status, answered.error?.message]).toEqual([200, undefined])
      return answered
    }
    const first = await respond(ONE, long('cloth'))
    const other = await respond(TWO, 'Go on.', first.id)
    expect(cached(other)).toBe(0)
    expect(other.kvfold.thread).not.toBe(first.kvfold.thread)
    const own = await respond(ONE, 'Go on.', first.id)
    expect(own.kvfold.thread).toBe(first.kvfold.thread)
    expect(cached(own)).toBeGreaterThan(100)
    expect((await respond(TWO, 'And then?', other.id)).kvfold.thread).toBe(other.kvfold.thread)
  })
})

describe('a salt', () => {
  it('must be a text that is not empty', async () => {
    served = await serving()
    const bodies = {
      '/v1/chat/completions': { messages: [user('Hi')] },
      '/v1/completions': { prompt: 'Hi' },
      '/v1/responses': { input: 'Hi' },
    }
    for (const [path, body] of Object.entries(bodies))
      for (const [salt, said] of [
        ['', 'cache_salt must not be empty; send a long random text, or leave it out.'],
        [7, 'cache_salt must be a string.'],
      ] as const) {
        const [status, { error }] = await send(path, { ...body, ...salted(salt) })
        expect([status, error?.param, error?.message]).toEqual([400, 'cache_salt', expect.stringContaining(said)])
      }
    await chat(null, [user('Hi')])
  })

  it('appears in no log, list, view and export', async () => {
    served = await serving()
    const { kvfold } = await chat(ONE, [user(long('leather'))])
    const paths = ['', `/${kvfold.thread}`, `/${kvfold.thread}/export`].map((path) => `${served!.url}/kvfold/threads${path}`)
    const texts = await Promise.all([...paths, `${served.url}/metrics`].map(async (path) => (await fetch(path)).text()))
    for (const text of [...texts, ...served.log]) expect(text).not.toMatch(/salted-|the-salt-of/)
    expect(JSON.parse(texts[1]!)).toMatchObject({ salted: true })
  })

  it('keeps threads and cells apart after a restart, and is in no file', { timeout: 120_000 }, async () => {
    const disk = join(folder, 'cache')
    const open = async () => {
      const cells = new SavedCells([disk])
      const engine = async () =>
        LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
          ...{ threads: 1, batchThreads: 1, slots: 2, disk: { folder: disk, bytes: 2 ** 28 } },
        })
      served = await serving({ engine, service: { store: SqliteStore.open({ folder, cells }), cells } })
    }
    await open()
    const first = await chat(ONE, [user(long('silver'))])
    const next = [user(long('silver')), assistant(textOf(first)), user('Go on.')]
    await served!.close()
    expect(readFileSync(join(folder, THREADS_FILE)).includes(ONE)).toBe(false)

    await open()
    for (const salt of [TWO, undefined]) {
      const other = await chat(salt, next)
      expect(other.kvfold.thread).not.toBe(first.kvfold.thread)
      expect(cached(other)).toBe(0)
    }
    const own = await chat(ONE, next)
    expect(own.kvfold.thread).toBe(first.kvfold.thread)
    expect(cached(own)).toBeGreaterThan(100)
    await served!.close()

    await open()
    const last = await chat(ONE, [...next, assistant(textOf(own)), user('And?')])
    expect(last.kvfold.thread).toBe(first.kvfold.thread)
  })
})
