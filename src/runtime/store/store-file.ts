/** The store's SQLite file: opens, checks, locks and migrates it, and makes writes durable. */
import {
  chmodSync,
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  statfsSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { dirname, isAbsolute, join } from 'node:path'
import Database from 'libsql'
import { invariant, KvfoldError, type ErrorCode } from '../core/errors.js'
import { inTurns, type Steps } from '../core/turns.js'
import { damaged, failureOf, full } from './damage.js'
import type { StoredRow, StoredValue } from './row-kind.js'
import { homedir } from 'node:os'

/** The SQLite application id of kvfold's files: `kvfd`. */
const APPLICATION = 0x6b766664
/** How many milliseconds to wait for the lock: another server that holds it may be about to end. */
const PATIENCE = 500
/** The WAL is copied into the file at this many pages (1 MiB). During one long change it may grow further. */
const WAL_PAGES = 256
/** After this many milliseconds without a change, the WAL is emptied. */
const IDLE = 500
/** With fewer free bytes on the disk, the store reports that it is full. */
const ROOM = 2 ** 18
/** After a failed write, `problem` tries to write again once this many milliseconds have passed. */
const TRY_AGAIN = 1000
/** A file of up to this many bytes is checked whole when it is opened. That takes about a second. */
export const CHECKED_BYTES = 2 ** 26

/** How many keys to try one by one behind an unreadable page. More than a page has rows, and more than are deleted in a row. */
const REACH = 20_000

/** Errors that `look` reports as damage instead of throwing. */
const DAMAGES: ReadonlySet<ErrorCode> = new Set(['store/damaged', 'store/failed', 'store/unusable'])

/** Errors that only a write reveals. */
const FAILURES: ReadonlySet<ErrorCode> = new Set(['store/full', 'store/failed'])

/** The tables of a file as SQL, version by version. */
export interface Migrations {
  /** The version that `tables` creates, and the oldest that can be opened. */
  readonly first: number
  readonly tables: string
  /** Step n turns a file of version `first + n` into the next version. */
  readonly steps: readonly string[]
}

export interface StoreFileOptions {
  /** The file's path. File and folder are created if missing, readable only for this user. */
  readonly path: string
  readonly migrations: Migrations
  /** The tables to check in a file that is too long for a whole check. Default: none. */
  readonly first?: readonly string[]
  /** Files of up to this many bytes are checked whole. Default 64 MiB. */
  readonly checkedBytes?: number
}

/** A file opened only for reading. */
export interface LookedAt {
  /** The opened file; null when nothing in it can be read. */
  readonly file: StoreFile | null
  /** What damage SQLite finds; null when none is known. Some rows may still be readable. */
  readonly wrong: string | null
  /** Closes the file. A damaged file and its WAL stay unchanged. */
  readonly close: () => void
}

/**
 * Calls are synchronous: when a call returns, its change is on disk (WAL, `synchronous=FULL`). The file is locked until `close` or the end
 * of the process. So no stale lock remains, and no other process can keep deleted text in the WAL by reading.
 * Without other readers, each checkpoint starts the WAL anew. It holds at most the last MiB of changes, and is emptied shortly after the
 * last one.
 *
 * While the file is in use, no other code in this process may open and close it: POSIX would drop the lock.
 */
export class StoreFile {
  #open = true
  /** Whether a change is being written in turns of the event loop. Until it is done, nothing else may write. */
  #isChanging = false
  #idle: NodeJS.Timeout | null = null
  /** The error of the last failed change, and when it happened (`performance.now`). Null after a success. */
  #failure: { readonly error: KvfoldError; readonly at: number } | null = null
  /** Device and inode of the opened file. They reveal that another file was put at its path. */
  readonly #inode: string | null

  private constructor(
    readonly path: string,
    private readonly database: Database.Database,
    /** Whether the file was checked as a whole. False for a file that is too long. */
    readonly checked: boolean,
  ) {
    this.#inode = inodeAt(path)
  }

  /**
   * Opens the file, checks it (a long file only in part), and migrates a file of an earlier version.
   * @throws KvfoldError store/unusable, store/locked, store/damaged, store/older, store/newer; the file is then unchanged
   */
  static open(options: StoreFileOptions): StoreFile {
    const putBack = rememberWal(options.path)
    try {
      return StoreFile.#opened(options)
    } catch (error) {
      if (!(error instanceof KvfoldError && error.code === 'store/locked')) putBack()
      throw error
    }
  }

  /**
   * Opens a file for reading, even if SQLite finds damage. Changes nothing, except that an undamaged file of an earlier version is
   * migrated.
   * @throws KvfoldError store/locked, store/older, store/newer
   */
  static look({ path, migrations }: Pick<StoreFileOptions, 'path' | 'migrations'>): LookedAt {
    let file: StoreFile | null = null
    let putBack: () => void = () => undefined
    try {
      putBack = rememberWal(path)
      file = new StoreFile(path, connect(path), true)
      file.#lock()
      file.#check(migrations, [])
      const version = file.#number('user_version')
      if (version > 0 && version < latestOf(migrations)) {
        file.#begin()
        file.#migrate(migrations)
      }
      const sound = file
      const close = () => {
        sound.close()
      }
      return { file: version === 0 ? null : file, wrong: null, close }
    } catch (error) {
      const told = failureOf(error, path)
      if (told instanceof KvfoldError && DAMAGES.has(told.code))
        return file === null
          ? { file, wrong: told.message, close: putBack }
          : file.#asItIs(told.message, latestOf(migrations), putBack)
      if (file !== null) file.#leave()
      if (!(told instanceof KvfoldError && told.code === 'store/locked')) putBack()
      throw told
    }
  }

  /** Returns a damaged file for reading, if its version is the current one. */
  #asItIs(wrong: string, version: number, putBack: () => void): LookedAt {
    const close = () => {
      this.#leave()
      putBack()
    }
    try {
      return { file: this.#number('user_version') === version ? this : null, wrong, close }
    } catch {
      return { file: null, wrong, close }
    }
  }

  static #opened({ path, migrations, first = [], checkedBytes = CHECKED_BYTES }: StoreFileOptions): StoreFile {
    const database = connect(path)
    const file = new StoreFile(path, database, statSync(path).size <= checkedBytes)
    let checked = false
    try {
      file.#lock()
      file.#check(migrations, first)
      checked = true
      file.#begin()
      file.#migrate(migrations)
      file.#checkpoint()
      return file
    } catch (error) {
      if (checked) file.close()
      else file.#leave()
      throw failureOf(error, path)
    }
  }

  /**
   * Why the store cannot write at the moment; null when no problem is known. Checks that the file is at its path and that the disk has
   * room. After a failed write it also tries a write that changes nothing.
   */
  get problem(): KvfoldError | null {
    if (!this.#open) return null
    const moved = this.#moved()
    if (moved !== null) return moved
    const room = roomAt(dirname(this.path))
    if (room !== null && room < ROOM) return full(this.path)
    if (this.#failure !== null && !this.#isChanging && performance.now() > this.#failure.at + TRY_AGAIN)
      try {
        this.erase(() => this.database.pragma(`user_version=${this.#number('user_version')}`))
      } catch {
        // The error is returned below.
      }
    return this.#failure?.error ?? null
  }

  /**
   * Yields the rows of a table in the order of an integer column, which each row also has as `key`. Behind an unreadable page, searches for
   * the next readable key. Yields nothing when the table cannot be found.
   */
  *readable(table: string, key: string, selected: string): Generator<StoredRow> {
    const sql = `SELECT ${key} AS key, ${selected} FROM ${table}`
    const tried = (rest: string, ...values: number[]): StoredRow | null | undefined => {
      try {
        return this.rows(`${sql} ${rest}`, ...values)[0]
      } catch (error) {
        if (error instanceof KvfoldError) return null
        throw error
      }
    }
    if (tried('LIMIT 0') === null) return
    for (let last = -1; ;) {
      let row = tried(`WHERE ${key} > ? ORDER BY ${key} LIMIT 1`, last)
      if (row === undefined) return
      // A damaged B-tree may lead back to earlier keys.
      if (row !== null && (row['key'] as number) <= last) row = null
      for (let ahead = 1; row == null && ahead <= REACH; ahead++) row = tried(`WHERE ${key} = ?`, last + ahead)
      if (row == null) return
      last = row['key'] as number
      yield row
    }
  }

  rows(sql: string, ...values: StoredValue[]): Record<string, unknown>[] {
    return this.#told(() => this.database.prepare(sql).all(...values) as Record<string, unknown>[])
  }

  run(sql: string, ...values: readonly StoredValue[]): number {
    return this.#told(() => this.database.prepare(sql).run(...values).changes)
  }

  /** Runs `work` in a transaction: everything that it writes is stored, or nothing if it throws. */
  write<T>(work: () => T): T {
    invariant(!this.#isChanging, 'a change was written while another one is written in turns')
    try {
      const done = this.#written(work)
      this.#failure = null
      return done
    } catch (error) {
      throw this.#noted(error)
    }
  }

  /** Like `write`, in turns of the event loop. Until it is done, the caller may read but not write. */
  writeInTurns<T>(work: () => Steps<T>): Promise<T> {
    return this.#changeInTurns(work, false)
  }

  /** Like `erase`, in turns of the event loop. */
  eraseInTurns<T>(work: () => Steps<T>): Promise<T> {
    return this.#changeInTurns(work, true)
  }

  async #changeInTurns<T>(work: () => Steps<T>, isErased: boolean): Promise<T> {
    invariant(!this.#isChanging, 'a change was begun while another one is written in turns')
    this.#isChanging = true
    try {
      const done = await inTurns(this.#changing(work, isErased))
      this.#failure = null
      return done
    } catch (error) {
      throw this.#noted(failureOf(error, this.path))
    } finally {
      this.#isChanging = false
    }
  }

  /**
   * Runs a change in one transaction. Copies the WAL to the file afterwards, in a step of its own, because after a long change each of the
   * two takes long.
   */
  *#changing<T>(work: () => Steps<T>, isErased: boolean): Steps<T> {
    this.#refuseMoved()
    this.database.pragma('wal_autocheckpoint=0')
    try {
      this.database.exec('BEGIN IMMEDIATE')
      let done: T
      try {
        done = yield* work()
        yield
        this.database.exec('COMMIT')
      } catch (error) {
        if (this.database.inTransaction) this.database.exec('ROLLBACK')
        throw error
      }
      yield
      if (isErased) this.#checkpoint()
      else this.#empty()
      return done
    } finally {
      this.database.pragma(`wal_autocheckpoint=${WAL_PAGES}`)
    }
  }

  #noted(error: unknown): unknown {
    if (error instanceof KvfoldError && FAILURES.has(error.code)) this.#failure = { error, at: performance.now() }
    return error
  }

  #written<T>(work: () => T): T {
    return this.#told(() => {
      this.#refuseMoved()
      this.database.exec('BEGIN IMMEDIATE')
      try {
        const done = work()
        this.database.exec('COMMIT')
        // Restart the timer at every change, so that the WAL is not emptied in the middle of a series of changes.
        if (this.#idle === null)
          this.#idle = setTimeout(() => {
            this.#idle = null
            // A change in turns empties the WAL itself at its end.
            if (!this.#isChanging) this.#empty()
          }, IDLE).unref()
        else this.#idle.refresh()
        return done
      } catch (error) {
        // After some errors, such as a full disk, SQLite has rolled back already.
        if (this.database.inTransaction) this.database.exec('ROLLBACK')
        throw error
      }
    })
  }

  /** Like `write`, for deletions: afterwards the deleted data are neither in the file nor in its WAL. */
  erase<T>(work: () => T): T {
    const done = this.write(work)
    this.#checkpoint()
    return done
  }

  /** Throws when the store's file is not at its path any more. Writes to a moved or deleted file would be lost with the process. */
  #refuseMoved(): void {
    const moved = this.#moved()
    if (moved !== null) throw moved
  }

  #moved(): KvfoldError | null {
    if (inodeAt(this.path) === this.#inode) return null
    return new KvfoldError(
      'store/gone',
      `The store ${this.path} was moved, deleted or replaced, so nothing more is saved; put it back, or restart the server with another store.`,
    )
  }

  /** Closes the file and removes the WAL. Calling it again does nothing. */
  close(): void {
    if (!this.#open) return
    try {
      this.database.pragma('journal_mode=DELETE')
    } catch {
      // The disk may be full. Acknowledged changes are still in the WAL, and the next opening reads them.
    }
    this.#leave()
  }

  /**
   * Closes without writing. Releases the lock first: libsql keeps a closed connection, with its lock, as long as one of its statements
   * lives.
   */
  #leave(): void {
    this.#open = false
    if (this.#idle !== null) clearTimeout(this.#idle)
    try {
      this.database.pragma('locking_mode=NORMAL')
      this.database.pragma('user_version')
    } catch {
      // The file is no database, or is in WAL mode. Its lock then stays until the process ends.
    }
    this.database.close()
  }

  #lock(): void {
    // Must come before the first use of the WAL. Then the WAL's index is in this process's memory, not in a file that other processes can
    // map.
    this.database.pragma('locking_mode=EXCLUSIVE')
    this.database.pragma(`busy_timeout=${PATIENCE}`)
    this.database.exec('BEGIN IMMEDIATE; COMMIT')
  }

  /** Prepares the file for writing. Must not run before the file is known to be undamaged and kvfold's own. */
  #begin(): void {
    for (const pragma of ['journal_mode=WAL', 'synchronous=FULL', 'foreign_keys=ON', 'secure_delete=ON'])
      this.database.pragma(pragma)
    this.database.pragma(`wal_autocheckpoint=${WAL_PAGES}`)
  }

  /** Copies the whole WAL into the file. */
  #checkpoint(): void {
    this.#told(() => {
      const [state] = this.database.pragma('wal_checkpoint(TRUNCATE)') as { busy: number }[]
      invariant(state?.busy === 0, 'a statement is still open while the WAL is emptied')
    })
  }

  /** Empties the WAL. If that fails, for example on a full disk, the changes stay in the WAL, where reads still find them. */
  #empty(): void {
    try {
      if (this.#open) this.#checkpoint()
    } catch {
      // The next change tries again, and reports the error.
    }
  }

  #check(migrations: Migrations, first: readonly string[]): void {
    const { path } = this
    const latest = latestOf(migrations)
    const version = this.#number('user_version')
    const isEmpty = this.rows('SELECT 1 FROM sqlite_schema LIMIT 1').length === 0
    if (!isEmpty && this.#number('application_id') !== APPLICATION)
      throw new KvfoldError('store/unusable', `${path} is a database of another program; give another folder with --store.`)
    if (!isEmpty && version < migrations.first)
      throw new KvfoldError(
        'store/older',
        `The store ${path} has version ${version}, but this kvfold reads versions from ${migrations.first} on; give --store another folder.`,
      )
    if (version > latest)
      throw new KvfoldError(
        'store/newer',
        `The store ${path} has version ${version}, but this kvfold knows versions up to ${latest}. Use a newer kvfold, or give --store another folder.`,
      )
    const tables = this.checked ? ['1'] : first.filter((name) => this.#has(name)).map((name) => `'${name}'`)
    for (const what of tables) {
      // Read as bytes: the finding may quote damaged data that is not valid text, and libsql would end the process over it.
      const [row] = this.rows(`SELECT CAST(integrity_check AS BLOB) AS found FROM pragma_integrity_check(${what})`)
      const found = Buffer.from(row?.['found'] as ArrayBuffer).toString()
      if (found !== 'ok') throw damaged(path, found)
    }
  }

  #has(table: string): boolean {
    return this.rows("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", table).length > 0
  }

  /** Runs all migrations that the file lacks, in one transaction. */
  #migrate(migrations: Migrations): void {
    const version = this.#number('user_version')
    const latest = latestOf(migrations)
    if (version === latest) return
    const { first, tables, steps } = migrations
    this.write(() => {
      // `#check` refuses such an old version unless the file is empty.
      for (const sql of version < first ? [tables, ...steps] : steps.slice(version - first)) this.database.exec(sql)
      this.database.exec(`PRAGMA application_id=${APPLICATION}; PRAGMA user_version=${latest}`)
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

const latestOf = ({ first, steps }: Migrations): number => first + steps.length

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

/**
 * Remembers the WAL. The returned function puts it back if SQLite deleted it: SQLite deletes the WAL when it closes a file, even data in it
 * that it could not read and that may be the only copy. Pages that are already in the file are the same in both.
 */
function rememberWal(path: string): () => void {
  const wal = `${path}-wal`
  const before = existsSync(wal) ? readFileSync(wal) : null
  if (before !== null && before.length > 0 && existsSync(path) && statSync(path).size === 0)
    throw damaged(path, 'it is empty, although its -wal file is there')
  return () => {
    if (before !== null && !existsSync(wal)) writeFileSync(wal, before, { mode: 0o600 })
  }
}

/** Returns the device and inode at this path; null when there is no file. */
function inodeAt(path: string): string | null {
  const about = statSync(path, { bigint: true, throwIfNoEntry: false })
  return about === undefined ? null : `${about.dev} ${about.ino}`
}

/** Returns the free bytes on the folder's disk; null when unknown. */
function roomAt(folder: string): number | null {
  try {
    const { bavail, bsize, blocks } = statfsSync(folder)
    return blocks === 0 ? null : bavail * bsize
  } catch {
    return null
  }
}

/** Syncs a folder to disk, so that the name of a new file in it survives a crash. */
export function syncFolder(folder: string): void {
  const handle = openSync(folder, 'r')
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}

/** Runs `work` at once, and returns its result or error as a promise. */
export const now = <T>(work: () => T): Promise<T> =>
  new Promise((resolve) => {
    resolve(work())
  })

/** Returns the default folder of the store: `$XDG_STATE_HOME/kvfold`, or `~/.local/state/kvfold` without that variable. */
export function stateFolder(environment: NodeJS.ProcessEnv = process.env): string {
  const given = environment['XDG_STATE_HOME']
  // The XDG specification says to ignore relative paths.
  const base = given !== undefined && isAbsolute(given) ? given : join(homedir(), '.local', 'state')
  return join(base, 'kvfold')
}
