/** Tests the replay of agents' traces: what is read, what is sent, and how the computed tokens are accounted for. */
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { InfinitePrefixCache } from '../../bench/runtime/traces/prefix-cache.js'
import { replay } from '../../bench/runtime/traces/replay.js'
import { type Reading, scriptOf, type ScriptRequest } from '../../bench/runtime/traces/script.js'
import { readTraces, type TraceSession } from '../../bench/runtime/traces/trace.js'
import { inOrder } from '../../bench/runtime/traces/users.js'

const WORDS = Array.from({ length: 500 }, (_, index) => ` w${index}`)
const range = (first: number, last: number) => Array.from({ length: last - first + 1 }, (_, index) => first + index)
const asked = (at: number, blocks: readonly number[], out = 64, calls = true) => ({ at, out, blocks, calls })
/** Ten blocks of tools and system prompt. */
const session = (...requests: TraceSession['requests']): TraceSession => ({
  id: 'trace_7',
  block: 64,
  tools: 448,
  system: 192,
  requests,
})
const script = (traced: TraceSession, reading: Reading = 'other') => [
  ...scriptOf(traced, { words: WORDS, scale: 1 / 16, reading }),
]
const text = ({ messages }: ScriptRequest) => messages.map(({ content }) => content).join('')
const commonWords = (one: string, other: string) => {
  const [a, b] = [one.split(' '), other.split(' ')]
  const at = a.findIndex((word, index) => word !== b[index])
  return (at < 0 ? a.length : at) - 1
}

describe('a trace', () => {
  let folder: string
  beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'kvfold-trace-'))))
  afterEach(() => {
    rmSync(folder, { recursive: true })
  })
  const sessions = async (path: string) => {
    const read: TraceSession[] = []
    for await (const each of readTraces(path)) read.push(each)
    return read
  }
  const inner = { t: 1, in: 64, out: 3, hash_ids: [9], stop: '' }
  const published = {
    ...{ id: 'trace_0001', block_size: 64, tool_tokens: 64, system_tokens: 0 },
    requests: [
      { t: 0, in: 128, out: 5, hash_ids: [1, 2], stop: 'tool_use', type: 'n' },
      { t: 10, type: 'subagent', agent_id: 'agent_001', requests: [inner] },
      { t: 10.5, in: 192, out: 5, hash_ids: [1, 2, 3], stop: 'end_turn', type: 's' },
    ],
  }
  const expected = {
    ...{ id: 'trace_0001', block: 64, tools: 64, system: 0 },
    requests: [asked(0, [1, 2], 5), asked(10.5, [1, 2, 3], 5, false), asked(11, [9], 3, false)],
  }

  it('is read as it is published, a session a file', async () => {
    writeFileSync(join(folder, 'trace_0001.json'), JSON.stringify(published))
    writeFileSync(join(folder, 'rates.txt'), 'no trace')
    expect(await sessions(folder)).toEqual([expected])
  })

  it('is read from compressed lines with ranges of blocks', async () => {
    const sub = [{ t: 1, out: 3, blocks: [[9, 9]], stop: '' }]
    const line = {
      ...{ id: 'trace_0001', block: 64, tools: 64, system: 0 },
      requests: [
        { t: 0, out: 5, blocks: [[1, 2]], stop: 'tool_use' },
        { t: 10, out: null, blocks: [], stop: null, sub },
        {
          t: 10.5,
          out: 5,
          blocks: [
            [1, 2],
            [3, 3],
          ],
          stop: 'end_turn',
        },
      ],
    }
    writeFileSync(join(folder, 'lines.jsonl.gz'), gzipSync(`${JSON.stringify(line)}\n`))
    expect(await sessions(join(folder, 'lines.jsonl.gz'))).toEqual([expected])
  })

  it('that is damaged is an error with its place', async () => {
    writeFileSync(join(folder, 'lines.jsonl'), '\n{"id": 1}\n')
    await expect(sessions(join(folder, 'lines.jsonl'))).rejects.toThrow(/lines\.jsonl, line 2 is no session of a trace/)
  })
})

describe('a script', () => {
  it('says the tools and the system prompt first, then what is new, and the answer back', () => {
    const [first, second] = script(session(asked(0, range(1, 20)), asked(5, range(1, 30))))
    expect(first!.messages.map(({ role, content }) => [role, content.split(' ').length - 1])).toEqual([
      ['system', 40],
      ['user', 40],
    ])
    expect(second!.messages.map(({ role }) => role)).toEqual(['system', 'user', 'assistant', 'user'])
    expect(second!.messages.slice(0, 2)).toEqual(first!.messages)
    expect(second!.messages[2]!.content).toBe(WORDS[0]!.repeat(first!.answer))
    expect([first!.cause, second!.cause, second!.pause]).toEqual(['cold', 'append', 5])
  })

  it('has equal text exactly as far as two prompts have equal blocks', () => {
    const requests = [
      range(1, 40),
      [...range(1, 25), ...range(50, 70)],
      [...range(1, 10), ...range(80, 120)],
      [...range(1, 25), ...range(130, 135)],
    ]
    for (const reading of ['same', 'other'] as const) {
      const texts = script(session(...requests.map((blocks, at) => asked(at, blocks))), reading).map(text)
      expect(commonWords(texts[0]!, texts[1]!)).toBe(100)
      expect(commonWords(texts[0]!, texts[2]!)).toBe(40)
      expect(commonWords(texts[1]!, texts[3]!)).toBe(100)
    }
  })

  it('reads what is behind a change as the old text or as new text', () => {
    const changed = session(asked(0, range(1, 40)), asked(9, [...range(1, 15), ...range(50, 74)]))
    const tails = (reading: Reading) =>
      script(changed, reading).map((request) =>
        text(request)
          .split(' ')
          .slice(1 + 16 * 4),
      )
    const [before, same] = tails('same')
    expect(same).toEqual(before)
    const [, other] = tails('other')
    expect(other).toHaveLength(before!.length)
    expect(other).not.toEqual(before)
  })

  it('moves the old text up where something was dropped', () => {
    const [before, after] = script(session(asked(0, range(1, 40)), asked(9, [...range(1, 15), ...range(50, 64)])), 'same').map(
      text,
    )
    expect(after!.split(' ').slice(-14 * 4)).toEqual(before!.split(' ').slice(-14 * 4))
  })

  it.each([
    ['append', [...range(1, 39), ...range(50, 60)]],
    ['edit', [...range(1, 25), ...range(50, 70)]],
    ['rewritten', [...range(1, 11), ...range(50, 80)]],
    ['compaction', [...range(1, 10), ...range(50, 55)]],
    ['cold', range(50, 80)],
    ['cold', [1, ...range(50, 80)]],
  ])('names a change: %s', (cause, blocks) => {
    expect(script(session(asked(0, range(1, 40)), asked(1, blocks)))[1]!.cause).toBe(cause)
  })

  it('ends every prompt with a user message, and no message is empty', () => {
    const requests = [
      range(1, 20),
      range(1, 21),
      [...range(1, 20), ...range(30, 45)],
      [...range(1, 12), ...range(60, 61)],
      [70],
      [70, 71],
    ]
    for (const { messages } of script(session(...requests.map((blocks, at) => asked(at, blocks))))) {
      expect(messages.at(-1)!.role).toBe('user')
      expect(messages.every(({ content }) => content !== '')).toBe(true)
    }
  })
})

it('several users take turns by their times, each with one session after another', () => {
  const sessions = ['a', 'b', 'c'].map((id) => ({ ...session(asked(0, [1, 2]), asked(100, [1, 2, 3, 4])), id }))
  const order = [...inOrder(sessions, 2, (each) => scriptOf(each, { words: WORDS, scale: 1, reading: 'same' }))]
  expect(order.map(({ session: id, at }) => `${id}${at}`)).toEqual(['a0', 'b0', 'a100', 'c0', 'b100', 'c100'])
})

it('a prefix cache that never forgets computes what no earlier prompt begins with', () => {
  const cache = new InfinitePrefixCache(100)
  expect([[1, 2, 3], [1, 2, 3], [1, 2, 4, 5], [1, 2, 3, 6], [2]].map((prompt) => cache.add(prompt))).toEqual([3, 1, 2, 1, 1])
})

describe('a replay', () => {
  let server: Server
  let url: string
  const answers: { readonly prompt: number; readonly cached: number }[] = []
  beforeEach(async () => {
    server = createServer((_, response) => {
      const { prompt, cached } = answers.shift()!
      const usage = { prompt_tokens: prompt, prompt_tokens_details: { cached_tokens: cached } }
      for (const chunk of [{ choices: [{ delta: { content: ' w0' } }] }, { choices: [], usage }])
        response.write(`data: ${JSON.stringify(chunk)}\n\n`)
      response.end('data: [DONE]\n\n')
    }).listen(0, '127.0.0.1')
    await new Promise((resolve) => server.once('listening', resolve))
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  afterEach(() => server.close())

  const requests = script(session(asked(0, range(1, 20)), asked(5, range(1, 30)), asked(900, range(1, 40))))
  const planned = requests.map((request) => ({ request, prompt: 100, ideal: 20 }))
  const run = () => replay({ url, model: 'm', bias: {} }, planned, () => undefined)

  it('accounts for every computed token once', async () => {
    answers.push({ prompt: 100, cached: 80 }, { prompt: 100, cached: 70 }, { prompt: 100, cached: 0 })
    const { computed, byCause, approximate } = await run()
    expect(computed).toBe(150)
    expect(byCause).toEqual({ append: 40, cold: 20, rewritten: 0, edit: 0, compaction: 0, evicted: 10, returned: 80 })
    expect(approximate).toBeNull()
  })

  it('stops when the server reads another prompt than the one that was planned', async () => {
    answers.push({ prompt: 99, cached: 0 })
    await expect(run()).rejects.toThrow('trace_7 at 0 s: the server counts 99 tokens of a prompt of 100.')
  })
})
