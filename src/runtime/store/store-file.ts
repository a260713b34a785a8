/** Owns the store's SQLite file: who may open it, that it is whole, of our version and ours alone, and when what is written lasts. */
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
import { damaged, failureOf, full } from './damage.js'
import type { StoredRow, StoredValue } from './row-kind.js'
import { homedir } from 'node:os'

/** `kvfd`: tells our files from other programs'. */
const APPLICATION = 0x6b766664
/** Milliseconds to wait for a server that is about to end. */
const PATIENCE = 500
/** Pages that the WAL holds before they go to the file: 1 MiB. A longer change makes it as long as itself. */
const WAL_PAGES = 256
/** Milliseconds without a change after which the WAL is emptied. */
const IDLE = 500
/** Bytes that must be free on the disk for anything to be kept. */
const ROOM = 2 ** 18
/** Milliseconds between two tries to write after one that failed, while nobody writes anything else. */
const TRY_AGAIN = 1000
/** Bytes of a file that is read whole when it is opened: about a second of it. */
export const CHECKED_BYTES = 2 ** 26

/** Keys that are tried one by one behind a page that cannot be read: more than a page has rows, and than are deleted in a row. */
const REACH = 20_000

/** What is wrong with a file that is ours. */
const DAMAGES: ReadonlySet<ErrorCode> = new Set(['store/damaged', 'store/failed', 'store/unusable'])

/** What keeps changes from being written, and is found out by trying alone. */
const FAILURES: ReadonlySet<ErrorCode> = new Set(['store/full', 'store/failed'])

/** SQL, or what is done with the file, within the same transaction. */
export type Migration = string | ((file: StoreFile) => void)

export interface StoreFileOptions {
  /** The file; it is made, and its folder, readable by this user only. */
  readonly path: string
  /** Step n brings a file of version n to version n + 1. */
  readonly migrations: readonly Migration[]
  /** Tables whose pages are checked in a file that is too long to be read whole. Default: none. */
  readonly first?: readonly string[]
  /** Bytes up to which a file is read whole to check it. Default 64 MiB. */
  readonly checkedBytes?: number
}

/** A file that is only read. */
export interface LookedAt {
  /** Null: there is nothing in it that can be read. */
  readonly file: StoreFile | null
  /** What SQLite finds wrong with it; null: nothing is known. Rows may be read all the same. */
  readonly wrong: string | null
  /** Leaves a damaged file, and its WAL, as they were. */
  readonly close: () => void
}

/**
 * Everything happens at once, in the caller's thread: a change is on the medium when the call returns (WAL, `synchronous=FULL`). The file is
 * locked from the opening to `close` or the end of the process, so that there is never a lock to clean up, and so that no reader of another
 * process can hold deleted text back in the WAL. As nobody reads while we write, the WAL begins anew at every checkpoint: it never holds more than
 * the last mebibyte of changes, and nothing a moment after the last one.
 *
 * Nothing in this process may open and close the file while it is in use: POSIX would take the lock away.
 */
export class StoreFile {
  #open = true
  #idle: NodeJS.Timeout | null = null
  /** Why the last change was not written, and when that was, as `performance.now` has it. */
  #failure: { readonly error: KvfoldError; readonly at: number } | null = null
  /** Tells the file from another one at its path. */
  readonly #inode: string | null

  private constructor(
    readonly path: string,
    private readonly database: Database.Database,
    /** False: the file was too long for it. */
    readonly checked: boolean,
  ) {
    this.#inode = inodeAt(path)
  }

  /**
   * Reads the file once to check it, the whole of it unless it is long; brings one of an earlier version to ours.
   * @throws KvfoldError store/unusable, store/locked, store/damaged, store/newer; the file is as it was then
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
   * Opens a file to read it, whatever SQLite finds wrong with it. Nothing of it changes, but a sound file of an earlier version becomes one of ours.
   * @throws KvfoldError store/locked, store/newer
   */
  static look({ path, migrations: steps }: Pick<StoreFileOptions, 'path' | 'migrations'>): LookedAt {
    let file: StoreFile | null = null
    let putBack: () => void = () => undefined
    try {
      putBack = rememberWal(path)
      file = new StoreFile(path, connect(path), true)
      file.#lock()
      file.#check(steps.length, [])
      const version = file.#number('user_version')
      if (version > 0 && version < steps.length) {
        file.#begin()
        file.#migrate(steps)
      }
      const sound = file
      const close = () => {
        sound.close()
      }
      return { file: version === 0 ? null : file, wrong: null, close }
    } catch (error) {
      const told = failureOf(error, path)
      if (told instanceof KvfoldError && DAMAGES.has(told.code))
        return file === null ? { file, wrong: told.message, close: putBack } : file.#asItIs(told.message, steps.length, putBack)
      if (file !== null) file.#leave()
      if (!(told instanceof KvfoldError && told.code === 'store/locked')) putBack()
      throw told
    }
  }

  /** A damaged file of our version, to be read. */
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

  static #opened({ path, migrations: steps, first = [], checkedBytes = CHECKED_BYTES }: StoreFileOptions): StoreFile {
    const database = connect(path)
    const file = new StoreFile(path, database, statSync(path).size <= checkedBytes)
    let checked = false
    try {
      file.#lock()
      file.#check(steps.length, first)
      checked = true
      file.#begin()
      file.#migrate(steps)
      file.#checkpoint()
      return file
    } catch (error) {
      if (checked) file.close()
      else file.#leave()
      throw failureOf(error, path)
    }
  }

  /**
   * Why nothing can be kept now; null: nothing is known against it. It looks whether the file is where it was and has room; after a change that could
   * not be written it tries one that changes nothing.
   */
  get problem(): KvfoldError | null {
    if (!this.#open) return null
    const moved = this.#moved()
    if (moved !== null) return moved
    const room = roomAt(dirname(this.path))
    if (room !== null && room < ROOM) return full(this.path)
    if (this.#failure !== null && performance.now() > this.#failure.at + TRY_AGAIN)
      try {
        this.erase(() => this.database.pragma(`user_version=${this.#number('user_version')}`))
      } catch {
        // It is told below.
      }
    return this.#failure?.error ?? null
  }

  /**
   * The rows of a table by a key of whole numbers, which each row has as `key`. Behind a page that cannot be read it looks for the next key that can.
   * A table that cannot even be found has none.
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
      // A damaged tree may lead back.
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

  /** Says how many rows it changed. */
  run(sql: string, ...values: readonly StoredValue[]): number {
    return this.#told(() => this.database.prepare(sql).run(...values).changes)
  }

  /** All that `work` writes, or nothing when it throws. */
  write<T>(work: () => T): T {
    try {
      const done = this.#written(work)
      this.#failure = null
      return done
    } catch (error) {
      if (error instanceof KvfoldError && FAILURES.has(error.code)) this.#failure = { error, at: performance.now() }
      throw error
    }
  }

  #written<T>(work: () => T): T {
    return this.#told(() => {
      // What is written to a file that has no name any more ends with the process.
      const moved = this.#moved()
      if (moved !== null) throw moved
      this.database.exec('BEGIN IMMEDIATE')
      try {
        const done = work()
        this.database.exec('COMMIT')
        // Again with every change: not while changes come one upon the other.
        if (this.#idle === null)
          this.#idle = setTimeout(() => {
            this.#empty()
          }, IDLE).unref()
        else this.#idle.refresh()
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
    this.#checkpoint()
    return done
  }

  #moved(): KvfoldError | null {
    if (inodeAt(this.path) === this.#inode) return null
    return new KvfoldError(
      'store/gone',
      `The store ${this.path} is not where it was, so nothing more is kept; put it back, or start the server anew with another one.`,
    )
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
    if (this.#idle !== null) clearTimeout(this.#idle)
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
    this.database.pragma(`wal_autocheckpoint=${WAL_PAGES}`)
  }

  /** All is in the file, nothing in the WAL. */
  #checkpoint(): void {
    this.#told(() => {
      const [state] = this.database.pragma('wal_checkpoint(TRUNCATE)') as { busy: number }[]
      invariant(state?.busy === 0, 'a statement of ours is open while the WAL is emptied')
    })
  }

  /** What cannot be done now, for want of room for instance, stays in the WAL and is there all the same. */
  #empty(): void {
    this.#idle = null
    try {
      if (this.#open) this.#checkpoint()
    } catch {
      // The next change tries again, and tells whoever makes it.
    }
  }

  #check(latest: number, first: readonly string[]): void {
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
    const tables = this.checked ? ['1'] : first.filter((name) => this.#has(name)).map((name) => `'${name}'`)
    for (const what of tables) {
      // As bytes: what is damaged need not be text, and libsql would end the process over it.
      const [row] = this.rows(`SELECT CAST(integrity_check AS BLOB) AS found FROM pragma_integrity_check(${what})`)
      const found = Buffer.from(row?.['found'] as ArrayBuffer).toString()
      if (found !== 'ok') throw damaged(path, found)
    }
  }

  #has(table: string): boolean {
    return this.rows("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", table).length > 0
  }

  /** All steps that are missing, or none. */
  #migrate(steps: readonly Migration[]): void {
    const version = this.#number('user_version')
    if (version === steps.length) return
    this.write(() => {
      for (const step of steps.slice(version))
        if (typeof step === 'string') this.database.exec(step)
        else step(this)
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

/**
 * SQLite deletes the WAL when it closes a file, and with it what it could not read there, which may be all that is left of something. What this returns
 * puts the WAL back as it was: pages that SQLite has put in their places are the same there.
 */
function rememberWal(path: string): () => void {
  const wal = `${path}-wal`
  const before = existsSync(wal) ? readFileSync(wal) : null
  if (before !== null && before.length > 0 && existsSync(path) && statSync(path).size === 0)
    throw damaged(path, 'it is empty, and there is a -wal file that belongs to it')
  return () => {
    if (before !== null && !existsSync(wal)) writeFileSync(wal, before, { mode: 0o600 })
  }
}

/** Of the file at this path; null: there is none. */
function inodeAt(path: string): string | null {
  const about = statSync(path, { bigint: true, throwIfNoEntry: false })
  return about === undefined ? null : `${about.dev} ${about.ino}`
}

/** Bytes that are free on the disk of this folder; null: nobody knows. */
function roomAt(folder: string): number | null {
  try {
    const { bavail, bsize, blocks } = statfsSync(folder)
    return blocks === 0 ? null : bavail * bsize
  } catch {
    return null
  }
}

/** A new file's name lasts only with its folder. */
export function syncFolder(folder: string): void {
  const handle = openSync(folder, 'r')
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}

/** What `work` returns or throws, as a promise: it is done when the call returns. */
export const now = <T>(work: () => T): Promise<T> =>
  new Promise((resolve) => {
    resolve(work())
  })

// Where the store is when nobody says.

/** `$XDG_STATE_HOME/kvfold`, by default `~/.local/state/kvfold`. */
export function stateFolder(environment: NodeJS.ProcessEnv = process.env): string {
  const given = environment['XDG_STATE_HOME']
  // The XDG specification has relative paths ignored.
  const base = given !== undefined && isAbsolute(given) ? given : join(homedir(), '.local', 'state')
  return join(base, 'kvfold')
}
