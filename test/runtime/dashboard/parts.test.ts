/** Tests what the dashboard computes before it draws anything. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { between } from '../../../src/runtime/context/stretch.js'
import { clientView, dividedBetween, type Pending } from '../../../src/runtime/dashboard/chat-request.js'
import {
  argumentsOf,
  figuresInWords,
  figuresOf,
  hiddenBy,
  isFoldable,
  markersOf,
  openFence,
  piecesOf,
  timelineOf,
  whereIs,
} from '../../../src/runtime/dashboard/pieces.js'
import { linkTo, linkToMessage, placeIn } from '../../../src/runtime/dashboard/places.js'
import { filesIn, textFile, withFiles } from '../../../src/runtime/dashboard/text-files.js'
import {
  eventsIn,
  type Fragment,
  type LedgerEntry,
  metricIn,
  rates,
  type ServerSample,
  type ThreadDetail,
  type ThreadMessage,
} from '../../../src/runtime/dashboard/wire.js'
import type { FragmentId } from '../../../src/runtime/core/ids.js'
import { readJson } from '../../../src/runtime/core/written-json.js'

const message = (
  index: number,
  role: 'system' | 'user' | 'assistant',
  content: string,
  fragments: Fragment[] = [],
): ThreadMessage => ({
  index,
  message: { role, content },
  visible: true,
  shown: content,
  fragments,
  omitted: [],
  cost: null,
})
const hidden = (of: ThreadMessage): ThreadMessage => ({
  ...of,
  omitted: [{ id: 'f1' as FragmentId, message: of.index, omits: { part: 'message' } }],
})
const fragment = (id: string, start: number, end: number, kind: 'open' | 'folded' = 'open'): Fragment => ({
  id: id as FragmentId,
  message: 0,
  span: { start, end },
  state: { kind },
})

describe('markers', () => {
  it('identify the selected text for the server, or are null', () => {
    const letters = fc.string({ unit: fc.constantFrom('a', 'b'), maxLength: 12 })
    const role = fc.constantFrom('system' as const, 'user' as const, 'assistant' as const)
    const texts = fc.array(fc.tuple(role, letters, fc.boolean()), { minLength: 1, maxLength: 3 })
    fc.assert(
      fc.property(texts, fc.nat(), fc.nat(), fc.nat(), (all, which, from, to) => {
        const messages = all.map(([of, text, isHidden], index) =>
          isHidden ? hidden(message(index, of, text)) : message(index, of, text),
        )
        const omitted = new Set(all.flatMap(([, , isHidden], index) => (isHidden ? [index] : [])))
        const index = which % all.length
        const size = all[index]![1].length
        const [start, end] = [from % (size + 1), to % (size + 1)].sort((a, b) => a - b) as [number, number]
        const markers = markersOf(messages, index, start, end)
        if (markers === null) return
        const { startMarker, endMarker } = markers
        const found = between(
          messages.map((one) => one.message),
          { startMarker, endMarker, scope: 'all' },
          omitted,
        )
        expect(found).toEqual({ ok: true, stretches: [{ message: index, span: { start, end } }] })
      }),
      { numRuns: 2000 },
    )
  })

  it('exist for a text that occurs once', () => {
    const messages = [message(0, 'user', 'one two'), message(1, 'assistant', 'one two'), message(2, 'user', 'three')]
    expect(markersOf(messages, 2, 0, 5)).toEqual({ startMarker: 'th', endMarker: 'ree', role: 'all' })
    expect(markersOf(messages, 1, 0, 7)).toBeNull()
    expect(markersOf(messages, 0, 3, 4)).toBeNull()
  })

  it('pass over a message that is hidden as a whole, as the server does', () => {
    const messages = [hidden(message(0, 'user', 'one two')), message(1, 'assistant', 'three'), message(2, 'user', 'one two')]
    expect(markersOf(messages, 2, 0, 7)).toEqual({ startMarker: 'one', endMarker: ' two', role: 'all' })
    expect(markersOf(messages, 0, 0, 7)).toBeNull()
    expect(messages.map(isFoldable)).toEqual([false, true, true])
  })
})

it('a request that never began hides nothing of the thread, also while the thread runs for another client', () => {
  const thread = { messages: [0, 1, 2, 3, 4, 5].map((index) => message(index, 'user', 'Go on.')), running: true }
  const nothing = { thread: 't', completion: null, reasoning: '', notes: [], problem: null }
  const pending: Pending = { ...nothing, question: 'Another one?', before: 2, text: 'begun', state: 'failed', isBegun: false }
  expect(dividedBetween(thread, pending)).toMatchObject({ until: 6, rest: { question: 'Another one?', text: '' } })
  expect(dividedBetween(thread, { ...pending, state: 'running' })).toMatchObject({ until: 2 })
})

it('pieces cover the message once, in order', () => {
  const pieces = piecesOf(message(0, 'user', '0123456789', [fragment('f1', 0, 2), fragment('f2', 4, 7), fragment('f3', 7, 10)]))
  const spans = pieces.map((piece) => (piece.kind === 'text' ? [piece.start, piece.end] : piece.fragment.id))
  expect(spans).toEqual(['f1', [2, 4], 'f2', 'f3'])
})

it("says where a folded fragment's cells are", () => {
  const cells = { tokens: 9, live: 0, parked: 6, host: 0, disk: 1, gone: 2 }
  expect(whereIs({ cells })).toEqual(['6 tokens parked in the cache', '1 token on disk', '2 tokens to be computed again'])
  expect(whereIs({})).toEqual([])
})

it('a piece that begins within a block of code is code', () => {
  expect(openFence('Look:\n\n```ts\nconst a = 1\n')).toBe('```ts')
  expect(openFence('Look:\n\n```ts\nconst a = 1\n```\nSo.')).toBeNull()
  expect(openFence('~~~~\n```\n~~~')).toBe('~~~~')
  expect(openFence('````\n``` \n`````')).toBeNull()
  expect(openFence('- a list\n  ```js\n  a()')).toBe('```js')
  expect(openFence('```not `a` fence\nwords')).toBeNull()
})

describe('text files', () => {
  const bytes = (...values: number[]) => Uint8Array.from(values).buffer
  const encoded = (text: string) => new TextEncoder().encode(text).buffer

  it('are found in the message as they were attached, before its words', () => {
    const names = fc.string({ unit: fc.constantFrom('a', '.', ' ', '`', ':'), minLength: 1, maxLength: 8 })
    const texts = fc.string({ unit: fc.constantFrom('a', '`', '```', '\n', 'File b:\n'), maxLength: 12 })
    fc.assert(
      fc.property(fc.array(fc.tuple(names, texts), { maxLength: 3 }), (given) => {
        const files = given.map(([name, text]) => textFile(name, encoded(text)))
        const message = withFiles('Which of them?', files)
        expect(filesIn(message).map(({ name, text }) => ({ name, text }))).toEqual(files)
        expect(message.endsWith('Which of them?')).toBe(true)
      }),
      { numRuns: 500 },
    )
    expect(withFiles('', [])).toBe('')
  })

  it('have the line ends and the fence that a model expects', () => {
    const file = textFile('notes.md', encoded('\uFEFFone\r\n```\r\n'))
    expect(file).toEqual({ name: 'notes.md', text: 'one\n```' })
    expect(withFiles('', [file])).toBe('File notes.md:\n````md\none\n```\n````')
  })

  it('are refused when they are no texts, or too long', () => {
    expect(() => textFile('a.png', bytes(0x89, 0x50, 0xff))).toThrow('a.png is not a text in UTF-8.')
    expect(() => textFile('a.bin', bytes(0x41, 0))).toThrow('a.bin is not a text in UTF-8.')
    expect(() => textFile('log', new ArrayBuffer(2 ** 22 + 1))).toThrow('log has 4.00 MiB; a file may have 4.00 MiB.')
  })
})

it('an address names a thread, its tab and a message', () => {
  for (const tab of ['chat', 'steps'] as const)
    expect(placeIn(linkTo('t-1', tab))).toEqual({ kind: 'thread', id: 't-1', tab, message: null })
  expect(placeIn(linkToMessage('t-1', 12))).toEqual({ kind: 'thread', id: 't-1', tab: 'chat', message: 12 })
  expect(placeIn('#/threads/t-1/chat/x')).toEqual({ kind: 'new' })
})

describe('the timeline', () => {
  const entry = (index: number, kind: LedgerEntry['kind'] = 'answer') =>
    ({ kind, messages: [{ index }] }) as unknown as LedgerEntry
  const thread = (messages: ThreadMessage[], ledger: LedgerEntry[], events: ThreadDetail['events'] = []) =>
    ({ messages, count: messages.length, ledger, events, running: false }) as unknown as ThreadDetail

  it('puts edits where they happened', () => {
    const asked = message(0, 'user', 'text')
    const answered: ThreadMessage = {
      ...message(1, 'assistant', ''),
      message: {
        role: 'assistant',
        content: '',
        toolCalls: [
          { id: 'c1', name: 'fold_fragment', arguments: { fragment_id: 'f1' } },
          { id: 'c2', name: 'search_context', arguments: { query: 'x' } },
        ],
      },
    }
    const edit = { kind: 'edit', after: 2, saves: 4 }
    const events = [
      { ...edit, what: 'folded', folded: ['f2'] },
      { ...edit, what: 'folded', folded: ['f3'] },
      { ...edit, what: 'restored', folded: ['f3'] },
      { kind: 'policy', after: 2, folded: ['f4'], saves: 9, reason: 'old' },
    ] as unknown as ThreadDetail['events']
    const told = timelineOf(thread([asked, answered], [entry(1), entry(0, 'summary'), entry(1)], events))
    const words = told.map((item) => {
      if (item.kind === 'step') return item.entry.kind
      if (item.kind === 'call') return item.on
      return item.kind === 'edit' ? `${item.fragments.join()} ${item.saves}` : item.event.reason
    })
    expect(words).toEqual(['answer', 'f1', 'summary', 'f2,f3 8', 'f3 4', 'old', 'answer', 'f1'])
  })

  it('says of hidden fragments who hid them last', () => {
    const called = (name: string, id: string) => ({ id: 'c', name, arguments: { fragment_id: id } })
    const hidden = (id: string, at: number) => fragment(id, at, at + 1, 'folded')
    const answered: ThreadMessage = {
      ...message(1, 'assistant', 'text', [hidden('f1', 0), hidden('f2', 1), hidden('f3', 2), fragment('f4', 3, 4)]),
      message: {
        role: 'assistant',
        content: 'text',
        toolCalls: [called('fold_fragment', 'f1'), called('fold_fragment', 'f2'), called('restore_fragment', 'f3')],
      },
    }
    const events = [
      { kind: 'edit', what: 'folded', after: 0, folded: ['f3'], saves: 1 },
      { kind: 'edit', what: 'folded', after: 0, folded: ['f4'], saves: 1 },
      { kind: 'policy', after: 1, folded: ['f2'], saves: 9, reason: 'the context is past its threshold' },
    ] as unknown as ThreadDetail['events']
    expect([...hiddenBy(thread([message(0, 'user', 'Q'), answered], [entry(1)], events))]).toEqual([
      ['f3', 'by a person or a program'],
      ['f1', 'by the model (fold_fragment)'],
      ['f2', 'by the server: the context is past its threshold'],
    ])
  })
})

it('the figures of an answer count what its own step decoded', () => {
  const answered = (index: number, generated?: number): ThreadMessage => ({
    ...message(index, 'assistant', 'text'),
    ...(generated === undefined ? {} : { generated }),
  })
  const entry = (index: number, fresh: number, more: object = {}) =>
    ({
      ...{ kind: 'answer', messages: [{ index, fresh }], pending: 1, submitted: 30, plain: 670 },
      ...{ milliseconds: { cache: 0, prefill: 5, decode: 500 }, ...more },
    }) as unknown as LedgerEntry
  const messages = [message(0, 'user', 'Q'), answered(1, 21), message(2, 'user', 'Q'), answered(3, 101), answered(4)]
  const ledger = [entry(1, 23), entry(3, 4, { plain: 12 }), entry(4, 9, { plain: undefined }), entry(1, 23, { kind: 'summary' })]
  const figures = figuresOf({ messages, ledger })
  expect([...figures]).toEqual([
    [1, { rate: 40, saved: 640 }],
    // It continued a cut answer: four of its tokens are new.
    [3, { rate: 8, saved: -18 }],
    [4, { rate: null, saved: null }],
  ])
  expect([...figures.values()].map(figuresInWords)).toEqual([
    ['40 tokens/s', '640 tokens not computed'],
    ['8.0 tokens/s', '18 tokens computed more than a prefix cache'],
    [],
  ])
})

it('the view of a client has the messages it knows', () => {
  const call = { id: 'c1', name: 'add', arguments: { a: 1 } }
  const seen = clientView({
    messages: [
      { message: { role: 'user', content: 'Q' }, seen: 'same' },
      { message: { role: 'assistant', content: 'inside' }, seen: 'nothing' },
      { message: { role: 'assistant', content: 'end' }, seen: { role: 'assistant', content: 'inside end', toolCalls: [call] } },
      { message: { role: 'tool', content: '2', toolCallId: 'c1', name: 'add' }, seen: 'same' },
    ],
  })
  expect(seen).toEqual([
    { role: 'user', content: 'Q' },
    {
      role: 'assistant',
      content: 'inside end',
      tool_calls: [{ id: 'c1', type: 'function', function: { name: 'add', arguments: '{"a":1}' } }],
    },
    { role: 'tool', content: '2', tool_call_id: 'c1', name: 'add' },
  ])
})

it('arguments keep their digits and order, and repeated keys', () => {
  const json = '{"id":9007199254740993,"7":{"b":1.0}}'
  const call = { id: 'c1', name: 'add', arguments: readJson(json) as Record<string, unknown> }
  const message = { role: 'assistant', content: '', toolCalls: [call] } as const
  expect(clientView({ messages: [{ message, seen: 'same' }] })).toMatchObject([
    { tool_calls: [{ function: { arguments: json } }] },
  ])
  expect(argumentsOf(call, 2)).toBe('{\n  "id": 9007199254740993,\n  "7": {\n    "b": 1.0\n  }\n}')
  expect(argumentsOf({ ...call, text: '{"a":1,"a":2}' })).toBe('{"a":1,"a":2}')
  expect(argumentsOf({ ...call, malformed: 'no JSON' })).toBe('no JSON')
})

it('server-sent events are read whole, however they are cut', async () => {
  const text = ': ping\n\nevent: message\ndata: {"a":"ä"}\n\ndata: one\ndata: two\r\n\r\ndata: lost'
  const bytes = new TextEncoder().encode(text)
  for (const size of [1, 2, 3, 7, bytes.length]) {
    const chunks = Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.slice(at * size, (at + 1) * size))
    const events = []
    for await (const event of eventsIn(ReadableStream.from(chunks))) events.push(event)
    expect(events, `${size}`).toEqual([
      { event: 'message', data: '{"a":"ä"}' },
      { event: undefined, data: 'one\ntwo' },
    ])
  }
})

it('metrics are summed by name, and rates start again with their counter', () => {
  const text = '# HELP a_total x\na_total{model="b {c}"} 3\na_total{model="d"} 4.5\na_total_more 9\nplain 7\n'
  expect(metricIn(text, 'a_total')).toBe(7.5)
  expect(metricIn(text, 'plain')).toBe(7)
  expect(metricIn(text, 'none')).toBeNull()
  const samples = [
    { at: 0, submitted: 10 },
    { at: 2000, submitted: 30 },
    { at: 3000, submitted: 5 },
    { at: 4000, submitted: null },
  ] as ServerSample[]
  expect(rates(samples, ({ submitted }) => submitted)).toEqual([10, 0, 0])
})
