/** Tests a server in front of an endpoint that tells a prompt's tokens only at the answer's end, as vLLM and SGLang do. */
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import { serving, type Serving } from './support/serving.js'

const PROMPT = 20
const CACHED = 5
const usage = { prompt_tokens: PROMPT, completion_tokens: 2, prompt_tokens_details: { cached_tokens: CACHED } }
const part = (data: object) => `data: ${JSON.stringify(data)}\n\n`
const delta = (of: object, finish: string | null = null) => part({ choices: [{ index: 0, delta: of, finish_reason: finish }] })

const endpoint = createServer((request, response: ServerResponse) => {
  if (request.url === '/v1/models') response.end(JSON.stringify({ data: [{ id: 'm', owned_by: 'vllm', max_model_len: 1000 }] }))
  else if (request.url === '/v1/chat/completions')
    response
      .writeHead(200, { 'content-type': 'text/event-stream' })
      .end(delta({ content: 'It is ' }) + delta({ content: 'red.' }, 'stop') + part({ choices: [], usage }) + 'data: [DONE]\n\n')
  else response.writeHead(404).end()
})
let served: Serving
beforeAll(async () => {
  await new Promise<void>((resolve) => endpoint.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}`
  served = await serving({ engine: () => RemoteEngine.connect({ url }) })
})
afterAll(async () => {
  await served.close()
  endpoint.close()
})

const ask = { model: 'builtin', messages: [{ role: 'user' as const, content: 'Which is red?' }] }

it('streams messages that Anthropic’s package reads', async () => {
  const client = new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
  const stream = client.messages.stream({ ...ask, max_tokens: 9 })
  const kinds: string[] = []
  for await (const { type } of stream) kinds.push(type)
  expect(kinds[0]).toBe('message_start')
  expect(await stream.finalMessage()).toMatchObject({
    content: [{ type: 'text', text: 'It is red.' }],
    usage: { input_tokens: PROMPT - CACHED, cache_read_input_tokens: CACHED, output_tokens: 2 },
  })
})

it('streams responses that OpenAI’s package reads', async () => {
  const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
  const stream = client.responses.stream({ model: 'builtin', input: 'Which is red?' })
  const kinds: string[] = []
  for await (const { type } of stream) kinds.push(type)
  expect(kinds.slice(0, 2)).toEqual(['response.created', 'response.in_progress'])
  expect(await stream.finalResponse()).toMatchObject({
    output_text: 'It is red.',
    usage: { input_tokens: PROMPT, input_tokens_details: { cached_tokens: CACHED }, output_tokens: 2 },
  })
})

it('tells the prompt’s tokens of a whole answer', async () => {
  const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
  const answer = await client.chat.completions.create(ask)
  expect(answer.usage).toMatchObject({ prompt_tokens: PROMPT, prompt_tokens_details: { cached_tokens: CACHED } })
})

it('counts the tokens of a compaction', async () => {
  const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
  const input = [
    { role: 'user' as const, content: 'Which is red?' },
    { role: 'assistant' as const, content: 'This.' },
  ]
  const compacted = await client.responses.compact({ model: 'builtin', input })
  expect(compacted.usage).toMatchObject({ input_tokens: PROMPT, input_tokens_details: { cached_tokens: CACHED } })
})
