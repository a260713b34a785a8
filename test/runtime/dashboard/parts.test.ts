/** Tests what the dashboard computes before it draws anything. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { between } from '../../../src/runtime/context/stretch.js'
import { clientView } from '../../../src/runtime/dashboard/chat-request.js'
import { argumentsOf, markersOf, piecesOf, timelineOf, whereIs } from '../../../src/runtime/dashboard/pieces.js'
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
    const texts = fc.array(fc.tuple(role, letters), { minLength: 1, maxLength: 3 })
    fc.assert(
      fc.property(texts, fc.nat(), fc.nat(), fc.nat(), (all, which, from, to) => {
        const messages = all.map(([of, text], index) => message(index, of, text))
        const index = which % all.length
        const size = all[index]![1].length
        const [start, end] = [from % (size + 1), to % (size + 1)].sort((a, b) => a - b) as [number, number]
        const markers = markersOf(messages, index, start, end)
        if (markers === null) return
        const { startMarker, endMarker } = markers
        const found = between(
          messages.map((one) => one.message),
          { startMarker, endMarker, scope: 'all' },
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
