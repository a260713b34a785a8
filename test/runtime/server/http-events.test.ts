/** Tests how dialects write streams, event by event, and that streams keep to the client's pace. */
import { createServer, get, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, it } from 'vitest'
import type { Answer, AskEvent } from '../../../src/runtime/server/ask.js'
import { MessageStream } from '../../../src/runtime/server/dialects/anthropic/messages.js'
import { ChatStream } from '../../../src/runtime/server/dialects/openai/chat-reply.js'
import { ResponseStream } from '../../../src/runtime/server/dialects/openai/response-reply.js'
import { ResponseTools } from '../../../src/runtime/server/dialects/openai/response-tools.js'
import { EventWriter, type Frame, type StreamShape } from '../../../src/runtime/server/request-lifecycle.js'
import { problemOf } from '../../../src/runtime/server/problem.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'

const call = { id: 'call_1', name: 'look', arguments: { at: 'sky' } }
const logprob = { token: 5, text: 'Blue', logprob: -0.5, top: [] }

/** The events of a model that thinks, answers and calls; the scripted engine does not stream reasoning. */
const EVENTS: readonly AskEvent[] = [
  { type: 'started', thread: 'th1', model: 'm' },
  { type: 'plan', step: 0, shown: 10, reused: 7, compute: 3 },
  { type: 'progress', step: 0, done: 3, total: 3 },
  { type: 'tokens', tokens: [1] },
  { type: 'reasoning', text: 'Hmm' },
  { type: 'reasoning', text: '.' },
  { type: 'tokens', tokens: [5], logprobs: [logprob] },
  { type: 'text', text: 'Blue' },
  { type: 'text', text: '.' },
  { type: 'tokens', tokens: [6, 7] },
  { type: 'call', call },
]

const ANSWER: Answer = {
  thread: 'th1',
  model: 'm',
  message: { role: 'assistant', content: 'Blue.', reasoning: 'Hmm.', toolCalls: [call] },
  finish: 'tool-calls',
  tokens: [1, 5, 6, 7],
  usage: { promptTokens: 10, cachedTokens: 7, completionTokens: 4, reasoningTokens: 1 },
  ledger: [],
  lost: null,
  cleared: null,
  edits: null,
  timing: { firstToken: 1, total: 2, prefillTokens: 3, generatedTokens: 4 },
  waited: 0,
  contextCalls: 0,
  unread: [],
}

/** Returns all frames of one answer's stream. */
async function written(shape: StreamShape<Answer>): Promise<readonly Frame[]> {
  return [...EVENTS.flatMap((event) => shape.on(event, 0)), ...(await shape.done(ANSWER, 0)), ...shape.end([ANSWER])]
}

describe('shapes of streams', () => {
  it('OpenAI chat: the role, reasoning, text with its logprobs, the call, the reason, usage, the end', async () => {
    const frames = await written(
      new ChatStream(
        { id: 'c', created: 1, system_fingerprint: 'kvfold-test' },
        { kvfold: undefined, ignored: [], logprobs: true, usage: true },
      ),
    )
    const chunks = frames
      .slice(0, -1)
      .map(({ data }) => data as { choices: { delta: object; finish_reason: unknown; logprobs: unknown }[]; usage: unknown })
    expect(frames.at(-1)).toEqual({ data: '[DONE]' })
    expect(chunks.map(({ choices }) => choices[0]?.delta)).toEqual([
      { role: 'assistant', content: '' },
      { reasoning_content: 'Hmm' },
      { reasoning_content: '.' },
      { content: 'Blue' },
      { content: '.' },
      { tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'look', arguments: '' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{"at":"sky"}' } }] },
      {},
      undefined,
    ])
    expect(chunks[3]?.choices[0]?.logprobs).toEqual({
      content: [{ id: 5, token: 'Blue', logprob: -0.5, bytes: [66, 108, 117, 101], top_logprobs: [] }],
      refusal: null,
    })
    expect(chunks.at(-2)?.choices[0]?.finish_reason).toBe('tool_calls')
    expect(chunks.at(-1)?.usage).toMatchObject({
      prompt_tokens: 10,
      completion_tokens: 4,
      prompt_tokens_details: { cached_tokens: 7 },
      completion_tokens_details: { reasoning_tokens: 1 },
    })
  })

  it('OpenAI chat: several answers in turn, and an error in the middle', () => {
    const shape = new ChatStream(
      { id: 'c', created: 1, system_fingerprint: 'kvfold-test' },
      { kvfold: undefined, ignored: [], logprobs: false, usage: false },
    )
    const frames = [shape.on(EVENTS[1]!, 1), shape.on(EVENTS[1]!, 0), shape.on(EVENTS[7]!, 1), shape.done(ANSWER, 1)].flat()
    expect(frames.map(({ data }) => (data as { choices: { index: number }[] }).choices[0]?.index)).toEqual([1, 0, 1, 1])
    const failed = shape.failed(problemOf(new KvfoldError('server/closing', 'Going.')))
    expect(failed).toEqual([
      { data: { error: { message: 'Going.', type: 'service_unavailable_error', param: null, code: 'server/closing' } } },
      { data: '[DONE]' },
    ])
  })

  it('Anthropic: blocks one after another', async () => {
    const frames = await written(new MessageStream('msg_1', 'req_1', { messages: [], max_tokens: 9 }))
    expect(frames.map(({ event }) => event)).toEqual([
      'message_start',
      ...['content_block_start', 'content_block_delta', 'content_block_delta', 'content_block_stop'],
      ...['content_block_start', 'content_block_delta', 'content_block_delta', 'content_block_stop'],
      ...['content_block_start', 'content_block_delta', 'content_block_stop'],
      'message_delta',
      'message_stop',
    ])
    expect(frames[1]?.data).toMatchObject({ index: 0, content_block: { type: 'thinking' } })
    expect(frames[9]?.data).toMatchObject({
      index: 2,
      content_block: { type: 'tool_use', id: 'call_1', name: 'look', input: {} },
    })
    expect(frames[10]?.data).toMatchObject({ delta: { type: 'input_json_delta', partial_json: '{"at":"sky"}' } })
    expect(frames[0]?.data).toMatchObject({ message: { usage: { input_tokens: 3, cache_read_input_tokens: 7 } } })
    expect(frames.at(-2)?.data).toMatchObject({ delta: { stop_reason: 'tool_use' }, usage: { output_tokens: 4 } })
  })

  it('OpenAI responses: items added, filled and done, all numbered', async () => {
    const kept: unknown[] = []
    const head = {
      keep: (...response: unknown[]) => {
        kept.push(response)
        return Promise.resolve()
      },
      body: { input: 'x' },
      ask: { tenant: 'public', messages: [{ role: 'user', content: 'x' }], tools: [], toolChoice: 'auto', logprobs: 0 },
      tools: new ResponseTools([]),
      created: 1,
    } as const
    const frames = await written(new ResponseStream(head))
    expect(frames.map(({ event }) => event?.replace('response.', ''))).toEqual([
      ...['created', 'in_progress'],
      ...[
        'output_item.added',
        'content_part.added',
        'reasoning_text.delta',
        'reasoning_text.delta',
        'reasoning_text.done',
        'content_part.done',
        'output_item.done',
      ],
      ...[
        'output_item.added',
        'content_part.added',
        'output_text.delta',
        'output_text.delta',
        'output_text.done',
        'content_part.done',
        'output_item.done',
      ],
      ...['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done'],
      'completed',
    ])
    const data = frames.map(
      (frame) => frame.data as { sequence_number: number; type: string; response?: { id: string; output: { type: string }[] } },
    )
    expect(data.map(({ sequence_number: number }) => number)).toEqual(data.map((_, index) => index))
    expect(data.map(({ type }) => type)).toEqual(frames.map(({ event }) => event))
    expect(data.at(-1)?.response).toMatchObject({
      id: expect.stringMatching(/^resp_th1_2x/) as string,
      status: 'completed',
      usage: { input_tokens: 10, input_tokens_details: { cached_tokens: 7 } },
    })
    expect(data.at(-1)?.response?.output.map(({ type }) => type)).toEqual(['reasoning', 'message', 'function_call'])
    expect(kept).toEqual([[data.at(-1)?.response?.id, data.at(-1)?.response]])
  })
})

describe('the pace of a stream', () => {
  it("is the client's: writes wait while it does not read, and continue when it does", async () => {
    const frames = 400
    let written = 0
    const server = createServer((_request, response) => {
      const writer = new EventWriter(response, () => ({}))
      const go = async () => {
        for (; written < frames; written++) await writer.write([{ data: 'x'.repeat(65_536) }])
        await writer.end()
      }
      void go()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    const answer = await new Promise<IncomingMessage>((resolve) => get({ port, host: '127.0.0.1' }, resolve))
    let stalled = -1
    await expect
      .poll(
        () => {
          const same = written === stalled
          stalled = written
          return same
        },
        { interval: 200 },
      )
      .toBe(true)
    // 25 MiB do not fit into the buffers of two sockets.
    expect(stalled).toBeLessThan(frames)
    let bytes = 0
    for await (const chunk of answer) bytes += (chunk as Buffer).length
    expect(written).toBe(frames)
    expect(bytes).toBe(frames * (65_536 + 'data: \n\n'.length))
    server.close()
  })

  it('ends when the client is gone', async () => {
    let done: (value: string) => void = () => undefined
    const outcome = new Promise<string>((resolve) => (done = resolve))
    const server = createServer((_request, response) => {
      const writer = new EventWriter(response, () => ({}))
      const go = async () => {
        while (!response.destroyed) await writer.write([{ data: 'x'.repeat(65_536) }])
        await writer.end()
        done('ended')
      }
      void go()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    const answer = await new Promise<IncomingMessage>((resolve) => get({ port, host: '127.0.0.1' }, resolve))
    answer.destroy()
    expect(await outcome).toBe('ended')
    server.close()
  })
})
