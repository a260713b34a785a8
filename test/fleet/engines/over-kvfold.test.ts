/**
 * Tests the remote engine over kvfold's own server: a served model behind a served engine behaves like the model itself, with its counts.
 */
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { contextTools, foldFragment } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import { ownWords, piSample, piScore } from '../../../src/lab/pi-llm.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { Server } from '../../../src/runtime/server/app.js'
import { ThreadService } from '../../../src/runtime/server/service.js'
import { granted } from '../../support/results.js'

const KEY = { name: 'somebody', key: 'kvfold-test-key-0123456789abcdef' }
const model = fileURLToPath(new URL('../../../native-models/builtin/kvfold-tiny.gguf', import.meta.url))
const tools = contextTools.map(({ definition }) => definition)
const user = (content: string): ChatMessage => ({ role: 'user', content })
const lines = (count: number) =>
  Array.from({ length: count }, (_, at) => `Line ${at}: the value of key ${at} is ${at * 7 + 1}.`).join('\n')

let local: LlamaEngine
let inner: Server
let outer: Server
let url: string
let outerUrl: string
let remote: RemoteEngine

beforeAll(async () => {
  local = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), model, { cells: 16_384, threads: 1, batchThreads: 1 })
  const service = await ThreadService.open({ models: [{ name: 'builtin', slots: 4, load: () => Promise.resolve(local) }] })
  inner = await Server.create({ service, version: '0', keys: [KEY], logLevel: 'silent' })
  url = await inner.listen({ host: '127.0.0.1', port: 0 })
  remote = await RemoteEngine.connect({ url: `${url}/v1`, key: KEY.key })
  const load = () => RemoteEngine.connect({ url, key: KEY.key })
  const over = await ThreadService.open({ models: [{ name: 'theirs', slots: 4, load }] })
  outer = await Server.create({ service: over, version: '0', logLevel: 'silent' })
  outerUrl = await outer.listen({ host: '127.0.0.1', port: 0 })
})

afterAll(async () => {
  await remote.dispose()
  await outer.close()
  await inner.close()
})

describe('over kvfold', () => {
  it('describes itself, and needs its key', async () => {
    expect(remote.flavour.name).toBe('kvfold')
    expect(remote.info).toMatchObject({ engine: 'remote', model: 'builtin' })
    await expect(RemoteEngine.connect({ url })).rejects.toMatchObject({ code: 'remote/unauthorized' })
    await expect(RemoteEngine.connect({ url, key: KEY.key, model: 'other' })).rejects.toMatchObject({ code: 'model/not-found' })
  })

  it('gets the same answer as the engine behind it, and counts what the addon counts', async () => {
    const conversation = conversationId('same')
    // The prompt has the form of the training data. On other prompts two tokens may be equally likely, and rounding decides.
    const { prompt, keys } = piSample({ words: ownWords(), keys: 4, updates: 4, seed: 1 })
    const messages = [user(prompt)]
    for (const next of keys.slice(0, 3)) {
      const turn = messages.length
      const before = local.submitted
      const { message, ledger, timing } = await remote.respond({ conversation, messages, maxTokens: 12 }).reply
      // The last sampled token is never submitted.
      expect(local.submitted - before).toBe(ledger.submitted)
      expect(ledger.messages.at(-1)?.fresh).toBeGreaterThanOrEqual(timing.generatedTokens - 1)
      const own = await local.respond({ conversation: conversationId(`own-${turn}`), messages, maxTokens: 12 }).reply
      expect(message.content).toBe(own.message.content)
      expect(ledger.shown).toBe(own.ledger.shown)
      expect(message.content).toContain('The current value of')
      if (turn > 1) expect(ledger.recomputed).toBe(0)
      messages.push(message, user(`And ${next}?`))
    }
  })

  it('estimates the prices of folds, and says so', async () => {
    const id = conversationId('priced')
    const conversation = new Conversation(id, portsOf(remote, id))
    conversation.add(user('Just a line.'))
    const [fragment] = granted(conversation.cut([{ message: 0, span: { start: 0, end: 11 } }], 1)).fragments
    const { text } = await foldFragment.run(conversation, { fragment_id: fragment!.id })
    expect(text).toMatch(
      /This does not pay: the marker takes about \d+ tokens more than the text \(about \d+ tokens shown with the text, about \d+ with the marker\)/,
    )
    expect(conversation.fragments[0]!.price).toMatchObject({ about: true })
    // A server in front of the endpoint does the same, for programs and people.
    const send = async (path: string, body: object) => {
      const headers = { 'content-type': 'application/json' }
      const response = await fetch(`${outerUrl}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
      return { status: response.status, body: (await response.json()) as Record<string, unknown> }
    }
    const asked = { messages: [user('Just a short text.')], max_tokens: 2, kvfold: {} }
    const { kvfold } = (await send('/v1/chat/completions', asked)).body
    const thread = `/kvfold/threads/${(kvfold as { readonly thread: string }).thread}`
    const cut = await send(`${thread}/fragments`, { startMarker: 'Just', endMarker: 'text', numFragments: 1 })
    const [{ id: short }] = cut.body['fragments'] as [{ readonly id: string }]
    const refused = await send(`${thread}/fragments/${short}/fold`, {})
    expect(refused.status).toBe(409)
    expect(JSON.stringify(refused.body)).toMatch(/takes about \d+ tokens more than the text/)
    const folded = await send(`${thread}/fragments/${short}/fold`, { costly: 'allow' })
    expect(folded.body).toMatchObject({ fragment: { state: { kind: 'folded' }, price: { about: true } } })
  })

  it('keeps the salts of requests apart in the cache behind it', async () => {
    const cached = async (salt?: string) => {
      const body = { messages: [user(lines(12))], max_tokens: 2, ...(salt === undefined ? {} : { cache_salt: salt }) }
      const headers = { 'content-type': 'application/json' }
      const response = await fetch(`${outerUrl}/v1/chat/completions`, { method: 'POST', headers, body: JSON.stringify(body) })
      const { usage } = (await response.json()) as { usage: { prompt_tokens_details: { cached_tokens: number } } }
      return usage.prompt_tokens_details.cached_tokens
    }
    expect([await cached('one'), await cached('two')]).toEqual([0, 0])
    // Other tests sent messages without a salt, which begin in the same way.
    expect(await cached()).toBeLessThan(20)
    expect(await cached('one')).toBeGreaterThan(100)
  })

  it('reports the stop string that ended the answer, and the bytes of parts of characters', async () => {
    const request = {
      conversation: conversationId('stop'),
      messages: [user('Well?')],
      grammar: 'root ::= "aé😀 good bye"',
      stop: ['bye', 'good'],
      logprobs: 0,
    }
    const { message, finish, stop, logprobs = [] } = await remote.respond(request).reply
    expect({ content: message.content, finish, stop }).toEqual({ content: 'aé😀 ', finish: 'stop', stop: 'good' })
    expect(logprobs.some(({ bytes }) => bytes !== undefined)).toBe(true)
    const said = logprobs.flatMap(({ text, bytes }) => bytes ?? [...Buffer.from(text)])
    expect(Buffer.from(said).toString().startsWith(message.content)).toBe(true)
    const answer = await fetch(`${outerUrl}/v1/messages`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        messages: request.messages,
        max_tokens: 30,
        stop_sequences: request.stop,
        kvfold: { grammar: request.grammar },
      }),
    })
    expect(await answer.json()).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'good' })
  })

  it('recomputes the tokens after an edit, and none before it', async () => {
    const conversation = conversationId('edit')
    const text = lines(60)
    const messages = [user(text), user('Well?')]
    await remote.respond({ conversation, messages, maxTokens: 2 }).reply
    const start = text.indexOf('Line 30')
    const edits: Edit[] = [{ message: 0, span: { start, end: text.indexOf('Line 40') }, replacement: '[folded]\n' }]
    const before = local.submitted
    const { ledger } = await remote.respond({ conversation, messages, edits, maxTokens: 2, contract: 'splice' }).reply
    expect(local.submitted - before).toBe(ledger.submitted)
    expect(ledger).toMatchObject({ contract: 'exact', fallback: expect.stringMatching(/beginnings/) as string })
    const kept = local.count([user(text.slice(0, start))], [])
    expect(Math.abs(ledger.reused - kept)).toBeLessThan(20)
  })

  it('streams tool calls, forced and by name', async () => {
    const running = remote.respond({
      conversation: conversationId('call'),
      messages: [user('Ring the bell.')],
      // The tool has no arguments, so that the call is complete within the limit.
      tools: [...tools, { name: 'ring', description: 'Rings the bell.', parameters: { type: 'object', properties: {} } }],
      toolChoice: 'required',
      callable: ['ring'],
      maxTokens: 60,
    })
    const types = new Set<string>()
    for await (const event of running) types.add(event.type)
    const { message } = await running.reply
    expect(message.toolCalls?.map(({ name }) => name)).toContain('ring')
    expect([...types]).toEqual(expect.arrayContaining(['plan', 'prefill', 'tokens', 'call']))
  })

  it('serves the agent that manages its own context', async () => {
    const sample = piSample({ words: ownWords(), updates: 32, seed: 2024 })
    const session = sculptor({ engine: remote, id: conversationId('sculptor'), prompt: 'pi-llm' })
    const before = local.submitted
    const outcome = await session.ask(sample.prompt)
    const [cut, fold, answer] = outcome.steps
    expect(cut!.calls.map(({ call }) => call.name)).toEqual(['fragment_context'])
    expect(new Set(fold!.calls.map(({ call }) => call.name))).toEqual(new Set(['fold_fragment']))
    expect(outcome.steps.flatMap(({ calls }) => calls).filter(({ failed }) => failed)).toEqual([])
    // Cutting does not change the prompt, so the second step continues where the first ended.
    expect(fold!.ledger.reused).toBeGreaterThanOrEqual(cut!.ledger.shown - 5)
    expect(answer!.ledger.recomputed).toBeGreaterThan(0)
    expect(outcome.contextAfter).toBeLessThan(0.4 * outcome.contextBefore)
    expect(piScore(sample, outcome.answer).accuracy).toBeGreaterThan(0.8)
    expect(local.submitted - before).toBe(outcome.ledger.reduce((sum, { submitted }) => sum + submitted, 0))
  })

  it('cancels the remote step when it is cancelled', async () => {
    const abort = new AbortController()
    const running = remote.respond({
      conversation: conversationId('cancel'),
      messages: [user('Go on.')],
      schema: { type: 'array', items: { type: 'integer' }, minItems: 300 },
      sampling: { temperature: 1.5, seed: 1 },
      maxTokens: 6000,
      signal: abort.signal,
    })
    for await (const event of running) if (event.type === 'text') abort.abort()
    expect((await running.reply).finish).toBe('cancelled')
    const submitted = async () => {
      const before = local.submitted
      await new Promise((resolve) => setTimeout(resolve, 200))
      return local.submitted - before
    }
    await expect.poll(submitted, { timeout: 5000 }).toBe(0)
  })
})

describe('a server over a remote engine', () => {
  const ask = async (body: object) => {
    const response = await fetch(`${outerUrl}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ temperature: 0, max_tokens: 8, ...body }),
    })
    return { status: response.status, body: (await response.json()) as Record<string, never> }
  }

  it('answers, and reports the cached tokens of the engine behind it', async () => {
    const messages = [{ role: 'user', content: lines(80) }]
    const first = await ask({ messages, kvfold: {} })
    expect(first.status).toBe(200)
    const { choices, usage } = first.body as unknown as { choices: { message: object }[]; usage: { prompt_tokens: number } }
    const before = local.submitted
    const second = await ask({
      messages: [...messages, choices[0]!.message, { role: 'user', content: 'More?' }],
      kvfold: { ledger: true },
    })
    const told = second.body as unknown as {
      usage: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details: { cached_tokens: number } }
      kvfold: { ledger: LedgerEntry[] }
    }
    const { prompt_tokens: prompt, completion_tokens: generated, prompt_tokens_details: details } = told.usage
    expect(details.cached_tokens).toBeGreaterThanOrEqual(usage.prompt_tokens)
    const [entry] = told.kvfold.ledger
    expect(local.submitted - before).toBe(entry!.submitted)
    expect(entry!.reused).toBe(details.cached_tokens)
    expect(entry!.shown - prompt).toBeLessThanOrEqual(generated)
  })

  it("keeps a conversation's folds, though the client resends its whole text", async () => {
    // The text differs from the one above; otherwise the request would continue that conversation.
    const text = `Other lines.\n${lines(80)}`
    const messages = [{ role: 'user', content: text }]
    const { body } = await ask({ messages, kvfold: {} })
    const { choices, kvfold, usage } = body as unknown as {
      choices: { message: object }[]
      kvfold: { thread: string }
      usage: { prompt_tokens: number }
    }
    const at = `${outerUrl}/kvfold/threads/${kvfold.thread}`
    const post = async (path: string, sent: object) => {
      const response = await fetch(at + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(sent),
      })
      expect(response.status).toBe(200)
      return (await response.json()) as { fragments: { id: string }[] }
    }
    const { fragments } = await post('/fragments', { startMarker: 'Line 20:', endMarker: 'Line 60:', numFragments: 2 })
    for (const { id } of fragments) await post(`/fragments/${id}/fold`, {})
    const again = await ask({ messages: [...messages, choices[0]!.message, { role: 'user', content: 'More?' }], kvfold: {} })
    expect((again.body as unknown as typeof body & { usage: { prompt_tokens: number } }).usage.prompt_tokens).toBeLessThan(
      usage.prompt_tokens * 0.7,
    )
  })
})
