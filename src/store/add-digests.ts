/** Owns a step of the store's migration: checksums that cover where a row stands, and a digest for every thread. */
import { chained, digestRows, NO_ROWS, PART_TABLES, type Chain, type PartTable } from './digest.js'
import type { Row, RowKind, Value } from './row-kind.js'
import { cardRows, editRows, headRows, PARTS } from './rows.js'
import type { StoreFile } from './store-file.js'

/** Of a row that was damaged before: no checksum is negative, so that it stays damaged. */
const WRONG = -1

/** A row that was damaged, or a place without a row, is as much after this as before, and the digest says that it should be there. */
export function addDigests(file: StoreFile): void {
  const single = (table: string, kind: RowKind<unknown>, key: string): ReadonlyMap<unknown, number> =>
    new Map(
      file.rows(`SELECT ${key} AS key, ${kind.selected} FROM ${table}`).map((row) => {
        const sum = resummed(kind, row, [row['key'] as number])
        file.run(`UPDATE ${table} SET sum = ? WHERE ${key} = ?`, sum, row['key'] as Value)
        return [row['key'], sum]
      }),
    )
  const heads = single('threads', headRows, 'number')
  const edits = single('edits', editRows, 'thread')
  const cards = single('cards', cardRows, 'thread')
  const chains = Object.fromEntries(PART_TABLES.map((table) => [table, chainsOf(file, table)])) as Record<
    PartTable,
    ReadonlyMap<unknown, Chain>
  >
  for (const row of file.rows(`SELECT number, ${headRows.selected} FROM threads`)) {
    const number = row['number'] as number
    const head = headRows.read(row, [number])
    // Whose it was cannot be said: it has no digest, and is reported by its number.
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

function resummed<T>(kind: RowKind<T>, row: Row, keys: readonly number[]): number {
  // The checksum of before knew nothing of keys.
  const value = kind.read(row, null)
  return value === null ? WRONG : (kind.write(value, keys).at(-1) as number)
}

function chainsOf(file: StoreFile, table: PartTable): ReadonlyMap<unknown, Chain> {
  const chains = new Map<unknown, Chain>()
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
