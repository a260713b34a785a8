/**
 * Stores responses in an SQLite file beside the threads' file, so that they survive a restart. In a damaged file, the undamaged rows stay
 * readable.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { type Damage, damageError } from '../../store/damage.js'
import { type Listed, lost, Manifest } from '../../store/manifest.js'
import { type StoredRow, rowKind } from '../../store/row-kind.js'
import { type Migrations, now, StoreFile } from '../../store/store-file.js'
import { keyOf, type Tenant } from '../../core/ids.js'
import type { KeptResponse, ResponseStore, ThreadRef } from './responses.js'
import type { FileCheck } from '../../store/check.js'

/** The tables of the file. Later versions of kvfold append steps and never change existing ones. */
export const responseMigrations: Migrations = {
  first: 1,
  tables: `
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
  steps: [],
}

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
   * Opens the file `responses.db` in the folder of the threads' store.
   * @throws KvfoldError store/unusable, store/locked, store/damaged, store/older, store/newer; then nothing was changed
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
    // A large file is not checked as a whole when opened, so its damage may show only at this read.
    throw damageError(this.#damaged(tenant, id))
  }

  #of({ tenant, thread }: ThreadRef): readonly KeptResponse[] {
    return this.#whole('WHERE tenant = ? AND thread = ?', tenant, thread)
  }

  /** Compares the rows of the file with its manifest. In a large file, bodies are checked only when they are read. */
  #survey(): void {
    const found = new Map<string, KeptResponse | null>()
    const keys = this.file.rows('SELECT rowid AS number, CAST(tenant AS BLOB) AS tenant, CAST(id AS BLOB) AS id FROM responses')
    for (const { number, tenant, id } of keys) {
      const [whose, name] = [textOf(tenant), textOf(id)]
      const kept = this.file.checked ? this.#at(number as number) : null
      found.set(keyOf(whose, name), kept)
      if (this.file.checked && kept === null) this.#damaged(whose, name)
    }
    for (const listed of this.manifest.listed) {
      const key = keyOf(listed.tenant, listed.id)
      if (!found.has(key))
        this.#damage.set(key, { ...lost('response', listed, 'the file has nothing of it'), thread: listed.of ?? null })
    }
    this.manifest.begin([...found.values()].filter((kept) => kept !== null).map(listedOf))
  }

  #at(number: number): KeptResponse | null {
    const [row] = this.file.rows(`SELECT ${responseRows.selected} FROM responses WHERE rowid = ?`, number)
    return row === undefined ? null : responseRows.read(row)
  }

  #damaged(tenant: string, id: string): Damage {
    const thread = this.manifest.of(tenant, id)?.of ?? null
    const damage = { of: 'response', kind: 'damaged', tenant, id, thread, what: 'its row differs from the written one' } as const
    this.#damage.set(keyOf(tenant, id), damage)
    return damage
  }

  /** Returns the undamaged responses that satisfy the SQL condition `where`. */
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

// Checks stored responses while no server uses them, even in a partly damaged file.

export interface ResponsesCheck extends FileCheck {
  /** The undamaged responses. */
  readonly whole: readonly KeptResponse[]
  readonly damage: readonly Damage[]
}

/**
 * Checks the responses file in a store's folder. Returns null when there is no such file. @throws KvfoldError store/locked, store/older,
 * store/newer
 */
export function checkResponses(folder: string): ResponsesCheck | null {
  const path = join(folder, RESPONSES_FILE)
  const manifest = Manifest.read(join(folder, RESPONSES_MANIFEST))
  const isThere = existsSync(path)
  if (!isThere && !manifest.found) return null
  const whole = new Map<string, KeptResponse>()
  let wrong: string | null = 'the file does not have it'
  if (isThere) {
    const looked = StoreFile.look({ path, migrations: responseMigrations })
    wrong = looked.wrong
    try {
      for (const row of looked.file?.readable('responses', 'rowid', responseRows.selected) ?? []) {
        const kept = responseRows.read(row)
        if (kept !== null) whole.set(keyOf(kept.tenant, kept.id), kept)
      }
    } finally {
      looked.close()
    }
  }
  const damage = [...manifest.listed]
    .filter(({ tenant, id }) => !whole.has(keyOf(tenant, id)))
    .map((listed) => lost('response', listed, 'all of it differs from the written text'))
  return { path, file: wrong, unreadable: manifest.unreadable, whole: [...whole.values()], damage }
}
