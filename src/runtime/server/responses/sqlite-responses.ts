/** Owns the responses that survive a restart: one SQLite file beside that of the threads, and what can be read of one that is damaged. */
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { type Damage, damageError } from '../../store/damage.js'
import { keyOf, type Listed, Manifest } from '../../store/manifest.js'
import { type StoredRow, rowKind } from '../../store/row-kind.js'
import { now, StoreFile } from '../../store/store-file.js'
import type { Tenant } from '../../core/ids.js'
import type { KeptResponse, ResponseStore, ThreadRef } from './responses.js'
import { PageReader } from '../../store/page-reader.js'
import { putInPlace, type FileCheck } from '../../store/repair.js'

/** As the store of threads has them: step n brings a file of version n to version n + 1, and is never changed. */
export const responseMigrations: readonly string[] = [
  `
  CREATE TABLE responses (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    thread TEXT NOT NULL,
    messages INTEGER NOT NULL,
    body TEXT, -- JSON; NULL once it was deleted
    sum INTEGER NOT NULL, -- CRC-32 of the row
    PRIMARY KEY (tenant, id)
  ) STRICT;
  CREATE INDEX responses_by_thread ON responses (tenant, thread);
  `,
]

export const responseRows = rowKind<KeptResponse>({
  columns: { tenant: 'text', id: 'text', thread: 'text', messages: 'integer', body: 'text' },
  write: ({ tenant, id, thread, messages, body }) => [tenant, id, thread, messages, body],
  read: ({ tenant, id, thread, messages, body }) => ({ tenant, id, thread, messages, body }) as KeptResponse,
})

export const RESPONSES_FILE = 'responses.db'
export const RESPONSES_MANIFEST = 'responses.manifest'

export class SqliteResponses implements ResponseStore {
  readonly #damage = new Map<string, Damage & { readonly thread: string | null }>()

  private constructor(
    private readonly file: StoreFile,
    private readonly manifest: Manifest,
  ) {}

  /**
   * The file `responses.db` in the folder of the threads' store.
   * @throws KvfoldError store/unusable, store/locked, store/damaged, store/newer; nothing was changed then
   */
  static open(folder: string): SqliteResponses {
    const file = StoreFile.open({ path: join(folder, RESPONSES_FILE), migrations: responseMigrations, first: ['responses'] })
    try {
      const responses = new SqliteResponses(file, Manifest.read(join(folder, RESPONSES_MANIFEST)))
      responses.#survey()
      return responses
    } catch (error) {
      file.close()
      throw error
    }
  }

  damage(): readonly Damage[] {
    return [...this.#damage.values()]
  }

  keep(response: KeptResponse): Promise<void> {
    const marks = responseRows.columns.map(() => '?').join(', ')
    const sql = `INSERT OR REPLACE INTO responses (${responseRows.columns.join(', ')}) VALUES (${marks})`
    return now(() => {
      this.file.write(() => this.file.run(sql, ...responseRows.write(response)))
      this.manifest.note(listedOf(response))
    })
  }

  read(tenant: Tenant, id: string): Promise<KeptResponse | null> {
    return now(() => this.#read(tenant, id))
  }

  of(thread: ThreadRef): Promise<readonly KeptResponse[]> {
    return now(() => this.#of(thread))
  }

  erase(tenant: Tenant, id: string): Promise<void> {
    return now(() => {
      const kept = this.#read(tenant, id)
      if (kept === null) return
      const sets = responseRows.columns.map((column) => `${column} = ?`).join(', ')
      const erased = { ...kept, body: null }
      const values = responseRows.write(erased)
      this.file.erase(() => this.file.run(`UPDATE responses SET ${sets} WHERE tenant = ? AND id = ?`, ...values, tenant, id))
      this.manifest.note(listedOf(erased))
    })
  }

  drop(threads: readonly ThreadRef[]): void {
    const wanted = new Set(threads.map(({ tenant, thread }) => keyOf(tenant, thread)))
    const isWanted = (tenant: string, thread: string | null | undefined) => thread != null && wanted.has(keyOf(tenant, thread))
    const lost = [...this.#damage.values()].filter(({ tenant, thread }) => isWanted(tenant, thread))
    const there = threads.flatMap((thread) => this.#of(thread))
    if (there.length + lost.length === 0) return
    this.manifest.forget([...there, ...lost])
    this.file.erase(() => {
      for (const { tenant, id } of [...there, ...lost])
        this.file.run('DELETE FROM responses WHERE tenant = ? AND id = ?', tenant, id)
    })
    for (const { tenant, id } of lost) this.#damage.delete(keyOf(tenant, id))
  }

  threads(): readonly ThreadRef[] {
    return this.#whole('WHERE rowid IN (SELECT min(rowid) FROM responses GROUP BY tenant, thread)')
  }

  close(): void {
    this.manifest.close()
    this.file.close()
  }

  #read(tenant: Tenant, id: string): KeptResponse | null {
    const known = this.#damage.get(keyOf(tenant, id))
    if (known !== undefined) throw damageError(known)
    const [row] = this.#rows('WHERE tenant = ? AND id = ?', tenant, id)
    if (row === undefined) return null
    const kept = responseRows.read(row)
    if (kept !== null) return kept
    // Of a file that was too long to be read when it was opened.
    throw damageError(this.#damaged(tenant, id))
  }

  #of({ tenant, thread }: ThreadRef): readonly KeptResponse[] {
    return this.#whole('WHERE tenant = ? AND thread = ?', tenant, thread)
  }

  /** What there is, and what there should be. Bodies of a large file are left for those who ask for them. */
  #survey(): void {
    const found = new Map<string, KeptResponse | null>()
    const keys = this.file.rows('SELECT rowid AS number, CAST(tenant AS BLOB) AS tenant, CAST(id AS BLOB) AS id FROM responses')
    for (const { number, tenant, id } of keys) {
      const [whose, name] = [textOf(tenant), textOf(id)]
      const kept = this.file.checked ? this.#at(number as number) : null
      found.set(keyOf(whose, name), kept)
      if (this.file.checked && kept === null) this.#damaged(whose, name)
    }
    for (const { tenant, id, of: thread = null, dropped } of this.manifest.listed) {
      const key = keyOf(tenant, id)
      const what = dropped ?? 'there is nothing left of it'
      const settled = dropped === undefined ? {} : { settled: true as const }
      if (!found.has(key)) this.#damage.set(key, { of: 'response', kind: 'lost', tenant, id, thread, what, ...settled })
    }
    this.manifest.begin([...found.values()].filter((kept) => kept !== null).map(listedOf))
  }

  #at(number: number): KeptResponse | null {
    const [row] = this.file.rows(`SELECT ${responseRows.selected} FROM responses WHERE rowid = ?`, number)
    return row === undefined ? null : responseRows.read(row)
  }

  #damaged(tenant: string, id: string): Damage {
    const thread = this.manifest.of(tenant, id)?.of ?? null
    const damage = { of: 'response', kind: 'damaged', tenant, id, thread, what: 'its row is not what was written' } as const
    this.#damage.set(keyOf(tenant, id), damage)
    return damage
  }

  /** Those that are what was written. */
  #whole(where: string, ...values: string[]): readonly KeptResponse[] {
    return this.#rows(where, ...values)
      .map((row) => responseRows.read(row))
      .filter((kept) => kept !== null)
  }

  #rows(where: string, ...values: string[]): readonly StoredRow[] {
    return this.file.rows(`SELECT ${responseRows.selected} FROM responses ${where}`, ...values)
  }
}

const listedOf = (kept: KeptResponse): Listed => {
  const { tenant, id, thread, body } = kept
  return { tenant, id, of: thread, revision: body === null ? 2 : 1, sum: responseRows.write(kept).at(-1) as number, used: 0 }
}

const textOf = (bytes: unknown): string => Buffer.from(bytes as ArrayBuffer).toString()

// The looking through of kept responses, whatever is broken in their file, and the making of a whole one.

export interface ResponsesCheck extends FileCheck {
  readonly whole: readonly KeptResponse[]
  readonly damage: readonly Damage[]
  readonly lost: readonly Listed[]
}

/** Null when there are none. @throws KvfoldError store/locked, store/newer, store/unusable */
export function checkResponses(folder: string, isRefused = false): ResponsesCheck | null {
  const path = join(folder, RESPONSES_FILE)
  const manifest = Manifest.read(join(folder, RESPONSES_MANIFEST))
  const isThere = existsSync(path)
  if (!isThere && !manifest.found) return null
  const found = isThere ? wholeIn(path, false) : new Map<string, KeptResponse>()
  const isLost = ({ tenant, id }: Listed) => !found.has(keyOf(tenant, id))
  // What is missing may stand in an earlier version of a page.
  if (isThere && [...manifest.listed].some(isLost))
    for (const [key, kept] of wholeIn(path, true))
      if (manifest.of(kept.tenant, kept.id) !== undefined && !found.has(key)) found.set(key, kept)
  const lost = [...manifest.listed].filter(isLost)
  return {
    path,
    file: isRefused ? null : isThere ? StoreFile.inspect({ path, migrations: responseMigrations }) : 'it is not there',
    unreadable: manifest.unreadable,
    whole: [...found.values()],
    damage: lost.map(({ tenant, id, dropped }) => {
      const what = dropped ?? 'nothing of it is what was written'
      return { of: 'response', kind: 'lost', tenant, id, what, ...(dropped === undefined ? {} : { settled: true }) }
    }),
    lost,
  }
}

function wholeIn(path: string, all: boolean): Map<string, KeptResponse> {
  const reader = new PageReader(path)
  const found = new Map<string, KeptResponse>()
  try {
    for (const at of reader.rows(all)) {
      const values = reader.read(at)?.values
      const kept = values === undefined || values.length !== responseRows.columns.length ? null : responseRows.parse(values, null)
      if (kept === null) continue
      const key = keyOf(kept.tenant, kept.id)
      // One that was deleted does not come back.
      if (found.get(key)?.body !== null) found.set(key, kept)
    }
    return found
  } finally {
    reader.close()
  }
}

/** As `repairThreads`. Says where the damaged file is now. */
export async function repairResponses(folder: string, { path, whole, lost, damage }: ResponsesCheck): Promise<string> {
  const stamp = new Date().toISOString().replace(/[:.]/gu, '-')
  const place = mkdtempSync(join(folder, 'repair-'))
  try {
    const responses = SqliteResponses.open(place)
    for (const kept of whole) await responses.keep(kept)
    responses.close()
    const manifest = Manifest.read(join(place, RESPONSES_MANIFEST))
    const why = (at: number) =>
      damage[at]!.settled === true ? damage[at]!.what : `left out by the repair of ${stamp.slice(0, 10)}`
    manifest.begin(lost.map((listed, at) => ({ ...listed, dropped: why(at) })))
    manifest.close()
    const names = { name: RESPONSES_FILE, manifest: RESPONSES_MANIFEST }
    return putInPlace({ folder, place, path, stamp, ...names })
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}
