/** Defines the store's tables, version by version: step n turns a file of version n into version n + 1. Steps are never changed. */
import type { Migration, StoreFile } from './store-file.js'
import { type StoredRow, type RowKind, type StoredValue } from './row-kind.js'
import {
  cardRows,
  type DigestChain,
  chained,
  digestRows,
  editRows,
  headRows,
  NO_ROWS,
  PART_TABLES,
  PARTS,
  type PartTable,
} from './rows.js'

export const migrations: readonly Migration[] = [
  `
  CREATE TABLE threads (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    created INTEGER NOT NULL, -- Unix milliseconds
    used INTEGER NOT NULL,
    parent TEXT, -- id of the thread that it was forked from, which may be gone
    contract TEXT,
    tools TEXT NOT NULL, -- JSON
    held TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL, -- CRC-32 of the row, in all tables
    UNIQUE (tenant, id)
  ) STRICT;
  CREATE INDEX threads_by_use ON threads (used);

  CREATE TABLE messages (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL, -- from 0, without gaps
    message TEXT NOT NULL, -- JSON, without the sampled tokens
    tokens BLOB, -- the sampled tokens, 32-bit integers, low byte first
    seen TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;

  CREATE TABLE edits (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    fragments TEXT NOT NULL, -- JSON
    searches TEXT NOT NULL, -- JSON
    ids INTEGER NOT NULL,
    sum INTEGER NOT NULL
  ) STRICT;

  CREATE TABLE entries (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL,
    entry TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;
  `,
  `
  CREATE TABLE cards (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    chain BLOB, -- 16 bytes for each message that clients know
    card TEXT NOT NULL, -- JSON, without the chain
    sum INTEGER NOT NULL
  ) STRICT; -- a thread without one gets it when the store is opened (ThreadStore.index)

  CREATE TABLE events (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL,
    event TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;
  `,
  `
  CREATE TABLE digests (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    digest TEXT NOT NULL, -- JSON: rows and checksums of the thread, see digest.ts
    sum INTEGER NOT NULL -- from here on, in all tables, CRC-32 of the table's name, the row's keys and the row
  ) STRICT;
  `,
  addDigests,
]

// The migration to checksums that cover a row's place, and to a digest for every thread.

/** The checksum of a row that was already damaged. Real checksums are never negative, so the row stays damaged. */
const WRONG = -1

/** Adds digests. Damaged rows and gaps stay as noticeable as before, because the digest counts them. */
export function addDigests(file: StoreFile): void {
  const single = (table: string, kind: RowKind<unknown>, key: string): ReadonlyMap<unknown, number> =>
    new Map(
      file.rows(`SELECT ${key} AS key, ${kind.selected} FROM ${table}`).map((row) => {
        const sum = resummed(kind, row, [row['key'] as number])
        file.run(`UPDATE ${table} SET sum = ? WHERE ${key} = ?`, sum, row['key'] as StoredValue)
        return [row['key'], sum]
      }),
    )
  const heads = single('threads', headRows, 'number')
  const edits = single('edits', editRows, 'thread')
  const cards = single('cards', cardRows, 'thread')
  const chains = Object.fromEntries(PART_TABLES.map((table) => [table, chainsOf(file, table)])) as Record<
    PartTable,
    ReadonlyMap<unknown, DigestChain>
  >
  for (const row of file.rows(`SELECT number, ${headRows.selected} FROM threads`)) {
    const number = row['number'] as number
    const head = headRows.read(row, [number])
    // The thread's tenant is unknown. So the thread gets no digest, and its number is reported.
    if (head === null) continue
    const digest = {
      ...{ tenant: head.tenant, id: head.id, model: head.model, created: head.created, revision: 1 },
      ...{ head: heads.get(number)!, edits: edits.get(number) ?? WRONG, card: cards.get(number) ?? null },
      messages: chains.messages.get(number) ?? NO_ROWS,
      entries: chains.entries.get(number) ?? NO_ROWS,
      events: chains.events.get(number) ?? NO_ROWS,
    }
    file.run('INSERT INTO digests (thread, digest, sum) VALUES (?, ?, ?)', number, ...digestRows.write(digest, [number]))
  }
}

function resummed<T>(kind: RowKind<T>, row: StoredRow, keys: readonly number[]): number {
  // The row's checksum is of an earlier version, which did not cover keys.
  const value = kind.read(row, null)
  return value === null ? WRONG : (kind.write(value, keys).at(-1) as number)
}

function chainsOf(file: StoreFile, table: PartTable): ReadonlyMap<unknown, DigestChain> {
  const chains = new Map<unknown, DigestChain>()
  const kind = PARTS[table] as RowKind<unknown>
  for (const { thread } of file.rows(`SELECT DISTINCT thread FROM ${table}`))
    for (const row of file.rows(
      `SELECT place, ${kind.selected} FROM ${table} WHERE thread = ? ORDER BY place`,
      thread as number,
    )) {
      const place = row['place'] as number
      const sum = resummed(kind, row, [thread as number, place])
      file.run(`UPDATE ${table} SET sum = ? WHERE thread = ? AND place = ?`, sum, thread as number, place)
      const before = chains.get(thread) ?? NO_ROWS
      const missing = Array.from({ length: Math.max(0, Math.min(place, before[0] + 1000) - before[0]) }, () => 0)
      chains.set(thread, chained(chained(before, missing), [Math.max(0, sum)]))
    }
  return chains
}
