/** The rows of one thread in PostgreSQL: the same values and checksums as in SQLite. */
import { listedHead, type ListedThread, type ThreadCard, type ThreadHead, type ThreadRecord } from '../../runtime/store/port.js'
import type { StoredRow, RowKind, StoredValue } from '../../runtime/store/row-kind.js'
import { cardRows, editRows, headRows, PARTS, PART_TABLES, type PartRow, type PartTable } from '../../runtime/store/rows.js'
import type { RunStatement } from './schema.js'

export const NAMED = 'tenant = $1 AND id = $2'

/** The most parameters of one statement. */
const MOST = 30_000

const OWN_ROW = 'its own row'
const NOT_AS_WRITTEN = 'does not match its checksum'
/** The damage report for a thread whose row in `threads` is damaged. */
export const DAMAGED_HEAD = `${OWN_ROW} ${NOT_AS_WRITTEN}`

/** Its message says which of a thread's rows are damaged; `PostgresStore` catches it. */
export class Damaged extends Error {}

type Parts = { readonly [T in PartTable]: readonly PartRow<T>[] }
type Places = Readonly<Record<PartTable, number>>

const NO_PLACES: Places = { messages: 0, entries: 0, events: 0 }

/** Writes the rows of threads, within a transaction. */
export class ThreadWriter {
  constructor(private readonly run: RunStatement) {}

  /** Writes a new thread and returns its number. */
  async create(thread: ThreadRecord, card: ThreadCard): Promise<number> {
    const [row] = await this.run("SELECT nextval(pg_get_serial_sequence('kvfold.threads', 'number')) AS number")
    const number = row?.['number'] as number
    const head = headRows.write(thread, [number])
    const columns = ['number', 'revision', 'changed', ...headRows.columns]
    const marks = ['$1', '1', 'pg_current_xact_id()', ...head.map((_, at) => `$${at + 2}`)]
    await this.run(`INSERT INTO kvfold.threads (${columns.join(', ')}) VALUES (${marks.join(', ')})`, [number, ...head])
    await this.insert('edits', ['thread', ...editRows.columns], [[number, ...editRows.write(thread.edits, [number])]])
    await this.addCard(number, card)
    const { messages, ledger: entries, events } = thread
    await this.add(number, NO_PLACES, { messages, entries, events })
    return number
  }

  addCard(thread: number, card: ThreadCard): Promise<void> {
    return this.insert('cards', ['thread', ...cardRows.columns], [[thread, ...cardRows.write(card, [thread])]])
  }

  /** Appends rows to a thread. `places`: for each table, the index of the first new row. */
  async add(thread: number, places: Places, parts: Parts): Promise<void> {
    for (const table of PART_TABLES) {
      const kind = PARTS[table] as RowKind<unknown>
      const rows = parts[table].map((part, index) => {
        const place = places[table] + index
        return [thread, place, ...kind.write(part, [thread, place])]
      })
      await this.insert(table, ['thread', 'place', ...kind.columns], rows)
    }
  }

  async replace<T>(table: string, kind: RowKind<T>, value: T, number: number): Promise<void> {
    const sets = kind.columns.map((column, at) => `${column} = $${at + 2}`).join(', ')
    const key = table === 'threads' ? 'number' : 'thread'
    await this.run(`UPDATE kvfold.${table} SET ${sets} WHERE ${key} = $1`, [number, ...kind.write(value, [number])])
  }

  async insert(table: string, columns: readonly string[], rows: readonly (readonly StoredValue[])[]): Promise<void> {
    const most = Math.floor(MOST / columns.length)
    for (let at = 0; at < rows.length; at += most) {
      const some = rows.slice(at, at + most)
      const marks = some.map((_, row) => `(${columns.map((_, column) => `$${row * columns.length + column + 1}`).join(', ')})`)
      await this.run(`INSERT INTO kvfold.${table} (${columns.join(', ')}) VALUES ${marks.join(', ')}`, some.flat())
    }
  }
}

/** Returns for each table the index behind the thread's last row. */
export async function lastPlaces(run: RunStatement, number: number): Promise<Places> {
  const next = PART_TABLES.map(
    (table) => `(SELECT coalesce(max(place), -1) + 1 FROM kvfold.${table} WHERE thread = $1) AS ${table}`,
  )
  const [row] = await run(`SELECT ${next.join(', ')}`, [number])
  return row as unknown as Places
}

/** Reads a thread; null if it does not exist. @throws Damaged */
export async function readThread(
  run: RunStatement,
  tenant: string,
  id: string,
): Promise<{ readonly number: number; readonly revision: number; readonly record: ThreadRecord } | null> {
  const [row] = await run(`SELECT number, revision, ${headRows.columns.join(', ')} FROM kvfold.threads WHERE ${NAMED}`, [
    tenant,
    id,
  ])
  if (row === undefined) return null
  const [number, revision] = [row['number'] as number, row['revision'] as number]
  const head = valueIn(headRows, row, [number], OWN_ROW)
  const [edited] = await run(`SELECT ${editRows.columns.join(', ')} FROM kvfold.edits WHERE thread = $1`, [number])
  const edits = valueIn(editRows, edited, [number], 'the row of its folds')
  const parts = async <T extends PartTable>(table: T): Promise<readonly PartRow<T>[]> => {
    const kind = PARTS[table] as unknown as RowKind<PartRow<T>>
    const rows = await run(`SELECT place, ${kind.columns.join(', ')} FROM kvfold.${table} WHERE thread = $1 ORDER BY place`, [
      number,
    ])
    return rows.map((each, at) => {
      if (each['place'] !== at) throw new Damaged(`row ${at} of its ${table} is missing`)
      return valueIn(kind, each, [number, at], `row ${at} of its ${table}`)
    })
  }
  const [messages, ledger, events] = [await parts('messages'), await parts('entries'), await parts('events')]
  return { number, revision, record: { ...head, messages, edits, ledger, events } }
}

/** A thread's row in `threads` and its card. `head` is null if the row is damaged, `card` if it is damaged or missing. */
export interface ListedRow extends Pick<ThreadHead, 'tenant' | 'id'> {
  readonly revision: number
  readonly head: Omit<ListedThread, 'card'> | null
  readonly card: ThreadCard | null
}

/** Returns the threads that were changed by the given transaction or a later one. */
export async function listedIn(run: RunStatement, since: bigint): Promise<readonly ListedRow[]> {
  const heads = headRows.columns.map((column) => `t.${column}`).join(', ')
  const rows = await run(
    `SELECT t.number, t.revision, ${heads}, c.chain, c.card, c.sum AS card_sum
     FROM kvfold.threads t LEFT JOIN kvfold.cards c ON c.thread = t.number WHERE t.changed >= $1::text::xid8 ORDER BY t.number`,
    [String(since)],
  )
  return rows.map((row): ListedRow => {
    const number = row['number'] as number
    const [tenant, id] = [row['tenant'] as string, row['id'] as string]
    const head = parsed(headRows, row, [number])
    const card = parsed(cardRows, { ...row, sum: row['card_sum'] }, [number])
    const revision = row['revision'] as number
    return { tenant, id, revision, head: head === null ? null : listedHead(head), card }
  })
}

function valueIn<T>(kind: RowKind<T>, row: StoredRow | undefined, keys: readonly number[], what: string): T {
  const value = row === undefined ? null : parsed(kind, row, keys)
  if (value === null) throw new Damaged(`${what} ${row === undefined ? 'is missing' : NOT_AS_WRITTEN}`)
  return value
}

/** Parses a row; null if its checksum is wrong. Byte values are copied, so the caller may keep them. */
export const parsed = <T>(kind: RowKind<T>, row: StoredRow, keys: readonly number[]): T | null =>
  kind.parse(
    kind.columns.map((column) => {
      const value = row[column] as StoredValue
      return value instanceof Uint8Array ? new Uint8Array(value) : value
    }),
    keys,
  )
