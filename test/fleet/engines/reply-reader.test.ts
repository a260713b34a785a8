/**
 * Tests how answers of remote engines are read, as their documents describe them: streams cut anywhere, calls in parts, every engine's
 * usage fields.
 */
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { EngineEvent } from '../../../src/runtime/engine/engine.js'
import { eventReader, ReplyReader, usageIn } from '../../../src/fleet/engines/reply-reader.js'

const encoder = new TextEncoder()

/** Returns the events of bytes that arrive in pieces which end at `cuts`. */
function parse(bytes: Uint8Array, cuts: readonly number[] = []): { readonly name: string; readonly data: string }[] {
  const eventsIn = eventReader()
  const places = [0, ...[...cuts].sort((a, b) => a - b), bytes.length]
  return places
    .slice(1)
    .flatMap((end, at) => eventsIn(bytes.subarray(places[at], end)))
    .map(({ event = 'message', data }) => ({ name: event, data }))
}

function read(name: string): { readonly reader: ReplyReader; readonly events: readonly EngineEvent[] } {
  const reader = new ReplyReader('the endpoint')
  const bytes = readFileSync(new URL(`../../golden/remote/${name}.sse`, import.meta.url))
  const events = parse(bytes)
    .filter(({ data }) => data !== '[DONE]')
    .flatMap(({ data }) => reader.push(JSON.parse(data)))
  return { reader, events }
}

describe('eventReader', () => {
  it('accepts every kind of line end, comments, names, and data in several lines', () => {
    const text =
      '\uFEFF: hello\r\ndata: one\r\n\r\nevent: ping\rdata:two\rdata\rid: 7\rretry: 5\r\rdata:  three\n\n\n\ndata: never ended\n'
    expect(parse(encoder.encode(text))).toEqual([
      { name: 'message', data: 'one' },
      { name: 'ping', data: 'two\n' },
      { name: 'message', data: ' three' },
    ])
  })

  it('reads the same events however the stream is cut', () => {
    const line = fc.oneof(
      fc.constantFrom('', '', ': note', 'event: x', 'data', 'data:', 'id: 1'),
      fc.string({ unit: 'grapheme', maxLength: 12 }).map((text) => `data: ${text.replace(/[\r\n]/g, '')}`),
    )
    const stream = fc
      .array(fc.tuple(line, fc.constantFrom('\n', '\r\n', '\r')), { maxLength: 20 })
      .map((lines) => lines.flat().join(''))
    fc.assert(
      fc.property(stream, fc.array(fc.nat(300), { maxLength: 12 }), (text, cuts) => {
        const bytes = encoder.encode(text)
        const inside = cuts.map((cut) => Math.min(cut, bytes.length))
        expect(parse(bytes, inside)).toEqual(parse(bytes))
        expect(parse(bytes, [...bytes.keys()])).toEqual(parse(bytes))
      }),
      { numRuns: 300 },
    )
  })

  it('refuses an event without end', () => {
    const eventsIn = eventReader()
    const piece = encoder.encode('x'.repeat(2 ** 20))
    eventsIn(encoder.encode('data: '))
    expect(() => {
      for (let count = 0; count < 20; count++) eventsIn(piece)
    }).toThrow(expect.objectContaining({ code: 'remote/bad-answer' }))
  })
})

describe('ReplyReader', () => {
  it("reads vLLM's stream: reasoning, two calls in parts, cached tokens", () => {
    const { reader, events } = read('vllm')
    expect(reader.reasoning).toBe('Two folds.')
    expect(reader.calls).toEqual([
      { id: 'chatcmpl-tool-a', name: 'fold_fragment', arguments: { fragment_id: 'f00001' } },
      { id: 'chatcmpl-tool-b', name: 'fold_fragment', arguments: { fragment_id: 'f00002' } },
    ])
    expect(reader.finish).toBe('tool-calls')
    expect(reader.usage).toEqual({ prompt: 512, cached: 480, generated: 48, milliseconds: null })
    expect(events.map(({ type }) => type).filter((type) => type !== 'tokens')).toEqual(['reasoning', 'reasoning', 'call', 'call'])
    // There is one event for every sampled chunk, so that their times can be reported.
    expect(events.filter(({ type }) => type === 'tokens')).toHaveLength(6)
  })

  it('reports unknown cached tokens for vLLM without --enable-prompt-tokens-details', () => {
    const { reader } = read('vllm-no-details')
    expect(reader.usage).toEqual({ prompt: 40, cached: null, generated: 5, milliseconds: null })
    expect(reader.content).toBe('Red is nine.')
  })

  it("reads SGLang's stream, whose chunks have null in every empty field", () => {
    const { reader } = read('sglang')
    expect(reader).toMatchObject({ content: 'Red is nine.', reasoning: 'Look it up.', finish: 'stop', calls: [] })
    expect(reader.usage).toMatchObject({ prompt: 300, cached: 256, generated: 9 })
  })

  it("reads DeepSeek's stream, with comments and its own name for cached tokens", () => {
    const { reader } = read('deepseek')
    expect(reader).toMatchObject({ content: 'Nine.', finish: 'length' })
    expect(reader.usage).toMatchObject({ prompt: 100, cached: 64, generated: 2 })
  })

  it('throws an error that comes within the stream', () => {
    expect(() => read('vllm-error')).toThrow(
      expect.objectContaining({ code: 'remote/failed', message: expect.stringContaining('EngineCore') as string }),
    )
  })

  it('reads which stop string ended an answer, if the engine says it', () => {
    const stopOf = (fields: object) => {
      const reader = new ReplyReader('the endpoint')
      reader.push({ choices: [{ index: 0, delta: { content: 'a' }, finish_reason: 'stop', ...fields }] })
      return reader.stop
    }
    expect(stopOf({ stop_reason: 'END' })).toBe('END')
    expect(stopOf({ matched_stop: 'END' })).toBe('END')
    // A token's number is not a stop string.
    for (const fields of [{}, { stop_reason: null }, { stop_reason: 128009 }, { matched_stop: 2 }])
      expect(stopOf(fields)).toBeNull()
  })

  it('joins parts of calls however an engine numbers them', () => {
    const part = (call: object, finish: string | null = null) => ({
      choices: [{ index: 0, delta: { tool_calls: [call] }, finish_reason: finish }],
    })
    const reader = new ReplyReader('here')
    reader.push(part({ id: 'a', function: { name: 'one', arguments: '{"x"' } }))
    reader.push(part({ function: { arguments: ': 1}' } }))
    reader.push(part({ id: 'b', function: { name: 'two', arguments: { y: 2 } } }))
    reader.push(part({ index: 5, function: { name: 'three', arguments: '' } }))
    reader.push(part({ index: 6, function: { name: 'four', arguments: '[1]' } }, 'stop'))
    expect(reader.calls).toEqual([
      { id: 'a', name: 'one', arguments: { x: 1 } },
      { id: 'b', name: 'two', arguments: { y: 2 } },
      { id: 'call_3', name: 'three', arguments: {} },
      { id: 'call_4', name: 'four', arguments: {}, malformed: '[1]' },
    ])
    expect(reader.finish).toBe('tool-calls')
  })

  it('keeps calls apart that all have the index 0, or that a whole answer gives without ids', () => {
    const parts = [
      { index: 0, id: 'a', function: { name: 'one', arguments: '{"x"' } },
      // Some engines send the name, or another id, with every part.
      { index: 0, id: 'a2', function: { name: 'one', arguments: ': 1}' } },
      { index: 0, id: 'b', function: { name: 'two', arguments: '{}' } },
    ]
    const streamed = new ReplyReader('here')
    for (const part of parts) streamed.push({ choices: [{ index: 0, delta: { tool_calls: [part] } }] })
    streamed.push({ choices: [{ index: 0, delta: {}, finish_reason: 'tool_calls' }] })
    expect(streamed.calls).toEqual([
      { id: 'a', name: 'one', arguments: { x: 1 } },
      { id: 'b', name: 'two', arguments: {} },
    ])
    const whole = new ReplyReader('here')
    const calls = ['one', 'two'].map((name) => ({ function: { name, arguments: '{}' } }))
    whole.push({ choices: [{ index: 0, message: { content: null, tool_calls: calls }, finish_reason: 'tool_calls' }] })
    expect(whole.calls.map(({ name }) => name)).toEqual(['one', 'two'])
  })

  it.each([
    ['length', { arguments: {}, malformed: '' }],
    ['tool_calls', { arguments: {} }],
  ])('distinguishes a call without arguments from one that was cut off: %s', (reason, said) => {
    const reader = new ReplyReader('the endpoint')
    const part = { index: 0, id: 'c', function: { name: 'a', arguments: '' } }
    reader.push({ choices: [{ index: 0, delta: { tool_calls: [part] } }] })
    reader.push({ choices: [{ index: 0, delta: {}, finish_reason: reason }] })
    expect(reader.calls).toEqual([{ id: 'c', name: 'a', ...said }])
  })

  it('accepts a whole answer as one chunk, and ignores choices other than the first', () => {
    const reader = new ReplyReader('here')
    const message = { role: 'assistant', content: 'Whole.', tool_calls: null }
    reader.push({
      choices: [
        { index: 1, message: { content: 'Other.' } },
        { index: 0, message, finish_reason: 'stop' },
      ],
    })
    expect(reader).toMatchObject({ content: 'Whole.', finish: 'stop' })
  })

  it('throws only a KvfoldError, whatever arrives', () => {
    const reader = () => new ReplyReader('here')
    const chunk = fc.oneof(
      fc.jsonValue(),
      fc.record({
        choices: fc.array(fc.record({ delta: fc.jsonValue(), finish_reason: fc.jsonValue(), logprobs: fc.jsonValue() })),
      }),
      fc.record({ usage: fc.jsonValue(), timings: fc.jsonValue(), prompt_progress: fc.jsonValue(), error: fc.jsonValue() }),
    )
    fc.assert(
      fc.property(fc.array(chunk, { maxLength: 5 }), (chunks) => {
        const one = reader()
        try {
          for (const each of chunks) one.push(each)
        } catch (error) {
          expect(error).toMatchObject({ name: 'KvfoldError', code: expect.stringMatching(/^(remote|context|model)\//) as string })
        }
      }),
      { numRuns: 500 },
    )
  })
})

describe('usageIn', () => {
  it("prefers the engine's usage, then llama-server's timings, and never has more cached tokens than prompt tokens", () => {
    expect(usageIn({})).toBeNull()
    expect(usageIn({ usage: null })).toBeNull()
    expect(usageIn({ timings: { cache_n: 90, prompt_n: 10, prompt_ms: 5, predicted_n: 3, predicted_ms: 7 } })).toEqual({
      prompt: 100,
      cached: 90,
      generated: 3,
      milliseconds: { prefill: 5, decode: 7 },
    })
    expect(
      usageIn({ usage: { prompt_tokens: 10, completion_tokens: 1, prompt_tokens_details: { cached_tokens: 12 } } })?.cached,
    ).toBe(10)
    expect(usageIn({ usage: { prompt_tokens: 10, completion_tokens: 1, cached_tokens: 4 } })?.cached).toBe(4)
    expect(usageIn({ usage: { prompt_tokens: 10, completion_tokens: 1, tokens_cached: 4 } })?.cached).toBeNull()
  })
})
