/** Owns what can be read of the threads in a store's file, whatever is broken: which are what was acknowledged, and what is left of the others. */
import { type RowKind, type StoredValue } from './row-kind.js'
import {
  chained,
  digestRows,
  editRows,
  headRows,
  isSame,
  NO_ROWS,
  PART_TABLES,
  PARTS,
  type PartTable,
  type ThreadDigest,
} from './rows.js'
import { keyOf, type Listed, type Manifest } from './manifest.js'
import { PageReader, type RowPlace } from './page-reader.js'
import type { StoredMessage, ThreadEdits, ThreadEvent, ThreadHead, ThreadRecord } from './port.js'
import type { LedgerEntry } from '../kv/ledger.js'

/** A thread as it was found. */
export interface Salvaged {
  readonly tenant: string
  readonly id: string
  /** Empty: it is what was acknowledged. */
  readonly damage: readonly string[]
  /** All of it, or what is whole from the beginning on; null when nothing is left, or it was left out by a repair before. */
  readonly record: (() => ThreadRecord) | null
  /** Rows that are whole from the first on, and those that there were; null: not known. */
  readonly rows: Readonly<Record<PartTable, { readonly found: number; readonly of: number | null }>>
  /** As it was acknowledged last. */
  readonly listed: Listed | null
  /** Left out by a repair, as it said then. */
  readonly dropped: boolean
}

/** A row that is what was written. `sum` stands for what is in it. */
interface FoundRow<T> {
  readonly at: RowPlace
  readonly sum: number
  readonly read: () => T
}

/** All versions of the rows of a thread; of rows that were never changed, usually one. */
interface Pieces {
  readonly heads: FoundRow<ThreadHead>[]
  readonly edits: FoundRow<ThreadEdits>[]
  readonly digests: FoundRow<ThreadDigest>[]
  readonly parts: Readonly<Record<PartTable, Map<number, FoundRow<unknown>[]>>>
  /** Written before there were digests. */
  old: boolean
}

/** Ids that a thread may have made whose edits are lost: more than it has, so that none is made twice. */
const MANY_IDS = 2 ** 20
const NOTHING_FOUND = {
  messages: { found: 0, of: null },
  entries: { found: 0, of: null },
  events: { found: 0, of: null },
} as const

/** Needs the file for itself while it is used. Rows are believed for their checksums alone. */
export class Salvage {
  readonly #reader: PageReader

  constructor(
    path: string,
    private readonly manifest: Manifest,
  ) {
    this.#reader = new PageReader(path)
  }

  /** Those that there are and those that should be there. */
  threads(): readonly Salvaged[] {
    const first = this.#found(false, () => true)
    const isWhole = [...first.values()].every(({ damage }) => damage.length === 0)
    const missing = [...this.manifest.listed].filter(
      ({ tenant, id, dropped }) => dropped === undefined && !first.has(keyOf(tenant, id)),
    )
    // What is missing may stand in an earlier version of a page; what is whole needs none.
    if (!isWhole || missing.length > 0) {
      const wanted = new Set(missing.map(({ tenant, id }) => keyOf(tenant, id)))
      for (const [key, { damage }] of first) if (damage.length > 0) wanted.add(key)
      for (const [key, again] of this.#found(true, (name) => wanted.has(name))) {
        const before = first.get(key)
        if (before === undefined || better(again, before)) first.set(key, again)
      }
    }
    for (const listed of this.manifest.listed) {
      const { tenant, id, revision, dropped } = listed
      if (first.has(keyOf(tenant, id))) continue
      const damage = [dropped ?? `after ${revision} changes there is nothing left of it`]
      const lost = { tenant, id, damage, record: null, rows: NOTHING_FOUND, listed, dropped: dropped !== undefined }
      first.set(keyOf(tenant, id), lost)
    }
    return [...first.values()]
  }

  close(): void {
    this.#reader.close()
  }

  #found(all: boolean, isWanted: (key: string) => boolean): Map<string, Salvaged> {
    const found = new Map<string, Salvaged>()
    for (const [number, pieces] of this.#pieces(all)) {
      const { tenant, id } = nameOf(number, pieces)
      const key = keyOf(tenant, id)
      if (!isWanted(key)) continue
      const salvaged = judged(number, pieces, this.manifest.of(tenant, id) ?? null)
      const other = found.get(key)
      if (other === undefined || better(salvaged, other)) found.set(key, salvaged)
    }
    return found
  }

  #pieces(all: boolean): ReadonlyMap<number, Pieces> {
    const threads = new Map<number, Pieces>()
    const of = (thread: number): Pieces => {
      const known = threads.get(thread)
      if (known !== undefined) return known
      const parts = { messages: new Map(), entries: new Map(), events: new Map() }
      const pieces: Pieces = { heads: [], edits: [], digests: [], parts, old: false }
      threads.set(thread, pieces)
      return pieces
    }
    for (const at of this.#reader.rows(all)) {
      const raw = this.#reader.read(at)
      if (raw === null) continue
      const { rowid, values } = raw
      switch (values.length) {
        case 11:
          this.#enter(headRows, at, [rowid], 1, values, (found) => of(rowid).heads.push(found), of)
          break
        case 5:
          this.#enter(editRows, at, [rowid], 1, values, (found) => of(rowid).edits.push(found), of)
          break
        case 3:
          this.#enter(digestRows, at, [rowid], 1, values, (found) => of(rowid).digests.push(found), of)
          break
        default:
          this.#enterPart(at, values, of)
      }
    }
    return threads
  }

  #enterPart(at: RowPlace, values: readonly StoredValue[], of: (thread: number) => Pieces): void {
    const [thread, place] = values
    if (typeof thread !== 'number' || typeof place !== 'number' || thread < 0 || place < 0) return
    for (const table of PART_TABLES) {
      const kind = PARTS[table] as RowKind<unknown>
      if (values.length !== 2 + kind.columns.length) continue
      const enter = (found: FoundRow<unknown>) => {
        const places = of(thread).parts[table]
        const others = places.get(place)
        if (others === undefined) places.set(place, [found])
        else others.push(found)
      }
      if (this.#enter(kind, at, [thread, place], 2, values, enter, of)) return
    }
  }

  /** False: the row is none of this kind that is whole. */
  #enter<T>(
    kind: RowKind<T>,
    at: RowPlace,
    keys: readonly number[],
    skip: number,
    values: readonly StoredValue[],
    enter: (found: FoundRow<T>) => void,
    of: (thread: number) => Pieces,
  ): boolean {
    const own = values.slice(skip)
    const isOurs = kind.parse(own, keys) !== null
    // Entries and events of before had the same columns, and checksums that did not tell them apart.
    if (!isOurs && (kind.parse(own, null) === null || isEvent(own) !== (kind === PARTS.events))) return false
    if (!isOurs) of(keys[0]!).old = true
    const again = (): T => {
      const read = this.#reader.read(at)
      const value = read === null ? null : kind.parse(read.values.slice(skip), isOurs ? keys : null)
      if (value === null) throw new Error('the file was changed while it was read')
      return value
    }
    enter({ at, sum: own.at(-1) as number, read: again })
    return true
  }
}

const isEvent = ([event, sum, ...rest]: readonly StoredValue[]): boolean =>
  rest.length === 0 && sum !== undefined && typeof event === 'string' && event.startsWith('{"kind":"policy"')

function nameOf(number: number, { heads, digests }: Pieces): Pick<ThreadHead, 'tenant' | 'id'> {
  return heads.at(-1)?.read() ?? digests.at(-1)?.read() ?? { tenant: 'somebody', id: `number ${number}` }
}

const better = (a: Salvaged, b: Salvaged): boolean => {
  const weight = ({ damage, record, rows }: Salvaged) => [
    Number(damage.length === 0),
    Number(record !== null),
    rows.messages.found,
  ]
  const [first, second] = [weight(a), weight(b)]
  const at = first.findIndex((each, index) => each !== second[index])
  return at >= 0 && first[at]! > second[at]!
}

function judged(number: number, pieces: Pieces, listed: Listed | null): Salvaged {
  const damage: string[] = []
  const { tenant, id } = nameOf(number, pieces)
  const digest = newest(pieces.digests)
  const head = chosen(pieces.heads, digest?.value.head, damage, 'its own row')
  const edits = chosen(pieces.edits, digest?.value.edits, damage, 'what was folded in it')
  if (digest === null && !pieces.old) damage.push('the row with its checksums is missing or not what was written')
  const part = (table: PartTable) => wholeOf(table, pieces.parts[table], digest?.value ?? null, damage)
  const [messages, entries, events] = [part('messages'), part('entries'), part('events')]
  if (digest !== null && listed !== null) {
    if (digest.value.revision < listed.revision)
      damage.push(`it is as it was after ${digest.value.revision} of ${listed.revision} changes`)
    else if (digest.value.revision === listed.revision && digest.sum !== listed.sum)
      damage.push('it is not what was acknowledged')
  }
  const rows = { messages, entries, events }
  const record = (): ThreadRecord => {
    const isCut = messages.of !== null && messages.found < messages.of
    const begun = head?.read() ?? headOf(digest!.value, listed)
    const { fragments, searches, ids } = edits?.read() ?? { fragments: [], searches: [], ids: MANY_IDS }
    const isThere = ({ message }: { readonly message: number }) => message < messages.found
    return {
      ...begun,
      held: isCut ? [] : begun.held,
      messages: messages.read() as StoredMessage[],
      edits: { fragments: fragments.filter(isThere), searches: searches.filter(isThere), ids },
      ledger: entries.read() as LedgerEntry[],
      events: events.read() as ThreadEvent[],
    }
  }
  const isNamed = head !== null || digest !== null
  return { tenant, id, damage, record: isNamed ? record : null, rows, listed, dropped: false }
}

function newest(digests: readonly FoundRow<ThreadDigest>[]): { readonly sum: number; readonly value: ThreadDigest } | null {
  const all = digests.map(({ sum, read }) => ({ sum, value: read() }))
  return all.reduce<(typeof all)[number] | null>(
    (best, each) => (best === null || each.value.revision > best.value.revision ? each : best),
    null,
  )
}

/** The version that the digest is of; without one, the first. */
function chosen<T>(found: readonly FoundRow<T>[], sum: number | undefined, damage: string[], what: string): FoundRow<T> | null {
  const exact = sum === undefined ? found[0] : found.find((each) => each.sum === sum)
  if (exact === undefined)
    damage.push(found.length === 0 ? `${what} is missing or not what was written` : `${what} is not what was written last`)
  return exact ?? found[0] ?? null
}

function wholeOf(
  table: PartTable,
  places: ReadonlyMap<number, readonly FoundRow<unknown>[]>,
  digest: ThreadDigest | null,
  damage: string[],
) {
  const last = [...places.keys()].reduce((a, b) => Math.max(a, b), -1)
  const of = digest?.[table][0] ?? null
  const rows: FoundRow<unknown>[] = []
  for (let place = 0; place < (of ?? last + 1); place++) {
    const [row] = places.get(place) ?? []
    if (row === undefined) break
    rows.push(row)
  }
  if (rows.length < (of ?? last + 1)) damage.push(`it has the first ${rows.length} of ${of ?? last + 1} rows of its ${table}`)
  else if (
    digest !== null &&
    !isSame(
      chained(
        NO_ROWS,
        rows.map(({ sum }) => sum),
      ),
      digest[table],
    )
  )
    damage.push(`its ${table} are not those that were written`)
  return { found: rows.length, of, read: () => rows.map((row) => row.read()) }
}

/** What is known of a thread whose own row is lost. */
const headOf = ({ tenant, id, model, created }: ThreadDigest, listed: Listed | null): ThreadHead => ({
  ...{ tenant, id, model, created, used: listed?.used ?? created },
  ...{ parent: null, contract: null, tools: [], held: [] },
})
