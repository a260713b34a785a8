/** Threads as rows: JSON for structured fields, a blob for sampled tokens. Reading verifies that a thread is complete and as written. */
import { endianness } from 'node:os'
import { crc32 } from 'node:zlib'
import type { ChatMessage } from '../chat/message.js'
import type { Fragment, Omission } from '../context/fragment.js'
import { invariant, KvfoldError } from '../core/errors.js'
import { atOnce, type Steps } from '../core/turns.js'
import { readJson, writeJson } from '../core/written-json.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { movedEdits } from './port.js'
import type { StoredMessage, ThreadCard, ThreadEdits, ThreadEvent, ThreadHead, ThreadRecord } from './port.js'
import { rowKind, type RowKind, type StoredRow, type StoredValue } from './row-kind.js'
import type { StoreFile } from './store-file.js'

/** JSON escapes lone surrogates, which SQLite cannot store. */
const json = (value: unknown): string => writeJson(value)
const parsed = (text: unknown): unknown => readJson(text as string)

export const headRows = rowKind<ThreadHead>({
  table: 'threads',
  columns: {
    ...{ tenant: 'text', id: 'text', model: 'text', created: 'integer', used: 'integer' },
    ...{ parent: 'text', contract: 'text', tools: 'text', held: 'text' },
  },
  // The salt is a last element in the list `held`, because tables of earlier versions have no column for it.
  write: ({ tenant, salt, id, model, created, used, parent, contract, tools, held }) => [
    tenant,
    id,
    model,
    created,
    used,
    parent,
    contract,
    json(tools),
    json([...held.map(plain), ...(salt === undefined ? [] : [{ salt }])]),
  ],
  read: ({ tenant, id, model, created, used, parent, contract, tools, held }) => {
    const all = parsed(held) as readonly (PlainMessage | Required<Pick<ThreadHead, 'salt'>>)[]
    const messages = all.filter((each): each is PlainMessage => !('salt' in each))
    return {
      ...{ tenant, id, model, created, used, parent, contract, tools: parsed(tools), held: messages.map(unplain) },
      ...all.find((each) => 'salt' in each),
    } as ThreadHead
  },
})

export const editRows = rowKind<ThreadEdits>({
  table: 'edits',
  columns: { fragments: 'text', searches: 'text', ids: 'integer' },
  // Omissions are further elements in the list `fragments`, because tables of earlier versions have no column for them.
  write: ({ fragments, searches, ids, omissions = [] }) => [json([...fragments, ...omissions]), json(searches), ids],
  read: ({ fragments, searches, ids }) => {
    const all = parsed(fragments) as readonly (Fragment | Omission)[]
    const omissions = all.filter((each) => 'omits' in each)
    return {
      ...{ fragments: all.filter((each) => !('omits' in each)), searches: parsed(searches), ids },
      ...(omissions.length === 0 ? {} : { omissions }),
    } as ThreadEdits
  },
})

/** A message as stored: the sampled tokens are in a column of their own. */
type StoredText = Omit<ChatMessage, 'sampled'> & {
  readonly sampled?: string
  /** The generation prompt that the answer was sampled after, if not the template's own. */
  readonly sampledAfter?: string
}

/** Like `json`, but a generator that yields to the event loop after each tool call. */
function* messageJson(message: Pick<ChatMessage, 'toolCalls'>): Steps<string> {
  const { toolCalls } = message
  if (toolCalls === undefined) return json(message)
  const calls: string[] = []
  for (const call of toolCalls) {
    calls.push(json(call))
    yield
  }
  const fields = Object.entries(message).flatMap(([key, value]: [string, unknown]) => {
    if (value === undefined) return []
    return [`${JSON.stringify(key)}:${key === 'toolCalls' ? `[${calls.join(',')}]` : json(value)}`]
  })
  return `{${fields.join(',')}}`
}

export const messageRows = rowKind<StoredMessage>({
  table: 'messages',
  columns: { message: 'text', tokens: 'blob', seen: 'text' },
  *write({ message: { sampled, ...message }, seen }) {
    const shown = sampled === undefined ? message : { ...message, sampled: sampled.text, sampledAfter: sampled.prompt }
    return [
      yield* messageJson(shown),
      // An empty blob becomes NULL too: libsql would read it as NULL anyway.
      sampled === undefined || sampled.tokens.length === 0 ? null : bytesOf(sampled.tokens),
      json(typeof seen === 'string' ? seen : plain(seen)),
    ]
  },
  read: ({ message: text, tokens, seen: known }) => {
    const { sampled, sampledAfter: prompt, ...message } = parsed(text) as StoredText
    const seen = parsed(known) as 'same' | 'nothing' | PlainMessage
    return {
      message:
        sampled === undefined
          ? message
          : {
              ...message,
              sampled: {
                text: sampled,
                tokens: tokensOf(tokens as Uint8Array | null),
                ...(prompt === undefined ? {} : { prompt }),
              },
            },
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

/** The kind of row in each table of `PART_TABLES`. */
export const PARTS = { messages: messageRows, entries: entryRows, events: eventRows } as const

/** A message as plain JSON: sampled tokens are a list of numbers. */
type PlainMessage = Omit<ChatMessage, 'sampled'> & {
  readonly sampled?: { readonly text: string; readonly tokens: readonly number[] }
}

const plain = ({ sampled, ...message }: ChatMessage): PlainMessage =>
  sampled === undefined ? message : { ...message, sampled: { ...sampled, tokens: [...sampled.tokens] } }
const unplain = ({ sampled, ...message }: PlainMessage): ChatMessage =>
  sampled === undefined ? message : { ...message, sampled: { ...sampled, tokens: Int32Array.from(sampled.tokens) } }

const bytesOf = ({ buffer, byteOffset, byteLength }: Int32Array): Uint8Array => {
  invariant(endianness() === 'LE', 'a store can only be written on a machine that puts the low byte first')
  return new Uint8Array(buffer, byteOffset, byteLength)
}
const tokensOf = (bytes: Uint8Array | null): Int32Array => new Int32Array(new Uint8Array(bytes ?? []).buffer)

// The rows of one thread: writing them, and verifying on reading that none is missing.

export type PartRow<K extends PartTable> = (typeof PARTS)[K] extends RowKind<infer T> ? T : never

/** What is reported of a thread whose rows SQLite cannot read. */
export const UNREADABLE = 'its part of the file cannot be read'

/** Thrown while a damaged thread is read; `ThreadRows.read` catches it. */
class DamagedRows extends Error {}

type ReadThread = { readonly record: ThreadRecord } | { readonly damage: string }

/** Returns a thread's rows in a table, by index. @throws KvfoldError store/damaged, store/failed */
export type PartRows = (table: PartTable, thread: number) => Iterable<StoredRow>

/** Writes and reads the rows of threads. Call methods that write only within a transaction. */
export class ThreadRows {
  constructor(
    private readonly file: StoreFile,
    private readonly partRows: PartRows = (table, thread) => inBatches(file, table, thread),
  ) {}

  /** Appends rows to the thread's tables. Returns the thread's digest, new rows included. A generator that yields to the event loop. */
  *added(thread: number, digest: ThreadDigest, parts: { readonly [T in PartTable]: readonly PartRow<T>[] }): Steps<ThreadDigest> {
    const whole: Record<PartTable, DigestChain> = { messages: NO_ROWS, entries: NO_ROWS, events: NO_ROWS }
    for (const table of PART_TABLES) {
      const [before] = digest[table]
      const kind = PARTS[table] as RowKind<unknown>
      const sums: number[] = []
      for (const [index, part] of parts[table].entries())
        sums.push(yield* this.#inserting(table, kind, part, { thread, place: before + index }))
      whole[table] = chained(digest[table], sums)
    }
    return { ...digest, ...whole }
  }

  /** Deletes a table's rows of the thread from index `from` on. Returns the digest of the rows that are left. */
  cut(thread: number, table: PartTable, from: number): Partial<ThreadDigest> {
    this.file.run(`DELETE FROM ${table} WHERE thread = ? AND place >= ?`, thread, from)
    const left = this.file.rows(`SELECT sum FROM ${table} WHERE thread = ? ORDER BY place`, thread)
    const sums = left.map(({ sum }) => sum as number)
    return { [table]: chained(NO_ROWS, sums) }
  }

  insert<T>(table: string, kind: RowKind<T>, value: T, keys: Readonly<Record<string, number>>): number {
    return atOnce(this.#inserting(table, kind, value, keys))
  }

  *#inserting<T>(table: string, kind: RowKind<T>, value: T, keys: Readonly<Record<string, number>>): Steps<number> {
    const columns = [...Object.keys(keys), ...kind.columns]
    const marks = columns.map(() => '?').join(', ')
    const values = yield* kind.writeSteps(value, Object.values(keys))
    yield
    this.file.run(`INSERT INTO ${table} (${columns.join(', ')}) VALUES (${marks})`, ...Object.values(keys), ...values)
    return values.at(-1) as number
  }

  /** Overwrites the row whose column `key` equals `is`. Returns the new checksum. */
  replace<T>(table: string, kind: RowKind<T>, value: T, key: 'number' | 'thread', is: number): number {
    const sets = kind.columns.map((column) => `${column} = ?`).join(', ')
    const values = kind.write(value, [is])
    this.file.run(`UPDATE ${table} SET ${sets} WHERE ${key} = ?`, ...values, is satisfies StoredValue)
    return values.at(-1) as number
  }

  /** Returns the thread, or what is wrong when its rows do not match the digest. @throws KvfoldError store/failed */
  read(number: number, digest: ThreadDigest): ReadThread {
    return atOnce(this.readSteps(number, digest))
  }

  /** Like `read`, but a generator that yields to the event loop. The thread must not change until it is done. */
  *readSteps(number: number, digest: ThreadDigest): Steps<ReadThread> {
    try {
      const head = this.#single('threads', headRows, 'number', number, digest.head, 'its own row')
      const edits = this.#single('edits', editRows, 'thread', number, digest.edits, 'the row of its folds')
      const messages = yield* this.#parts('messages', number, digest)
      const ledger = yield* this.#parts('entries', number, digest)
      const events = yield* this.#parts('events', number, digest)
      return { record: { ...head, messages, edits, ledger, events } }
    } catch (error) {
      if (error instanceof DamagedRows) return { damage: error.message }
      // A file too long for a whole check may turn out to be damaged only here.
      if (error instanceof KvfoldError && error.code === 'store/damaged') return { damage: UNREADABLE }
      throw error
    }
  }

  /** Returns what can be read of a damaged thread: in each table, the rows before the first damaged one. */
  beginning(number: number, head: ThreadHead): ThreadRecord {
    const parts = <T extends PartTable>(table: T): readonly PartRow<T>[] => {
      const values: PartRow<T>[] = []
      const kind = PARTS[table] as unknown as RowKind<PartRow<T>>
      const next = (row: StoredRow) => (row['place'] === values.length ? kind.read(row, [number, values.length]) : null)
      asFarAsRead(() => {
        for (const row of this.partRows(table, number)) {
          const value = next(row)
          if (value === null) break
          values.push(value)
        }
      })
      return values
    }
    const messages = parts('messages')
    const placeOf = (message: number) => (message < messages.length ? message : undefined)
    const edits = asFarAsRead(() => {
      const [row] = this.file.rows(`SELECT ${editRows.selected} FROM edits WHERE thread = ?`, number)
      return row === undefined ? null : editRows.read(row, [number])
    })
    return {
      ...{ ...head, messages, ledger: parts('entries'), events: parts('events') },
      edits: movedEdits(edits ?? { fragments: [], searches: [], ids: 0 }, placeOf),
    }
  }

  #single<T extends ThreadHead | ThreadEdits>(
    ...[table, kind, key, is, sum, what]: [string, RowKind<T>, 'number' | 'thread', number, number, string]
  ): T {
    const [row] = this.file.rows(`SELECT ${kind.selected} FROM ${table} WHERE ${key} = ?`, is)
    if (row === undefined) throw new DamagedRows(`${what} is missing`)
    const value = kind.read(row, [is])
    if (value === null) throw new DamagedRows(`${what} does not match its checksum`)
    if (row['sum'] !== sum) throw new DamagedRows(`${what} is not the version written last`)
    return value
  }

  *#parts<T extends PartTable>(table: T, number: number, digest: ThreadDigest): Steps<readonly PartRow<T>[]> {
    const kind = PARTS[table] as unknown as RowKind<PartRow<T>>
    const values: PartRow<T>[] = []
    const sums: number[] = []
    for (const row of this.partRows(table, number)) {
      const index = values.length
      if (row['place'] !== index) throw new DamagedRows(`row ${index} of its ${table} is missing`)
      const value = yield* kind.readSteps(row, [number, index])
      if (value === null) throw new DamagedRows(`row ${index} of its ${table} does not match its checksum`)
      values.push(value)
      sums.push(row['sum'] as number)
      yield
    }
    const [wanted] = digest[table]
    if (values.length !== wanted) throw new DamagedRows(`it has ${values.length} of ${wanted} rows of its ${table}`)
    if (!isSame(chained(NO_ROWS, sums), digest[table])) throw new DamagedRows(`its ${table} do not match their checksum`)
    return values
  }
}

/** After a batch of at least this many bytes, the next batch has a single row. */
const LONG_BATCH = 128 * 1024
const BATCH = 64

/** Yields a thread's rows in order. Reads them in batches, so that no query blocks the event loop for long. */
function* inBatches(file: StoreFile, table: PartTable, thread: number): Generator<StoredRow> {
  const sql = `SELECT place, ${PARTS[table].selected} FROM ${table} WHERE thread = ? AND place > ? ORDER BY place LIMIT ?`
  for (let last = -1, limit = 1; ;) {
    const rows = file.rows(sql, thread, last, limit)
    yield* rows
    if (rows.length < limit) return
    last = rows.at(-1)!['place'] as number
    limit = bytesIn(rows) < LONG_BATCH ? Math.min(BATCH, 2 * limit) : 1
  }
}

const bytesIn = (rows: readonly StoredRow[]): number =>
  rows
    .flatMap((row) => Object.values(row))
    .reduce<number>((sum, value) => sum + (value instanceof ArrayBuffer ? value.byteLength : 0), 0)

/** Runs work that reads rows. Returns null if the file turns out to be unreadable; the caller keeps what was read until then. */
export function asFarAsRead<T>(work: () => T): T | null {
  try {
    return work()
  } catch (error) {
    if (!(error instanceof KvfoldError)) throw error
    return null
  }
}

// The digest of a thread. It detects missing and outdated rows, which a row's own checksum cannot.

/** The tables with many rows per thread. Rows are only appended, or cut off at the end. */
export const PART_TABLES = ['messages', 'entries', 'events'] as const
export type PartTable = (typeof PART_TABLES)[number]

/** The number of rows in a table, and one checksum over their checksums in order. */
export type DigestChain = readonly [rows: number, sum: number]

/** The digest of a thread after change number `revision`. It repeats name and model, for the case that the thread's own row is lost. */
export interface ThreadDigest
  extends Pick<ThreadHead, 'tenant' | 'id' | 'model' | 'created'>, Readonly<Record<PartTable, DigestChain>> {
  readonly revision: number
  /**
   * The checksum of the thread's row in `threads`. `edits` and `card`: of its rows in those tables; `card` is null until `index` has made
   * the card.
   */
  readonly head: number
  readonly edits: number
  readonly card: number | null
}

export const digestRows = rowKind<ThreadDigest>({
  table: 'digests',
  columns: { digest: 'text' },
  write: (digest) => [JSON.stringify(digest)],
  read: ({ digest }) => JSON.parse(digest as string) as ThreadDigest,
})

/** Returns a single checksum for the whole digest. */
export const digestSum = (digest: ThreadDigest, number: number): number => digestRows.write(digest, [number]).at(-1) as number

export const NO_ROWS: DigestChain = [0, 0]

/** Extends the digest of a table by more rows, given their checksums. */
export function chained([rows, sum]: DigestChain, sums: readonly number[]): DigestChain {
  const bytes = Buffer.alloc(4)
  const all = sums.reduce((before, each) => {
    bytes.writeUInt32LE(each)
    return crc32(bytes, before)
  }, sum)
  return [rows + sums.length, all]
}

export const isSame = (a: DigestChain, b: DigestChain): boolean => a[0] === b[0] && a[1] === b[1]
