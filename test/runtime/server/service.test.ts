/** Tests the service over the built-in model: the tokens computed, for whom, and the slots of clients that leave. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { Overloaded, type Answer, type Ask, type AskEvent } from '../../../src/runtime/server/ask.js'
import { ThreadService, type ServiceOptions } from '../../../src/runtime/server/service.js'
import { TEST_GPU } from '../../support/device.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const notes = (from: number, lines: number): string =>
  Array.from({ length: lines }, (_, at) => `Line ${from + at}: the value of key ${(from + at) % 17} is ${(from + at) * 7}.`).join(
    '\n',
  )

/** A format whose answer does not end. */
const endless: NonNullable<Ask['format']> = { kind: 'grammar', grammar: 'root ::= "a" root' }

let engine: LlamaEngine
const opened: ThreadService[] = []

/** Opens a new service over the engine that all tests share. */
async function serve(options: Partial<ServiceOptions> & { slots?: number } = {}) {
  const { slots = 4, ...rest } = options
  // This is the shared engine, but the service cannot dispose of it.
  const lent = new Proxy(engine, {
    get: (_, key) => {
      if (key === 'dispose') return () => Promise.resolve()
      const value = Reflect.get(engine, key, engine) as unknown
      return typeof value === 'function' ? (value.bind(engine) as unknown) : value
    },
  })
  const service = await ThreadService.open({
    models: [{ name: 'builtin', slots, load: () => Promise.resolve(lent) }],
    ...rest,
  })
  opened.push(service)
  return service
}

const begin = (service: ThreadService, messages: readonly ChatMessage[], more: Partial<Ask> = {}) =>
  service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', maxTokens: 8, ...more })
const ask = (service: ThreadService, messages: readonly ChatMessage[], more: Partial<Ask> = {}): Promise<Answer> =>
  begin(service, messages, more).answer

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), { threads: 1, batchThreads: 1, slots: 4 })
})

afterAll(async () => {
  await Promise.all(opened.map((service) => service.close()))
  await engine.dispose()
})

describe('two requests that share a beginning of 4,000 tokens', () => {
  const text = notes(1, 260)

  it('the second has it cached, as the addon counts it', async () => {
    const service = await serve()
    const first = await ask(service, [user(`${text}\nWhat is the value of key 3?`)])
    expect(first.usage.promptTokens).toBeGreaterThan(4000)
    expect(first.usage.cachedTokens).toBe(0)
    const before = engine.submitted
    const second = await ask(service, [user(`${text}\nWhat is the value of key 4?`)])
    const { promptTokens, cachedTokens, completionTokens } = second.usage
    expect(cachedTokens).toBeGreaterThan(4000)
    expect(promptTokens - cachedTokens).toBeLessThan(20)
    // The last sampled token is never submitted.
    expect(engine.submitted - before).toBe(promptTokens - cachedTokens + completionTokens - (second.finish === 'length' ? 1 : 0))
    expect(second.ledger[0]!.sources.shared).toBe(cachedTokens)
  })

  it('another tenant has none of it cached, whatever thread id or text it sends', async () => {
    const service = await serve()
    const question = [user(`${notes(900, 100)}\nWhat is the value of key 5?`)]
    const mine = await ask(service, question, { tenant: 'anna' })
    const again = await ask(service, question, { tenant: 'anna' })
    expect([mine.usage.cachedTokens, again.usage.cachedTokens]).toEqual([0, again.usage.promptTokens])
    const before = engine.submitted
    const theirs = await ask(service, question, { tenant: 'bert' })
    expect(theirs.usage.cachedTokens).toBe(0)
    expect(engine.submitted - before).toBeGreaterThanOrEqual(theirs.usage.promptTokens)
    // Bare completions of the same text are separate, too.
    const bare = { prompt: notes(900, 30), maxTokens: 2 }
    const cached = async (tenant: string) => (await service.complete({ tenant, ...bare }).answer).usage.cachedTokens
    expect(await cached('anna')).toBe(0)
    await ask(service, question, { tenant: 'anna' })
    expect(await cached('carl')).toBe(0)
    // The cached count is the ledger's.
    const repeated = await service.complete({ tenant: 'carl', ...bare }).answer
    expect(repeated.usage.cachedTokens).toBe(repeated.ledger.reused)
    expect(repeated.usage.cachedTokens).toBe(repeated.usage.promptTokens)
  })
})

describe('a fold between two requests', () => {
  it.each(['exact', 'splice'] as const)('keeps the cells under %s that this contract keeps', async (contract) => {
    const service = await serve()
    const tenant = contract
    const text = notes(1, 120)
    const first = await ask(service, [user(`${text}\nWhat is the value of key 3?`)], { tenant, contract })
    const [fragment] = await service.threads.fragment(tenant, first.thread, {
      startMarker: 'Line 41:',
      endMarker: 'Line 81:',
      numFragments: 1,
    })
    await service.threads.fold(tenant, first.thread, fragment!.id)
    const before = engine.submitted
    const messages = [user(`${text}\nWhat is the value of key 3?`), first.message, user('And of key 4?')]
    const second = await ask(service, messages, { tenant, contract })
    expect(second.thread).toBe(first.thread)
    const { promptTokens, cachedTokens, completionTokens } = second.usage
    const pending = second.finish === 'length' ? 1 : 0
    expect(engine.submitted - before).toBe(promptTokens - cachedTokens + completionTokens - pending)
    const [entry] = second.ledger
    expect([entry!.contract, entry!.fallback]).toEqual([contract, null])

    // The tokens before the fold, and those of the marker, as the engine counts them.
    const base = service.threads.get(tenant, first.thread)
    const marker = base.all[0]!.shown.match(/\[folded [^\]]+\]/u)![0]
    const markerTokens = engine.model.tokenize(marker).length
    const beforeFold = engine.model.tokenize(text.slice(0, text.indexOf('Line 41:'))).length
    const fresh = entry!.messages.at(-1)!.fresh + entry!.messages.at(-2)!.fresh
    const computed = promptTokens - cachedTokens
    if (contract === 'exact') {
      expect(cachedTokens).toBeGreaterThanOrEqual(beforeFold)
      expect(cachedTokens).toBeLessThan(beforeFold + 12)
    } else {
      // The step computes only the marker, the new messages and the answer's end.
      expect(computed).toBeLessThanOrEqual(markerTokens + fresh + 2)
      expect(computed).toBeGreaterThanOrEqual(markerTokens)
      expect(entry!.recomputed).toBe(0)
      const made = await service.threads.refresh(tenant, first.thread)
      expect(made.exact).toBe(true)
      expect(made.ledger.length).toBeGreaterThan(0)
      const third = await ask(service, [...messages, second.message, user('And of key 5?')], { tenant, contract: 'exact' })
      expect(third.ledger[0]!.approximate).toBe(0)
      expect(third.usage.promptTokens - third.usage.cachedTokens).toBeLessThan(40)
    }
  })

  it('costs nothing in requests that only continue', async () => {
    const service = await serve()
    const messages = [user(notes(1, 40))]
    for (let turn = 0; turn < 4; turn++) {
      const { message, ledger } = await ask(service, messages, { tenant: 'on' })
      expect(ledger[0]!.recomputed).toBe(0)
      messages.push(message, user(`More ${turn}?`))
    }
    expect(service.threads.list('on')).toHaveLength(1)
  })

  it('is deleted with its thread from every tier', async () => {
    const service = await serve()
    const { thread } = await ask(service, [user(notes(5000, 30))], { tenant: 'del' })
    expect(engine.ledger(conversationId(thread)).length).toBe(1)
    await service.threads.delete('del', thread)
    await engine.check('full')
    expect(engine.ledger(conversationId(thread))).toEqual([])
    const again = await ask(service, [user(notes(5000, 30))], { tenant: 'del' })
    expect(again.usage.cachedTokens).toBe(0)
  })
})

describe('answers', () => {
  it('keep to a format, and a tool can be forced by name', async () => {
    const service = await serve()
    const json = await ask(service, [user('Say something in JSON.')], {
      format: { kind: 'json' },
      maxTokens: 400,
      sampling: { temperature: 1, seed: 7 },
    })
    expect(json.message.content.trimStart()[0]).toBe('{')
    if (json.finish === 'stop') expect(typeof JSON.parse(json.message.content)).toBe('object')
    const schema = {
      type: 'object',
      properties: { sure: { type: 'boolean' } },
      required: ['sure'],
      additionalProperties: false,
    }
    const bySchema = await ask(service, [user('Well?')], { format: { kind: 'schema', schema }, maxTokens: 60 })
    expect(Object.keys(JSON.parse(bySchema.message.content) as object)).toEqual(['sure'])
    const tool = (name: string): ToolDefinition => ({
      name,
      description: `Looks at the ${name}.`,
      parameters: { type: 'object', properties: {} },
    })
    const tools = [tool('sky'), tool('sea')]
    for (const name of ['sky', 'sea']) {
      const { message } = await ask(service, [user('Look.')], { tools, toolChoice: { name }, maxTokens: 60 })
      expect(new Set(message.toolCalls?.map((call) => call.name))).toEqual(new Set([name]))
    }
  })

  it('report logprobs and tokens; a bare completion keeps to a format', async () => {
    const service = await serve()
    const asked = begin(service, [user('Hello.')], { logprobs: 2, maxTokens: 5 })
    const events: AskEvent[] = []
    for await (const event of asked) events.push(event)
    const { logprobs, usage } = await asked.answer
    expect(logprobs).toHaveLength(usage.completionTokens)
    expect(events.flatMap((event) => (event.type === 'tokens' ? event.tokens : []))).toHaveLength(usage.completionTokens)
    expect(events.map(({ type }) => type).slice(0, 3)).toEqual(['started', 'plan', 'progress'])
    const { text } = await service.complete({ tenant: 't', prompt: 'Hello', maxTokens: 3, format: { kind: 'json' } }).answer
    expect(text[0]).toBe('{')
    await expect(service.complete({ tenant: 't', prompt: [1e9], maxTokens: 3 }).answer).rejects.toMatchObject({
      code: 'engine/bad-request',
    })
    const tokens = await service.tokenize(undefined, 'Hello there.')
    expect(await service.detokenize('builtin', tokens)).toBe('Hello there.')
    await expect(service.detokenize('builtin', [-1])).rejects.toMatchObject({ code: 'engine/bad-request' })
    await expect(service.tokenize('other', 'x')).rejects.toMatchObject({ code: 'model/not-found' })
  })

  it('to one prompt compute it once', async () => {
    const service = await serve()
    const before = engine.submitted
    const asked = service.several(
      {
        tenant: 'n',
        messages: [user(notes(7000, 60))],
        tools: [],
        toolChoice: 'auto',
        maxTokens: 4,
        sampling: { temperature: 1, seed: 1 },
      },
      4,
    )
    const answers = await Promise.all(asked.map(({ answer }) => answer))
    const [prompt] = answers.map(({ usage }) => usage.promptTokens)
    expect(engine.submitted - before).toBeLessThan(prompt! + 4 * 10)
    expect(answers.slice(1).map(({ usage }) => usage.cachedTokens)).toEqual(Array(3).fill(prompt))
  })
})

describe('slots', () => {
  it('take all answers of a request, even if no request may wait', async () => {
    const service = await serve({ slots: 1, queueLimit: 0 })
    const asked = service.several({ tenant: 't', messages: [user('Say.')], tools: [], toolChoice: 'none', maxTokens: 2 }, 3)
    expect(await Promise.all(asked.map(({ answer }) => answer))).toHaveLength(3)
  })

  it('are freed at once when a client leaves, waiting or running', async () => {
    const service = await serve({ slots: 1, queueLimit: 2 })
    const leave = new AbortController()
    const running = begin(service, [user('Count.')], { maxTokens: 4000, signal: leave.signal, format: endless })
    for await (const event of running) if (event.type === 'text') break
    const gone = new AbortController()
    const waiting = begin(service, [user('Wait.')], { signal: gone.signal })
    const next = begin(service, [user('Next.')])
    const refused = await ask(service, [user('Too many.')]).catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(Overloaded)
    expect(refused).toMatchObject({ code: 'server/overloaded', status: 503 })
    expect((refused as Overloaded).retryAfter).toBeGreaterThanOrEqual(1)
    expect(service.status()).toMatchObject({ running: 1, queue: { waiting: 2, limit: 2 } })
    gone.abort()
    await expect(waiting.answer).rejects.toMatchObject({ code: 'engine/cancelled' })
    const left = performance.now()
    leave.abort()
    const cut = await running.answer
    expect([cut.finish, cut.message.content === '']).toEqual(['cancelled', false])
    expect((await next.answer).finish).not.toBe('cancelled')
    expect(performance.now() - left).toBeLessThan(5000)
    const asks = { done: 1, failed: 0, cancelled: 2, refused: 1 }
    expect(service.status()).toMatchObject({ running: 0, queue: { waiting: 0 }, asks })
    // The partial answer is not a message, so the same request continues the thread.
    const again = await ask(service, [user('Count.')])
    expect(again.thread).toBe(cut.thread)
  })

  it('are freed when time is up, and when the server closes', async () => {
    const service = await serve({ slots: 1 })
    const late = ask(service, [user('Count on.')], { maxTokens: 4000, timeoutMs: 300, format: endless })
    const waits = ask(service, [user('And I?')], { timeoutMs: 100 })
    await expect(waits).rejects.toMatchObject({ code: 'server/timeout', status: 504 })
    await expect(late).rejects.toMatchObject({ code: 'server/timeout' })
    expect(service.status()).toMatchObject({ running: 0, queue: { waiting: 0 } })

    const last = begin(service, [user('Last.')], { maxTokens: 4000, format: endless })
    const behind = ask(service, [user('Behind.')])
    for await (const event of last) if (event.type === 'text') break
    const closed = service.close(50)
    await expect(behind).rejects.toMatchObject({ code: 'server/closing' })
    expect((await last.answer).finish).toBe('cancelled')
    await closed
    await expect(ask(service, [user('More?')])).rejects.toMatchObject({ code: 'server/closing' })
  })
})
