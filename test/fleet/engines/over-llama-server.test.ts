/**
 * Tests the remote engine over a real llama-server, if one was built (bench/runtime/peers builds it): its cache figures equal those of the
 * server's slots.
 */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { startServer, type ServerProcess } from '../../../bench/server-process.js'
import { plain } from '../../../src/runtime/agents/sculptor.js'
import type { StepWording } from '../../../src/lab/agents/snapshots.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { Engine, EngineEvent } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import type { DeferralOptions } from '../../../src/fleet/engines/deferral.js'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import { invariant } from '../../../src/runtime/core/errors.js'
import { collect } from '../../../src/lab/collect/collect.js'
import type { TrajectoryRecord } from '../../../src/lab/collect/formats.js'
import { taskSource } from '../../../src/lab/collect/sources.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { openNative } from '../../../src/runtime/native/binding.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const binary = existsSync(join(root, '.cache'))
  ? readdirSync(join(root, '.cache'))
      .map((folder) => join(root, '.cache', folder, 'llama-server'))
      .find((path) => /llama-server-[^/]+\/llama-server$/.test(path) && existsSync(path))
  : undefined

const lines = (first: number, last: number) =>
  Array.from(
    { length: last - first },
    (_, at) => `Line ${first + at}: the value of key ${first + at} is ${(first + at) * 7 + 1}.`,
  ).join('\n')
const user = (content: string): ChatMessage => ({ role: 'user', content })

describe.skipIf(binary === undefined)('over llama-server', () => {
  let server: ServerProcess
  const engines: RemoteEngine[] = []

  beforeAll(async () => {
    invariant(binary !== undefined, 'Skipped without it.')
    const model = join(root, 'native-models', 'builtin', 'kvfold-tiny.gguf')
    const settings = ['--parallel', '1', '--threads', '1', '--threads-batch', '1', '--ctx-size', '8192', '--cache-ram', '0']
    server = await startServer('llama-server', binary, (port) => [
      ...['--model', model, '--host', '127.0.0.1', '--port', String(port), '--offline', '--no-ui', '--jinja'],
      ...settings,
    ])
  })

  afterAll(async () => {
    for (const engine of engines) await engine.dispose()
    await server.close()
  })

  const connect = async (deferEdits?: DeferralOptions) => {
    const engine = await RemoteEngine.connect({ url: server.url, ...(deferEdits === undefined ? {} : { deferEdits }) })
    engines.push(engine)
    return engine
  }

  it('describes itself', async () => {
    const engine = await connect()
    expect(engine.flavour.name).toBe('llama-server')
    expect(engine.info).toMatchObject({
      engine: 'remote',
      context: 8192,
      release: expect.stringMatching(/^llama-server \S+/) as string,
    })
    expect(engine.info.model).toMatch(/kvfold-tiny/)
  })

  it('collects the same trajectories as the model loaded here, token for token, with the same probabilities', async () => {
    const task = await openTask({ task: 'pi-llm', options: { updates: [4, 12], keys: 8, samples: 1, order: 'start-last' } })
    const source = taskSource({ task, agent: 'sculptor' })
    const rows = async (engine: Engine, tokens: StepWording | 'engine') => {
      const acting = { teacher: 'model', engine, sampling: { temperature: 0 } } as const
      const model = { name: 'tiny', fingerprint: '' }
      const all: TrajectoryRecord[] = []
      for await (const one of collect({ source, acting, format: 'tokens', tokens, model, rollouts: 1 }))
        all.push(...(one.rows as TrajectoryRecord[]))
      return all
    }
    const remote = await RemoteEngine.connect({ url: server.url, tokens: true })
    engines.push(remote)
    const local = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
      cells: 8192,
      threads: 1,
      batchThreads: 1,
    })
    try {
      const isEndOfGeneration = (token: number) => local.model.isEndOfGeneration(token)
      const [there, here] = [await rows(remote, 'engine'), await rows(local, { format: local.format, isEndOfGeneration })]
      const what = ({ tokens, loss, steps }: TrajectoryRecord) => ({ tokens, loss, steps })
      expect(there.map(what)).toEqual(here.map(what))
      expect(here.length).toBeGreaterThan(2)
      for (const [at, { logprobs }] of there.entries())
        for (const [index, one] of logprobs!.flat().entries()) expect(one).toBeCloseTo(here[at]!.logprobs!.flat()[index]!, 1)
    } finally {
      await local.dispose()
    }
  })

  it('continues from the end of the cache, token for token, and counts the tokens that an edit recomputes', async () => {
    const engine = await connect()
    const conversation = conversationId('goes-on')
    const messages = [user(lines(0, 40)), user('Which is the value of key 3?')]
    const step = (edits: readonly Edit[] = []) =>
      engine.respond({ conversation, messages, edits, maxTokens: 12, contract: 'splice' }).reply
    const first = await step()
    expect(first.ledger.shown).toBe((await engine.countExactly(messages, []))! + first.timing.generatedTokens - 1)
    messages.push(first.message, user('And the value of key 4?'))
    const second = await step()
    // All of the first step is cached except its last token, which no engine computes.
    expect(second.ledger).toMatchObject({ reused: first.ledger.shown, recomputed: 0, fallback: null, contract: 'exact' })
    expect(second.ledger.messages.slice(0, 2).map(({ shown, fresh }) => [shown, fresh])).toEqual(
      first.ledger.messages.slice(0, 2).map(({ shown }) => [shown, 0]),
    )

    messages.push(second.message, user('And the value of key 5?'))
    const text = messages[0]!.content
    const start = text.indexOf('Line 20')
    const fold: Edit = { message: 0, span: { start, end: text.indexOf('Line 30') }, replacement: '[folded]\n' }
    const folded = await step([fold])
    const before = (await engine.countExactly([user(text.slice(0, start))], []))!
    expect(folded.ledger.fallback).toMatch(/beginnings/)
    // `before` includes the end of turn and the generation prompt, which come after the fold; a token may also cross its border.
    expect(folded.ledger.reused).toBeLessThan(before)
    expect(folded.ledger.reused).toBeGreaterThan(before - 20)
    expect(folded.ledger.recomputed).toBeGreaterThan(100)
    expect(folded.ledger.reused + folded.ledger.recomputed + folded.ledger.fresh).toBe(folded.ledger.shown)

    // A restore also recomputes from there, because nothing is parked.
    messages.push(folded.message, user('And the value of key 6?'))
    const restored = await step()
    expect(Math.abs(restored.ledger.reused - folded.ledger.reused)).toBeLessThan(5)
    expect(restored.ledger.submitted).toBe(restored.ledger.shown - restored.ledger.reused)
  })

  it('reports plan and progress, before and while it computes', async () => {
    const engine = await connect()
    const events: EngineEvent[] = []
    const running = engine.respond({ conversation: conversationId('events'), messages: [user(lines(100, 200))], maxTokens: 4 })
    for await (const event of running) events.push(event)
    const { ledger } = await running.reply
    const [plan, ...rest] = events
    expect(plan).toMatchObject({ type: 'plan', contract: 'exact' })
    if (plan?.type === 'plan') expect(plan.shown + 3).toBe(ledger.shown)
    const prefills = rest.filter((event) => event.type === 'prefill')
    expect(prefills.at(-1)).toMatchObject({ done: prefills[0]?.total, total: prefills[0]?.total })
    expect(rest.findIndex(({ type }) => type === 'text')).toBeGreaterThan(rest.findLastIndex(({ type }) => type === 'prefill'))
  })

  it('estimates well once it has seen a prompt, and says that it estimates', async () => {
    const engine = await connect()
    const messages = [user(lines(0, 60)), user('Well?')]
    await engine.respond({ conversation: conversationId('estimate'), messages, maxTokens: 1 }).reply
    const { tokens, estimated } = engine.estimate(messages, [])
    expect(estimated).toBe(true)
    expect(engine.count(messages, [])).toBe(tokens)
    const exact = (await engine.countExactly(messages, []))!
    expect(Math.abs(tokens - exact) / exact).toBeLessThan(0.02)
    const unseen = [user(lines(60, 120))]
    const counted = (await engine.countExactly(unseen, []))!
    expect(Math.abs(engine.count(unseen, []) - counted) / counted).toBeLessThan(0.15)
  })

  it('keeps to a schema, and reports logprobs with token numbers', async () => {
    const engine = await connect()
    const schema = { type: 'object', properties: { sure: { type: 'boolean' } }, required: ['sure'], additionalProperties: false }
    const logit = await engine.respond({
      conversation: conversationId('logprobs'),
      messages: [user('Well?')],
      maxTokens: 3,
      logprobs: 2,
    }).reply
    // An answer that ended by itself has an end-of-turn token, which llama-server counts but does not stream.
    const told = logit.timing.generatedTokens - (logit.finish === 'stop' ? 1 : 0)
    expect(told).toBeGreaterThan(0)
    expect(logit.logprobs).toHaveLength(told)
    for (const { token, logprob, top } of logit.logprobs!) {
      expect(token).toBeGreaterThanOrEqual(0)
      expect(logprob).toBeLessThanOrEqual(0)
      expect(top).toHaveLength(2)
    }
    const { message, finish } = await engine.respond({
      conversation: conversationId('schema'),
      messages: [user('Are you sure?')],
      schema,
      maxTokens: 100,
      sampling: { temperature: 1, seed: 4, topK: 20 },
    }).reply
    // A model that likes white space may not finish, but it writes only text of the schema.
    if (finish === 'stop') expect(typeof (JSON.parse(message.content) as { sure: unknown }).sure).toBe('boolean')
    else expect(message.content).toMatch(/^[\s{"sure:truefalse}]*$/)
  })

  it('reports a prompt that is too long as the other engines do', async () => {
    const engine = await connect()
    const { reply } = engine.respond({ conversation: conversationId('long'), messages: [user(lines(0, 600))] })
    await expect(reply).rejects.toMatchObject({ code: 'context/full', status: 400 })
  })

  it('frees the slot when a step is cancelled', async () => {
    const engine = await connect()
    const abort = new AbortController()
    const running = engine.respond({
      conversation: conversationId('cancelled'),
      messages: [user('Go on for ever.')],
      sampling: { temperature: 1.5, seed: 1, logitBias: [] },
      schema: { type: 'array', items: { type: 'integer' }, minItems: 2000 },
      maxTokens: 6000,
      signal: abort.signal,
    })
    for await (const event of running) if (event.type === 'text') abort.abort()
    const { finish, ledger } = await running.reply
    expect([finish, ledger.kind]).toEqual(['cancelled', 'cancelled'])
    const busy = async () =>
      ((await (await fetch(`${server.url}/slots`)).json()) as { is_processing: boolean }[]).some((slot) => slot.is_processing)
    await expect.poll(busy, { timeout: 5000 }).toBe(false)
  })

  it('folds for a program, and computes less when edits are deferred', async () => {
    /**
     * Folds eight parts from first to last, one in each turn, and runs four more turns. Returns the tokens that the server computed, the
     * steps with deferred edits, and the tokens of the last prompt.
     */
    const episode = async (deferEdits?: DeferralOptions) => {
      const engine = await connect(deferEdits)
      const session = plain({ engine, id: conversationId('episode'), generation: { maxTokens: 2 } })
      session.conversation.add(user(lines(300, 460)))
      await session.ask('Well?')
      const whole = session.conversation.messages[0]!.content.length
      const cut = session.conversation.cut([{ message: 0, span: { start: 0, end: whole } }], 10)
      if (!cut.ok) throw new Error(cut.message)
      for (const { id } of cut.fragments.slice(0, 8)) {
        expect(session.conversation.fold(id).ok).toBe(true)
        await session.ask('And now?')
      }
      for (let more = 0; more < 4; more++) await session.ask('And now?')
      const entries = session.ledger.slice(1)
      engine.forget(session.conversation.id)
      const waited = entries.filter(({ fallback }) => fallback?.includes('wait') === true).length
      return { submitted: entries.reduce((sum, { submitted }) => sum + submitted, 0), waited, shown: entries.at(-1)!.shown }
    }
    const atOnce = await episode()
    const waiting = await episode({ cachedPrice: 0.1 })
    console.log(
      `eight folds from first to last on llama-server, tokens computed: at once ${JSON.stringify(atOnce)}, deferred ${JSON.stringify(waiting)}`,
    )
    expect(atOnce.waited).toBe(0)
    expect(waiting.waited).toBeGreaterThan(0)
    expect(waiting.submitted).toBeLessThan(atOnce.submitted / 3)
    // In the end all folds are made.
    expect(waiting.waited).toBeLessThan(12)
    expect(waiting.shown).toBe(atOnce.shown)
  })
})
