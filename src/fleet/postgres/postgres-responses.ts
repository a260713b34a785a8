/** Responses in PostgreSQL. They lie in the same database as their threads, and are deleted with them. */
import { KvfoldError } from '../../runtime/core/errors.js'
import type { Tenant } from '../../runtime/core/ids.js'
import type { Damage } from '../../runtime/store/damage.js'
import { canName, type Database } from './database.js'
import type { RunStatement } from './schema.js'
import { parsed } from './thread-rows.js'
import type { KeptResponse, ResponseStore, ThreadRef } from '../../runtime/server/responses/responses.js'
import { responseRows } from '../../runtime/server/responses/sqlite-responses.js'

const COLUMNS = responseRows.columns.join(', ')

export class PostgresResponses implements ResponseStore {
  /** @param database the threads' database; the thread store closes it */
  constructor(private readonly database: Database) {}

  /** Stores a response. Does nothing if its thread was deleted meanwhile. */
  async keep(response: KeptResponse): Promise<void> {
    await this.database.transaction(async (run) => {
      // This row lock keeps other servers from deleting the thread before the transaction ends.
      const there = await run('SELECT 1 FROM kvfold.threads WHERE tenant = $1 AND id = $2 FOR KEY SHARE', [
        response.tenant,
        response.thread,
      ])
      if (there.length > 0) await writeResponse(run, response)
    })
  }

  async read(tenant: Tenant, id: string): Promise<KeptResponse | null> {
    if (!canName(id)) return null
    const [row] = await this.database.rows(`SELECT ${COLUMNS} FROM kvfold.responses WHERE tenant = $1 AND id = $2`, [tenant, id])
    if (row === undefined) return null
    const kept = parsed(responseRows, row, [])
    if (kept !== null) return kept
    throw new KvfoldError(
      'store/damaged-response',
      `The response ${id} is damaged in the database ${this.database.address}: its row does not match its checksum. kvfold does not show it; restore a backup of the database, or delete its thread.`,
    )
  }

  async of({ tenant, thread }: ThreadRef): Promise<readonly KeptResponse[]> {
    const sql = `SELECT ${COLUMNS} FROM kvfold.responses WHERE tenant = $1 AND thread = $2`
    const rows = await this.database.rows(sql, [tenant, thread])
    return rows.map((row) => parsed(responseRows, row, [])).filter((kept) => kept !== null)
  }

  async erase(tenant: Tenant, id: string): Promise<void> {
    const kept = await this.read(tenant, id)
    if (kept !== null) await this.keep({ ...kept, body: null })
  }

  /** Does nothing, because the database deletes a thread's responses with it. */
  drop(): void {
    return
  }

  threads(): readonly ThreadRef[] {
    return []
  }

  damage(): readonly Damage[] {
    return []
  }

  close(): void {
    return
  }
}

const MARKS = responseRows.columns.map((_, at) => `$${at + 1}`).join(', ')
const SETS = responseRows.columns.map((column) => `${column} = excluded.${column}`).join(', ')

/** Inserts or replaces a response. Its thread must exist. */
export async function writeResponse(run: RunStatement, response: KeptResponse): Promise<void> {
  await run(
    `INSERT INTO kvfold.responses (${COLUMNS}) VALUES (${MARKS}) ON CONFLICT (tenant, id) DO UPDATE SET ${SETS}`,
    responseRows.write(response),
  )
}

/** Reads all responses. Of a damaged response it returns only the name. */
export async function readResponses(
  run: RunStatement,
): Promise<{ readonly whole: readonly KeptResponse[]; readonly damage: readonly Damage[] }> {
  const whole: KeptResponse[] = []
  const damage: Damage[] = []
  for (const row of await run(`SELECT ${COLUMNS} FROM kvfold.responses ORDER BY tenant, id`)) {
    const kept = parsed(responseRows, row, [])
    const [tenant, id] = [row['tenant'] as string, row['id'] as string]
    if (kept === null) damage.push({ of: 'response', kind: 'damaged', tenant, id, what: 'its row does not match its checksum' })
    else whole.push(kept)
  }
  return { whole, damage }
}
