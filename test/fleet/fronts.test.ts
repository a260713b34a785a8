/**
 * Tests two servers over one database, which act as one: a conversation continues on either, and they never overwrite each other's changes.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { sharedCells } from '../../src/fleet/cells/shared-cells-folder.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { SavedCells } from '../../src/runtime/engine/disk-tier-file.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { PUBLIC, type Answer } from '../../src/runtime/server/ask.js'
import { PostgresResponses } from '../../src/fleet/postgres/postgres-responses.js'
import { PostgresStore } from '../../src/fleet/postgres/postgres-store.js'
import { TEST_GPU } from '../support/device.js'
import { IMPATIENT, noPostgres, TestPostgres, wayTo } from '../support/postgres.js'
import { endless, serving, type Serving } from '../runtime/server/support/serving.js'

/** The answer of `/health` without a database. */
const AWAY = [503, { status: 'unavailable', problems: ['The database that keeps the conversations does not answer.'] }]

if (noPostgres !== null) console.warn(`skipped: ${noPostgres}`)

interface Message {
  readonly role: string
  readonly content: string
}

interface Answered {
  readonly id: string
  readonly choices: readonly { readonly message: Message }[]
  readonly kvfold: { readonly thread: string }
  readonly usage: { readonly prompt_tokens_details: { readonly cached_tokens: number } }
}

const user = (content: string): Message => ({ role: 'user', content })
const notes = Array.from({ length: 30 }, (_, at) => `Line ${at}: the value of key ${at % 7} is ${at * 7}.`).join('\n')

describe.skipIf(noPostgres !== null)('two servers over one database', { timeout: 120_000 }, () => {
  let postgres: TestPostgres
  let url: string
  let one: Serving
  let other: Serving

  const open = async (): Promise<Serving> => {
    const store = await PostgresStore.open({ url })
    return serving({ service: { store, responses: new PostgresResponses(store.database) } })
  }
  const call = (at: Serving, method: string, path: string, body?: object): Promise<Response> =>
    fetch(`${at.url}${path}`, {
      method,
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    })
  const json = async <T>(at: Serving, method: string, path: string, body?: object): Promise<T> => {
    const response = await call(at, method, path, body)
    const text = await response.text()
    expect(response.status, text).toBe(200)
    return JSON.parse(text) as T
  }
  const chat = (at: Serving, messages: readonly Message[], more: object = {}): Promise<Answered> =>
    json(at, 'POST', '/v1/chat/completions', { messages, max_tokens: 6, kvfold: {}, ...more })
  const append = (at: Serving, thread: string, word: string): Promise<Answer> => {
    const messages = [{ role: 'user' as const, content: word }]
    return at.service.ask({ tenant: PUBLIC, messages, thread, appended: true, tools: [], toolChoice: 'auto', maxTokens: 6 })
      .answer
  }
  const idsAt = async (at: Serving): Promise<readonly string[]> =>
    (await json<{ threads: { id: string }[] }>(at, 'GET', '/kvfold/threads')).threads.map(({ id }) => id)
  const healthOf = async (at: Serving): Promise<[number, unknown]> => {
    const response = await call(at, 'GET', '/health')
    return [response.status, await response.json()]
  }
  const exportAt = (at: Serving, thread: string) =>
    json<{ messages: { message: Message }[]; ledger: unknown[] }>(at, 'GET', `/kvfold/threads/${thread}/export`)

  beforeAll(async () => {
    postgres = await TestPostgres.make()
  }, 60_000)
  afterAll(() => postgres.remove())
  beforeEach(async () => {
    url = await postgres.database()
    ;[one, other] = [await open(), await open()]
  }, 60_000)
  afterEach(async () => {
    await Promise.all([one.close(), other.close()])
  })

  it('continue one thread in turns, and the prompt brings its state up to date', async () => {
    const messages = [user(`${notes}\nWhat is the value of key 3?`)]
    const threads = new Set<string>()
    const cached: number[] = []
    for (let turn = 0; turn < 6; turn++) {
      const answered = await chat(turn % 2 === 0 ? one : other, messages)
      threads.add(answered.kvfold.thread)
      cached.push(answered.usage.prompt_tokens_details.cached_tokens)
      const { role, content } = answered.choices[0]!.message
      messages.push({ role, content }, user(`And of key ${turn}?`))
    }
    expect(threads.size).toBe(1)
    // Each server computes the beginning once, and afterwards only tokens new to it.
    expect(cached.slice(0, 2)).toEqual([0, 0])
    for (const [turn, hit] of cached.entries()) if (turn > 1) expect(hit).toBeGreaterThan(200)
    const [thread = ''] = threads
    const [here, there] = [await exportAt(one, thread), await exportAt(other, thread)]
    expect(here).toEqual(there)
    expect(here.messages.map(({ message }) => message.content)).toEqual(messages.slice(0, -1).map(({ content }) => content))
    expect(here.ledger).toHaveLength(6)
  })

  it("list, fold and delete each other's threads", async () => {
    const { kvfold, choices } = await chat(one, [user(`${notes}\nWhat is the value of key 3?`)])
    expect(await idsAt(other)).toEqual([kvfold.thread])
    const path = `/kvfold/threads/${kvfold.thread}`
    const cut = { startMarker: 'Line 5:', endMarker: 'Line 20:', numFragments: 1 }
    const [fragment] = (await json<{ fragments: { id: string }[] }>(other, 'POST', `${path}/fragments`, cut)).fragments
    await json(one, 'POST', `${path}/fragments/${fragment!.id}/fold`, {})
    const seen = await json<{ messages: { shown: string }[] }>(other, 'GET', path)
    expect(seen.messages[0]!.shown).not.toContain('Line 10:')
    const next = await chat(other, [user(`${notes}\nWhat is the value of key 3?`), choices[0]!.message, user('And of key 4?')])
    expect(next.kvfold.thread).toBe(kvfold.thread)
    await json(other, 'POST', `${path}/fragments/${fragment!.id}/restore`)
    expect((await json<{ messages: { shown: string }[] }>(one, 'GET', path)).messages[0]!.shown).toContain('Line 10:')
    await json(one, 'DELETE', path)
    expect(await idsAt(other)).toEqual([])
    expect((await call(other, 'GET', path)).status).toBe(404)
    expect((await call(other, 'DELETE', path)).status).toBe(404)
  })

  it('leave nothing of a thread that one deletes while the other writes to it', async () => {
    let erases = (): void => undefined
    let goOn = (): void => undefined
    const erasing = new Promise<void>((resolve) => (erases = resolve))
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const drop = () => {
      erases()
      return held
    }
    const store = await PostgresStore.open({ url })
    const slow = await serving({ service: { store, responses: new PostgresResponses(store.database), cells: { drop } } })
    try {
      const { kvfold, choices } = await chat(other, [user('Begin.')])
      expect(await idsAt(slow)).toEqual([kvfold.thread])
      const deleted = call(slow, 'DELETE', `/kvfold/threads/${kvfold.thread}`)
      await erasing
      const { message } = await append(other, kvfold.thread, 'More.')
      // The deleting server hears of that step before it deletes the thread.
      expect(await idsAt(slow)).toEqual([kvfold.thread])
      goOn()
      expect((await deleted).status).toBe(200)
      expect(await idsAt(slow)).toEqual([])
      expect(await idsAt(other)).toEqual([])
      const said = [choices[0]!.message, user('More.'), { role: 'assistant', content: message.content }]
      const next = await chat(slow, [user('Begin.'), ...said, user('And now?')])
      expect(next.kvfold.thread).not.toBe(kvfold.thread)
    } finally {
      await slow.close()
    }
  })

  it('let requests that name a thread wait for each other, on either server', async () => {
    const { kvfold } = await chat(one, [user('Begin.')])
    const words = Array.from({ length: 8 }, (_, at) => `Word ${at}.`)
    const answers = await Promise.all(words.map((word, at) => append(at % 2 === 0 ? one : other, kvfold.thread, word)))
    expect(new Set(answers.map(({ thread }) => thread))).toEqual(new Set([kvfold.thread]))
    const { messages, ledger } = await exportAt(other, kvfold.thread)
    expect(messages).toHaveLength(18)
    expect(messages.map(({ message }) => message.role)).toEqual(Array.from({ length: 9 }, () => ['user', 'assistant']).flat())
    expect(
      messages
        .filter(({ message }) => message.role === 'user')
        .map(({ message }) => message.content)
        .sort(),
    ).toEqual(['Begin.', ...words])
    expect(ledger).toHaveLength(9)
    expect(await exportAt(one, kvfold.thread)).toEqual(await exportAt(other, kvfold.thread))
  })

  it('give a request that repeats a running one on the other server a fork of its own', async () => {
    const first = await chat(one, [user('Begin.')])
    const messages = [user('Begin.'), first.choices[0]!.message, user('Go on for long.')]
    const stream = await call(one, 'POST', '/v1/chat/completions', { messages, max_tokens: 400, stream: true, ...endless })
    const reader = stream.body!.getReader()
    await reader.read()
    const copy = await chat(other, messages)
    expect(copy.kvfold.thread).not.toBe(first.kvfold.thread)
    const view = await json<{ parent: string | null }>(one, 'GET', `/kvfold/threads/${copy.kvfold.thread}`)
    expect(view.parent).toBe(first.kvfold.thread)
    await reader.cancel()
  })

  it("serve each other's responses", async () => {
    const ask = (at: Serving, body: object) =>
      json<{ id: string; output_text?: string }>(at, 'POST', '/v1/responses', { max_output_tokens: 6, ...body })
    const first = await ask(one, { input: 'Remember 17.' })
    const second = await ask(other, { input: 'What was it?', previous_response_id: first.id })
    const third = await ask(one, { input: 'And again?', previous_response_id: second.id })
    expect(await idsAt(one)).toHaveLength(1)
    const [thread = ''] = await idsAt(other)
    expect((await exportAt(other, thread)).messages).toHaveLength(6)
    expect((await json<{ id: string }>(other, 'GET', `/v1/responses/${third.id}`)).id).toBe(third.id)
    for (const { id } of [first, second, third]) await json(other, 'DELETE', `/v1/responses/${id}`)
    expect((await call(one, 'GET', `/v1/responses/${third.id}`)).status).toBe(404)
    expect(await idsAt(one)).toEqual([])
  })

  describe('forget what a fold forgets', () => {
    let folder: string
    beforeEach(() => {
      folder = mkdtempSync(join(tmpdir(), 'kvfold-forget-fronts-'))
    })
    afterEach(() => {
      rmSync(folder, { recursive: true })
    })

    const SECRET = 'The password of the harbour is coralgate.'
    const before = Array.from({ length: 6 }, (_, at) => `Line ${at} is here before it.`).join(' ')
    const after = Array.from({ length: 70 }, (_, at) => `Line ${at} has read it.`).join(' ')
    const told = `${before} ${SECRET} ${after}`

    interface Front extends Serving {
      readonly engine: () => LlamaEngine
      readonly disk: string
    }
    /** A server with its own disk cache, loaded at once, and a shared cells folder. */
    const open = async (name: string): Promise<Front> => {
      const disk = join(folder, name)
      const shared = { folder: join(folder, 'shared'), bytes: 2 ** 28, secret: Buffer.alloc(32, 'all') }
      const cells = new SavedCells([disk, shared.folder])
      const store = await PostgresStore.open({ url, place: disk, cells })
      let engine: LlamaEngine | null = null
      const serves = await serving({
        service: { store, responses: new PostgresResponses(store.database), cells },
        engine: async () =>
          (engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
            ...{ threads: 1, batchThreads: 1, slots: 2, hostBytes: 2 ** 26 },
            ...{ disk: { folder: disk, bytes: 2 ** 28 }, shared: sharedCells(shared) },
          })),
      })
      await serves.service.load()
      return { ...serves, engine: () => engine!, disk }
    }
    /** The tokens of the secret without those at its ends, which depend on the text beside it. */
    const tokens = (of: Front) => of.engine().model.tokenize(SECRET, { parseSpecial: false, addSpecial: false }).subarray(2, -2)
    /** Returns the files that contain the secret. */
    const filesWith = (secret: Buffer): readonly string[] =>
      readdirSync(folder, { recursive: true, encoding: 'utf8' })
        .filter((name) => /\.kv(?:shelf|cells)$/u.test(name))
        .filter((name) => readFileSync(join(folder, name)).includes(secret))
    const cut = (at: Serving, path: string) =>
      json<{ fragments: { id: string }[] }>(at, 'POST', `${path}/fragments`, {
        ...{ startMarker: 'The password', endMarker: 'coralgate.', numFragments: 1 },
      })
    interface Forgotten {
      readonly forgotten: boolean
      readonly unforgotten?: readonly { readonly server: string; readonly silentSeconds: number }[]
    }

    it('in every tier of every server, before the fold is answered; a closed server does it when it opens again', async () => {
      const [first, second] = [await open('first'), await open('second')]
      let third: Front | null = null
      const secret = Buffer.from(tokens(first).slice().buffer)
      try {
        const messages = [user(told)]
        const { kvfold, choices } = await chat(first, messages)
        messages.push(choices[0]!.message, user('And now?'))
        const next = await chat(second, messages)
        expect(next.kvfold.thread).toBe(kvfold.thread)
        messages.push(next.choices[0]!.message, user('And then?'))
        await Promise.all([first, second].map((each) => each.engine().published()))
        expect(filesWith(secret).some((name) => name.startsWith('shared'))).toBe(true)
        // The third server has it on its disk, and is closed.
        third = await open('third')
        await chat(third, messages)
        await third.close()
        const saved = filesWith(secret).filter((name) => name.startsWith('third'))
        expect(saved.length).toBeGreaterThan(0)

        const path = `/kvfold/threads/${kvfold.thread}`
        const [fragment] = (await cut(first, path)).fragments
        const secondCells = () => second.engine().cacheTotals.used
        expect(secondCells()).toBeGreaterThan(300)
        const answered = await json<Forgotten>(first, 'POST', `${path}/fragments/${fragment!.id}/fold`, { forget: true })
        // The two running servers are done when the fold is answered; the closed one is named.
        expect(secondCells()).toBe(0)
        expect(second.engine().cacheTotals.tiers).toMatchObject({ host: { sequences: 0 }, disk: { sequences: 0 } })
        expect(filesWith(secret)).toEqual(saved)
        expect(answered.forgotten).toBe(false)
        expect(answered.unforgotten).toHaveLength(1)
        expect(answered.unforgotten![0]!.server).toContain(`process ${process.pid}`)

        third = await open('third')
        expect(filesWith(secret)).toEqual([])
        // The text does not come back either: conversations continue without it, on every server.
        for (const front of [third, second, first]) {
          const more = await chat(front, messages)
          messages.push(more.choices[0]!.message, user('Go on.'))
          await front.engine().published()
        }
        expect(filesWith(secret)).toEqual([])
        const again = await json<Forgotten & { fragment: { id: string } }>(
          ...([second, 'POST', `${path}/fragments/${fragment!.id}/restore`] as const),
        )
        expect(again.fragment.id).toBe(fragment!.id)
        const last = await json<Forgotten>(second, 'POST', `${path}/fragments/${fragment!.id}/fold`, { forget: true })
        expect(last).toMatchObject({ forgotten: true })
        expect(last.unforgotten).toBeUndefined()
      } finally {
        for (const each of [first, second, third]) await each?.close()
      }
      expect(filesWith(secret)).toEqual([])
    })

    it('as often as necessary: a server that failed to do so serves no other request until it has, and is named', async () => {
      const [first, second] = [await open('first'), await open('second')]
      try {
        const { kvfold, choices } = await chat(first, [user(told)])
        await chat(second, [user(told), choices[0]!.message, user('And now?')])
        const path = `/kvfold/threads/${kvfold.thread}`
        const [fragment] = (await cut(first, path)).fragments
        // Its disk fails every deletion.
        const erase = vi.spyOn(second.engine(), 'erase').mockRejectedValue(new Error('EIO'))
        const folding = json<Forgotten>(first, 'POST', `${path}/fragments/${fragment!.id}/fold`, { forget: true })
        await expect.poll(() => erase.mock.calls.length, { timeout: 10_000 }).toBeGreaterThan(1)
        const other = () => call(second, 'POST', '/v1/chat/completions', { messages: [user('Something else.')], max_tokens: 6 })
        expect((await other()).status).toBe(500)
        const answered = await folding
        expect(answered).toMatchObject({
          forgotten: false,
          unforgotten: [{ server: expect.stringContaining('process') as string }],
        })
        expect(second.engine().cacheTotals.used).toBeGreaterThan(300)
        // It works again, so it forgets before its next request, though it heard of the fold only once.
        erase.mockRestore()
        expect((await other()).status).toBe(200)
        expect(second.engine().cacheTotals.used).toBeLessThan(100)
        const path2 = `${path}/fragments/${fragment!.id}`
        await json(first, 'POST', `${path2}/restore`)
        expect(await json<Forgotten>(first, 'POST', `${path2}/fold`, { forget: true })).toMatchObject({ forgotten: true })
      } finally {
        for (const each of [first, second]) await each.close()
      }
    })

    it('also where its model is being unloaded, which writes cells to the disk', async () => {
      const [first, second] = [await open('first'), await open('second')]
      try {
        const secret = Buffer.from(tokens(first).slice().buffer)
        const { kvfold, choices } = await chat(first, [user(told)])
        await chat(second, [user(told), choices[0]!.message, user('And now?')])
        const path = `/kvfold/threads/${kvfold.thread}`
        const [fragment] = (await cut(first, path)).fragments
        const engine = second.engine()
        const dispose = engine.dispose.bind(engine)
        const ended = new Promise((resolve) => setTimeout(resolve, 2500))
        vi.spyOn(engine, 'dispose').mockImplementation(() => ended.then(dispose))
        const leaving = second.service.unload()
        const answered = await json<Forgotten>(first, 'POST', `${path}/fragments/${fragment!.id}/fold`, { forget: true })
        expect(answered).toMatchObject({ forgotten: true })
        await leaving
        expect(filesWith(secret)).toEqual([])
      } finally {
        for (const each of [first, second]) await each.close()
      }
    })

    it('so that another server recomputes everything that saw the text', async () => {
      const { kvfold, choices } = await chat(one, [user(told)])
      const messages = [user(told), choices[0]!.message, user('And now?')]
      const next = await chat(other, messages)
      const path = `/kvfold/threads/${kvfold.thread}`
      const [fragment] = (await cut(one, path)).fragments
      await json(one, 'POST', `${path}/fragments/${fragment!.id}/fold`, { forget: true })
      messages.push(next.choices[0]!.message, user('And then?'))
      const last = await chat(other, messages)
      expect(last.kvfold.thread).toBe(kvfold.thread)
      // No cell was left, so the whole prompt was computed.
      expect(last.usage.prompt_tokens_details.cached_tokens).toBe(0)
    })
  })

  it('say so in time when the network cuts one off from the database, and continue when it is healed', async () => {
    const way = await wayTo(url)
    const store = await PostgresStore.open({ url: way.url, patience: IMPATIENT })
    const far = await serving({ service: { store, responses: new PostgresResponses(store.database) } })
    try {
      const { kvfold, choices } = await chat(far, [user('Begin.')])
      const messages = [user('Begin.'), choices[0]!.message, user('Go on for long.')]
      const stream = await call(far, 'POST', '/v1/chat/completions', { messages, max_tokens: 60, stream: true, ...endless })
      const reader = stream.body!.pipeThrough(new TextDecoderStream()).getReader()
      await reader.read()
      way.cut()
      // One request is in the middle of its answer. The others come before the server knows of the cut, and after.
      const told = async () => {
        const began = performance.now()
        const response = await call(far, 'POST', '/v1/chat/completions', { messages: [user('Are you there?')] })
        expect([response.status, response.headers.get('retry-after')]).toEqual([503, '5'])
        return performance.now() - began
      }
      const slowest = await Promise.all(Array.from({ length: 4 }, told))
      slowest.push(await told())
      // There are two slots. Requests that come once the cut is known do not wait for earlier ones.
      const { silent, connect } = IMPATIENT
      expect(Math.max(...slowest)).toBeLessThan(1.25 * silent + connect + 1000)
      expect(slowest.at(-1)).toBeLessThan(500)
      let said = ''
      for (let part = await reader.read(); !part.done; part = await reader.read()) said += part.value
      expect(said).toContain('store/unreachable')
      expect(await healthOf(far)).toEqual(AWAY)
      expect(await healthOf(one)).toEqual([200, { status: 'ok' }])
      // The server reconnects by itself, without a request.
      way.heal()
      await expect.poll(() => healthOf(far), { timeout: 10_000 }).toEqual([200, { status: 'ok' }])
      // Its claims are free once the database has noticed.
      await expect.poll(() => postgres.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'", url)).toEqual([])
      const again = await json<Answered>(far, 'POST', '/v1/chat/completions', { messages, max_tokens: 6, kvfold: {} })
      expect(again.kvfold.thread).toBe(kvfold.thread)
      expect((await exportAt(other, kvfold.thread)).messages).toHaveLength(4)
    } finally {
      await far.close()
      way.end()
    }
  })

  it('say 503 while the database is away, and lose nothing that they acknowledged', async () => {
    const { kvfold } = await chat(one, [user('Begin.')])
    const acknowledged: string[] = []
    const refused: unknown[] = []
    let isOver = false
    const talk = async (at: Serving, name: string) => {
      for (let turn = 0; !isOver; turn++) {
        const word = `${name} ${turn}.`
        await append(at, kvfold.thread, word).then(
          () => acknowledged.push(word),
          (error: unknown) => refused.push(error),
        )
      }
    }
    const talks = [talk(one, 'One'), talk(other, 'Other')]
    for (let round = 0; round < 2; round++) {
      const had = acknowledged.length
      await expect.poll(() => acknowledged.length, { timeout: 30_000 }).toBeGreaterThan(had + 3)
      const failed = refused.length
      await postgres.stop('immediate')
      await expect.poll(() => refused.length, { timeout: 30_000 }).toBeGreaterThan(failed + 1)
      const away = await call(one, 'POST', '/v1/chat/completions', { messages: [user('Are you there?')] })
      expect([away.status, away.headers.get('retry-after')]).toEqual([503, '5'])
      expect(await away.text()).toContain('Try again when the database is back')
      expect(await healthOf(one)).toEqual(AWAY)
      await postgres.start()
    }
    const had = acknowledged.length
    await expect.poll(() => acknowledged.length, { timeout: 30_000 }).toBeGreaterThan(had + 3)
    for (const at of [one, other]) expect(await healthOf(at)).toEqual([200, { status: 'ok' }])
    isOver = true
    await Promise.all(talks)
    for (const error of refused)
      expect(error).toMatchObject({ code: expect.stringMatching(/^store\/(unreachable|overtaken)$/u) as string })
    const { messages } = await exportAt(other, kvfold.thread)
    const said = messages.map(({ message }) => message.content)
    for (const word of acknowledged)
      expect(
        said.filter((each) => each === word),
        word,
      ).toHaveLength(1)
    for (const [at, { message }] of messages.entries())
      if (message.role === 'user' && acknowledged.includes(message.content))
        expect(messages[at + 1]?.message.role, message.content).toBe('assistant')
    // No question has two answers.
    for (const [at, { message }] of messages.entries())
      if (message.role === 'assistant') expect(messages[at - 1]?.message.role).toBe('user')
  })
})
