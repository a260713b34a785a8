/** Owns the responses that survive a restart: one SQLite file beside that of the threads. */
import { join } from 'node:path'
import { damaged } from '../../store/failure.js'
import { rowKind, type Row } from '../../store/row-kind.js'
import { StoreFile } from '../../store/store-file.js'
import type { Tenant } from '../threads/tenant.js'
import type { KeptResponse, ResponseStore, ThreadRef } from './port.js'

/** As the store of threads has them: step n brings a file of version n to version n + 1, and is never changed. */
const migrations: readonly string[] = [
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

const rows = rowKind<KeptResponse>({
  columns: { tenant: 'text', id: 'text', thread: 'text', messages: 'integer', body: 'text' },
  write: ({ tenant, id, thread, messages, body }) => [tenant, id, thread, messages, body],
  read: ({ tenant, id, thread, messages, body }) => ({ tenant, id, thread, messages, body }) as KeptResponse,
})

export class SqliteResponses implements ResponseStore {
  private constructor(private readonly file: StoreFile) {}

  /**
   * The file `responses.db` in the folder of the threads' store.
   * @throws KvfoldError store/unusable, store/locked, store/damaged, store/newer; nothing was changed then
   */
  static open(folder: string): SqliteResponses {
    return new SqliteResponses(StoreFile.open({ path: join(folder, 'responses.db'), migrations }))
  }

  keep(response: KeptResponse): void {
    const marks = rows.columns.map(() => '?').join(', ')
    const sql = `INSERT OR REPLACE INTO responses (${rows.columns.join(', ')}) VALUES (${marks})`
    this.file.write(() => this.file.run(sql, ...rows.write(response)))
  }

  read(tenant: Tenant, id: string): KeptResponse | null {
    return this.#all('WHERE tenant = ? AND id = ?', tenant, id)[0] ?? null
  }

  of({ tenant, thread }: ThreadRef): readonly KeptResponse[] {
    return this.#all('WHERE tenant = ? AND thread = ?', tenant, thread)
  }

  erase(tenant: Tenant, id: string): void {
    const kept = this.read(tenant, id)
    if (kept === null) return
    const sets = rows.columns.map((column) => `${column} = ?`).join(', ')
    const values = rows.write({ ...kept, body: null })
    this.file.erase(() => this.file.run(`UPDATE responses SET ${sets} WHERE tenant = ? AND id = ?`, ...values, tenant, id))
  }

  drop(threads: readonly ThreadRef[]): void {
    const there = threads.filter((thread) => this.of(thread).length > 0)
    if (there.length === 0) return
    this.file.erase(() => {
      for (const { tenant, thread } of there)
        this.file.run('DELETE FROM responses WHERE tenant = ? AND thread = ?', tenant, thread)
    })
  }

  threads(): readonly ThreadRef[] {
    return this.#all('WHERE rowid IN (SELECT min(rowid) FROM responses GROUP BY tenant, thread)')
  }

  close(): void {
    this.file.close()
  }

  #all(where: string, ...values: string[]): readonly KeptResponse[] {
    return this.file.rows(`SELECT ${rows.selected} FROM responses ${where}`, ...values).map((row) => this.#read(row))
  }

  #read(row: Row): KeptResponse {
    const kept = rows.read(row)
    if (kept === null) throw damaged(this.file.path, 'a response is not what was written')
    return kept
  }
}
