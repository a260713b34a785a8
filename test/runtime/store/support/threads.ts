/** Makes threads from seeds for the tests of stores, with everything that may be hard to store. */
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { fragmentId, searchId } from '../../../../src/runtime/core/ids.js'
import { Random } from '../../../../src/runtime/core/random.js'
import { span } from '../../../../src/runtime/core/span.js'
import type { LedgerEntry } from '../../../../src/runtime/kv/ledger.js'
import type {
  StoredMessage,
  ThreadCard,
  ThreadEdits,
  ThreadEvent,
  ThreadHead,
  ThreadRecord,
  ThreadStore,
  ThreadUpdate,
} from '../../../../src/runtime/store/port.js'

const TEXTS = [
  '',
  'Hello',
  'null',
  'a\u0000b',
  'half \ud83d of a pair',
  '😀 é\n"quoted" \\ \u2028',
  '__proto__',
  "'; DROP TABLE threads; --",
]

/** Returns a message of any role, with any of its fields. */
export function someMessage(seed: number): ChatMessage {
  const random = new Random(seed, 3)
  const text = () => TEXTS[random.below(TEXTS.length)]! + 'x'.repeat(random.below(40))
  switch (random.below(4)) {
    case 0:
      return { role: 'system', content: text() }
    case 1:
      return { role: 'user', content: text() }
    case 2:
      return { role: 'tool', content: text(), toolCallId: text(), name: text() }
    default: {
      const args = JSON.parse(`{ "__proto__": { "x": 1 }, "2": [1.5, null, "\\ud83d"], "1": ${random.below(9)} }`) as Record<
        string,
        unknown
      >
      const tokens = Int32Array.from({ length: random.below(5) }, () => random.word() | 0)
      return {
        role: 'assistant',
        content: text(),
        ...(random.below(2) === 0 ? {} : { reasoning: text() }),
        ...(random.below(2) === 0 ? {} : { toolCalls: [{ id: text(), name: text(), arguments: args }] }),
        ...(random.below(4) === 0 ? {} : { sampled: { text: text(), tokens } }),
      }
    }
  }
}

export function someStored(seed: number): StoredMessage {
  const seen = (['same', 'nothing', someMessage(seed + 1)] as const)[seed % 3]!
  return { message: someMessage(seed), seen }
}

export function someEdits(seed: number): ThreadEdits {
  const text = TEXTS[seed % TEXTS.length]!
  const fragment = (index: number) => ({ id: fragmentId(`f0000${index}`), message: index, span: span(index, index + 3) })
  return {
    fragments: [
      { ...fragment(0), state: { kind: 'open' } },
      { ...fragment(1), state: { kind: 'folded' }, contract: 'splice' },
      { ...fragment(2), state: { kind: 'summarised', summary: text, focus: `for ${text}` } },
    ],
    searches: [{ id: searchId(`s000${(seed % 90) + 10}`), message: 1, span: span(0, 2) }],
    ids: 4 + seed,
  }
}

/** Files of earlier versions have none. */
const someOmissions: NonNullable<ThreadEdits['omissions']> = [
  { id: fragmentId('f00009'), message: 1, omits: { part: 'inputs', calls: ['call_1'] } },
  { id: fragmentId('f0000a'), message: 2, omits: { part: 'message' }, contract: 'splice' },
]

/** Returns a ledger entry with `messages` messages. */
export function someEntry(step: number, messages = 2): LedgerEntry {
  return {
    step,
    kind: 'answer',
    contract: 'exact',
    fallback: step % 2 === 0 ? null : 'because "so"',
    recomputeReason: step % 2 === 0 ? '4 tokens: because' : null,
    messages: Array.from({ length: messages }, (_, index) => ({
      ...{ index, role: 'user', shown: 100 + index, reused: 90, recomputed: 4, fresh: 6 + index, approximate: 0 },
    })),
    ...{ shown: 205, reused: 180, recomputed: 8, fresh: 17, approximate: 0, positions: 205, side: 1, submitted: 26, pending: 1 },
    sources: { own: 180, parked: 0, shared: 0 },
    tiers: { host: 0, disk: 0 },
    ...{ parked: 3, evicted: 0, moved: 0 },
    milliseconds: { cache: 0.25, prefill: 12.5, decode: 7.75 },
    predicted: step % 3 === 0 ? null : 12.25,
  }
}

export function someHead(seed: number, tenant = 'public'): ThreadHead {
  return {
    tenant,
    id: `thread_${seed.toString(16).padStart(32, '0')}`,
    model: 'builtin',
    created: 1_700_000_000_000 + seed,
    used: 1_700_000_100_000 + seed,
    parent: seed % 2 === 0 ? null : `thread_${'a'.repeat(32)}`,
    contract: seed % 2 === 0 ? null : 'splice',
    tools: [{ name: 'get_weather', description: 'Tells "it".', parameters: { type: 'object', properties: {} } }],
    held: seed % 3 === 0 ? [] : [someMessage(4 * seed)],
  }
}

export const someEvent = (seed: number): ThreadEvent => ({
  kind: 'policy',
  at: 1_700_000_000_000 + seed,
  after: seed,
  folded: [fragmentId('f00001')],
  saves: 100 + seed,
  reason: TEXTS[seed % TEXTS.length]!,
})

export const someCard = (seed: number): ThreadCard => ({
  chain: Uint8Array.from({ length: 16 * (seed % 4) }, (_, at) => seed + at),
  title: TEXTS[seed % TEXTS.length]!,
  messages: 3,
  fragments: { open: 1, folded: seed, summarised: 0 },
  last: seed % 2 === 0 ? null : { shown: 100, reused: seed },
})

/** Returns an update; the bits of `seed` choose its parts. */
export function someUpdate(seed: number, of: { readonly tenant: string; readonly id: string }): ThreadUpdate {
  const has = (bit: number) => ((seed >>> bit) & 1) === 1
  const small = seed % 97
  return {
    ...(has(8) ? { head: { ...someHead(small), ...of } } : {}),
    ...(has(9) ? { messages: [someStored(small), someStored(small + 7)] } : {}),
    ...(has(10) ? { edits: { ...someEdits(small), ...(has(13) ? { omissions: someOmissions } : {}) } } : {}),
    ...(has(11) ? { ledger: [someEntry(small)] } : {}),
    ...(has(12) ? { events: [someEvent(small), someEvent(small + 1)] } : {}),
    ...(has(14) && has(15) ? { eventsFrom: small % 4 } : {}),
    card: someCard(small),
  }
}

/** Returns a thread without events, which version 1 of the file could also store. */
export const someThread = (seed: number, tenant?: string): ThreadRecord => ({
  ...someHead(seed, tenant),
  messages: [someStored(seed), someStored(seed + 1), someStored(seed + 2)],
  edits: someEdits(seed),
  ledger: [someEntry(0), someEntry(1)],
  events: [],
})

export const byId = <T extends { readonly id: string; readonly tenant: string }>(threads: readonly T[]) =>
  [...threads].sort((a, b) => (a.id + a.tenant < b.id + b.tenant ? -1 : 1))

/** Reads a thread as the server does. */
export const readIn = (store: ThreadStore, tenant: string, id: string): Promise<ThreadRecord | null> =>
  store.reading?.(() => store.read(tenant, id)) ?? Promise.resolve(store.read(tenant, id))

/** Returns all threads of a store; each must have a card. */
export async function allIn(store: ThreadStore): Promise<readonly ThreadRecord[]> {
  const listed = await store.index(() => {
    throw new Error('A thread has no card.')
  })
  const all: ThreadRecord[] = []
  for (const { tenant, id } of listed) all.push((await readIn(store, tenant, id))!)
  return all
}
