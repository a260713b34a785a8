/** Owns how threads are written as rows: JSON for what has parts, a blob for sampled tokens. */
import { endianness } from 'node:os'
import type { ChatMessage } from '../chat/message.js'
import { invariant } from '../core/errors.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { StoredMessage, ThreadCard, ThreadEdits, ThreadEvent, ThreadHead } from './port.js'
import { rowKind } from './row-kind.js'

/** Half a surrogate pair cannot be written to SQLite; JSON escapes it. */
const json = (value: unknown): string => JSON.stringify(value)
const parsed = (text: unknown): unknown => JSON.parse(text as string)

export const headRows = rowKind<ThreadHead>({
  table: 'threads',
  columns: {
    ...{ tenant: 'text', id: 'text', model: 'text', created: 'integer', used: 'integer' },
    ...{ parent: 'text', contract: 'text', tools: 'text', held: 'text' },
  },
  write: ({ tenant, id, model, created, used, parent, contract, tools, held }) => [
    tenant,
    id,
    model,
    created,
    used,
    parent,
    contract,
    json(tools),
    json(held.map(plain)),
  ],
  read: ({ tenant, id, model, created, used, parent, contract, tools, held }) =>
    ({
      ...{ tenant, id, model, created, used, parent, contract, tools: parsed(tools) },
      held: (parsed(held) as PlainMessage[]).map(unplain),
    }) as ThreadHead,
})

export const editRows = rowKind<ThreadEdits>({
  table: 'edits',
  columns: { fragments: 'text', searches: 'text', ids: 'integer' },
  write: ({ fragments, searches, ids }) => [json(fragments), json(searches), ids],
  read: ({ fragments, searches, ids }) => ({ fragments: parsed(fragments), searches: parsed(searches), ids }) as ThreadEdits,
})

export const messageRows = rowKind<StoredMessage>({
  table: 'messages',
  columns: { message: 'text', tokens: 'blob', seen: 'text' },
  write: ({ message: { sampled, ...message }, seen }) => [
    json(sampled === undefined ? message : { ...message, sampled: sampled.text }),
    // libsql reads an empty blob as NULL.
    sampled === undefined || sampled.tokens.length === 0 ? null : bytesOf(sampled.tokens),
    json(typeof seen === 'string' ? seen : plain(seen)),
  ],
  read: ({ message: text, tokens, seen: known }) => {
    const { sampled, ...message } = parsed(text) as Omit<ChatMessage, 'sampled'> & { readonly sampled?: string }
    const seen = parsed(known) as 'same' | 'nothing' | PlainMessage
    return {
      message:
        sampled === undefined
          ? message
          : { ...message, sampled: { text: sampled, tokens: tokensOf(tokens as Uint8Array | null) } },
      seen: typeof seen === 'string' ? seen : unplain(seen),
    }
  },
})

export const entryRows = rowKind<LedgerEntry>({
  table: 'entries',
  columns: { entry: 'text' },
  write: (entry) => [json(entry)],
  read: ({ entry }) => parsed(entry) as LedgerEntry,
})

export const eventRows = rowKind<ThreadEvent>({
  table: 'events',
  columns: { event: 'text' },
  write: (event) => [json(event)],
  read: ({ event }) => parsed(event) as ThreadEvent,
})

export const cardRows = rowKind<ThreadCard>({
  table: 'cards',
  columns: { chain: 'blob', card: 'text' },
  write: ({ chain, ...card }) => [chain.length === 0 ? null : chain, json(card)],
  read: ({ chain, card }) => ({
    chain: (chain as Uint8Array | null) ?? new Uint8Array(),
    ...(parsed(card) as Omit<ThreadCard, 'chain'>),
  }),
})

/** The rows of `PART_TABLES`. */
export const PARTS = { messages: messageRows, entries: entryRows, events: eventRows } as const

/** A message within JSON. */
type PlainMessage = Omit<ChatMessage, 'sampled'> & {
  readonly sampled?: { readonly text: string; readonly tokens: readonly number[] }
}

const plain = ({ sampled, ...message }: ChatMessage): PlainMessage =>
  sampled === undefined ? message : { ...message, sampled: { text: sampled.text, tokens: [...sampled.tokens] } }
const unplain = ({ sampled, ...message }: PlainMessage): ChatMessage =>
  sampled === undefined ? message : { ...message, sampled: { text: sampled.text, tokens: Int32Array.from(sampled.tokens) } }

const bytesOf = ({ buffer, byteOffset, byteLength }: Int32Array): Uint8Array => {
  invariant(endianness() === 'LE', 'the store is written on machines that put the low byte first')
  return new Uint8Array(buffer, byteOffset, byteLength)
}
const tokensOf = (bytes: Uint8Array | null): Int32Array => new Int32Array(new Uint8Array(bytes ?? []).buffer)
