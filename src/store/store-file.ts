/** Owns the store's SQLite file: who may open it, that it is whole, of our version and ours alone, and when what is written lasts. */
import { chmodSync, closeSync, existsSync, fsyncSync, mkdirSync, openSync } from 'node:fs'
import { dirname } from 'node:path'
import Database from 'libsql'
import { invariant, KvfoldError } from '../core/errors.js'
import { damaged, failureOf } from './failure.js'
import { migrations } from './migrations.js'

/** `kvfd`: tells our files from other programs'. */
const APPLICATION = 0x6b766664
/** Milliseconds to wait for a server that is about to end. */
const PATIENCE = 500

/** A value of a column, as SQLite takes it. */
export type Value = string | number | null | Uint8Array

export interface StoreFileOptions {
  /** The file; it is made, and its folder, readable by this user only. */
  readonly path: string
  /** Default: ours. */
  readonly migrations?: readonly string[]
}

/**
 * Everything happens at once, in the caller's thread: a change is on the medium when the call returns (WAL, `synchronous=FULL`). The file is
 * locked from the opening to `close` or the end of the process, so that there is never a lock to clean up, and so that no reader of another
 * process can hold deleted text back in the WAL.
 *
 * Nothing in this process may open and close the file while it is in use: POSIX would take the lock away.
 */
export class StoreFile {
  #open = true

  private constructor(
    readonly path: string,
    private readonly database: Database.Database,
  ) {}

  /**
   * Reads the whole file once to check it; brings one of an earlier version to ours.
   * @throws KvfoldError store/unusable, store/locked, store/damaged, store/newer; the file is as it was then
   */
  static open({ path, migrations: steps = migrations }: StoreFileOptions): StoreFile {
    const file = new StoreFile(path, connect(path))
    let checked = false
    try {
      file.#lock()
      file.#check(steps.length)
      checked = true
      file.#begin()
      file.#migrate(steps)
      return file
    } catch (error) {
      if (checked) file.close()
      else file.#leave()
      throw failureOf(error, path)
    }
  }

  rows(sql: string, ...values: Value[]): Record<string, unknown>[] {
    return this.#told(() => this.database.prepare(sql).all(...values) as Record<string, unknown>[])
  }

  /** Says how many rows it changed. */
  run(sql: string, ...values: Value[]): number {
    return this.#told(() => this.database.prepare(sql).run(...values).changes)
  }

  /** All that `work` writes, or nothing when it throws. */
  write<T>(work: () => T): T {
    return this.#told(() => {
      this.database.exec('BEGIN IMMEDIATE')
      try {
        const done = work()
        this.database.exec('COMMIT')
        return done
      } catch (error) {
        // After some errors, a full disk among them, SQLite has done so itself.
        if (this.database.inTransaction) this.database.exec('ROLLBACK')
        throw error
      }
    })
  }

  /** As `write`; what `work` deletes is not to be found in the file or beside it afterwards. */
  erase<T>(work: () => T): T {
    const done = this.write(work)
    this.#told(() => {
      const [state] = this.database.pragma('wal_checkpoint(TRUNCATE)') as { busy: number }[]
      invariant(state?.busy === 0, 'a statement of ours is open while text is erased')
    })
    return done
  }

  /** Leaves one file without a WAL. Idempotent. */
  close(): void {
    if (!this.#open) return
    try {
      this.database.pragma('journal_mode=DELETE')
    } catch {
      // No room for it: what is acknowledged is in the WAL, which the next opening reads.
    }
    this.#leave()
  }

  /** Writes nothing. A closed connection of libsql lives on, with its lock, as long as any statement of it; so the lock goes first. */
  #leave(): void {
    this.#open = false
    try {
      this.database.pragma('locking_mode=NORMAL')
      this.database.pragma('user_version')
    } catch {
      // Not a database, or in WAL mode: then the lock ends with the process.
    }
    this.database.close()
  }

  #lock(): void {
    // Before the first use of a WAL, so that its index is in our memory and not in a file that others can map.
    this.database.pragma('locking_mode=EXCLUSIVE')
    this.database.pragma(`busy_timeout=${PATIENCE}`)
    this.database.exec('BEGIN IMMEDIATE; COMMIT')
  }

  /** Only now that the file is known to be ours and whole may anything of it change. */
  #begin(): void {
    for (const pragma of ['journal_mode=WAL', 'synchronous=FULL', 'foreign_keys=ON', 'secure_delete=ON'])
      this.database.pragma(pragma)
  }

  #check(latest: number): void {
    const { path } = this
    const version = this.#number('user_version')
    const isEmpty = this.rows('SELECT 1 FROM sqlite_schema LIMIT 1').length === 0
    if (!isEmpty && this.#number('application_id') !== APPLICATION)
      throw new KvfoldError('store/unusable', `${path} is a database of another program; give another folder with --store.`)
    if (version > latest)
      throw new KvfoldError(
        'store/newer',
        `The store ${path} has version ${version} and this kvfold knows versions up to ${latest}; use the newer kvfold, or another folder with --store.`,
      )
    // As bytes: what is damaged need not be text, and libsql would end the process over it.
    const [first] = this.rows('SELECT CAST(integrity_check AS BLOB) AS found FROM pragma_integrity_check(1)')
    const found = Buffer.from(first?.['found'] as ArrayBuffer).toString()
    if (found !== 'ok') throw damaged(path, found)
    if (this.rows('SELECT 1 FROM pragma_foreign_key_check').length > 0) throw damaged(path, 'some rows belong to no thread')
  }

  /** All steps that are missing, or none. */
  #migrate(steps: readonly string[]): void {
    const version = this.#number('user_version')
    if (version === steps.length) return
    this.write(() => {
      for (const step of steps.slice(version)) this.database.exec(step)
      this.database.exec(`PRAGMA application_id=${APPLICATION}; PRAGMA user_version=${steps.length}`)
    })
  }

  #number(pragma: 'user_version' | 'application_id'): number {
    return Number(this.rows(`PRAGMA ${pragma}`)[0]?.[pragma])
  }

  #told<T>(work: () => T): T {
    invariant(this.#open, 'the store was used after it was closed')
    try {
      return work()
    } catch (error) {
      throw failureOf(error, this.path)
    }
  }
}

function connect(path: string): Database.Database {
  const folder = dirname(path)
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    if (existsSync(path)) {
      for (const file of [path, `${path}-wal`, `${path}-journal`]) if (existsSync(file)) chmodSync(file, 0o600)
    } else {
      closeSync(openSync(path, 'wx', 0o600))
      syncFolder(folder)
    }
    return new Database(path)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw new KvfoldError(
      'store/unusable',
      `The store ${path} cannot be used (${reason}); give a folder that can be written to with --store, or --store none.`,
      { cause: error },
    )
  }
}

/** A new file's name lasts only with its folder. */
function syncFolder(folder: string): void {
  const handle = openSync(folder, 'r')
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}
