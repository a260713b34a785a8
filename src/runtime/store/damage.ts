/** Errors of the store and damaged threads, named, with advice for the user. */
import { KvfoldError } from '../core/errors.js'
import Database from 'libsql'

/** A thread or response that the store cannot return. `damaged`: the store still has some of it. `lost`: nothing is left. */
export interface Damage {
  readonly of: 'thread' | 'response'
  readonly kind: 'damaged' | 'lost'
  readonly tenant: string
  readonly id: string
  /** What is damaged, in words, without a full stop. */
  readonly what: string
  /** Set when this store is a copy that left the item out, because the damage was known. Only requests for the item report it again. */
  readonly settled?: true
}

/** Stands for the tenant of a thread when it is unknown. */
export const UNNAMED = 'an unknown tenant'

/** The most lines of a report for people. Further items are only counted. */
const SHOWN = 20

export function damageError({ of, kind, id, what }: Damage): KvfoldError {
  const deletion = `To get rid of this message, delete ${of === 'thread' ? 'it' : 'its thread'}.`
  return new KvfoldError(
    `store/${kind}-${of}`,
    kind === 'damaged'
      ? `The ${of} ${id} is damaged in the store: ${what}. kvfold does not show it, because its text may be wrong. \`kvfold store export\` writes the part that can be read. ${deletion}`
      : `The ${of} ${id} was lost from the store: ${what}. \`kvfold store check\` checks again. ${deletion}`,
  )
}

/** Returns a line for each damaged or lost item, at most `shown`. One more line then tells the number of the others. */
export function damageLines(all: readonly Damage[], shown = SHOWN): readonly string[] {
  const lines = all.slice(0, shown).map(({ of, kind, tenant, id, what }) => `${of} ${id} of ${tenant} is ${kind}: ${what}`)
  return all.length <= shown ? lines : [...lines, `and ${all.length - shown} more; kvfold store check lists all of them`]
}

// Messages for users when SQLite fails.

/** Turns an error of SQLite into one that says what is wrong with the store and what to do. kvfold's own errors are returned unchanged. */
export function failureOf(error: unknown, path: string): unknown {
  if (!(error instanceof Database.SqliteError)) return error
  const told = (code: 'locked' | 'failed', message: string) => new KvfoldError(`store/${code}`, message, { cause: error })
  switch (primary(error.code)) {
    case 'SQLITE_FULL':
      return full(path, error)
    case 'SQLITE_CORRUPT':
      return damaged(path, error.message, error)
    case 'SQLITE_NOTADB':
      return damaged(path, 'it is not a SQLite database', error)
    case 'SQLITE_BUSY':
    case 'SQLITE_LOCKED':
      return told('locked', `Another process uses the store ${path}; stop it, or give this server another folder with --store.`)
    default:
      return told(
        'failed',
        `The store ${path} could not be read or written (${error.code}: ${error.message}); check its disk and its permissions.`,
      )
  }
}

export const full = (path: string, cause?: unknown): KvfoldError =>
  new KvfoldError(
    'store/full',
    `The disk has no room left for the store ${path}, so this was not saved; free some space and try again.`,
    cause === undefined ? {} : { cause },
  )

/** Makes the error for a damaged store file. kvfold leaves such a file unchanged, and the message says so. */
export function damaged(path: string, what: string, cause?: unknown): KvfoldError {
  return new KvfoldError(
    'store/damaged',
    `The store ${path} is damaged: ${what}. kvfold did not change it. Restore a backup, or move it and its -wal file away to begin with an empty store.`,
    cause === undefined ? {} : { cause },
  )
}

/** Returns the general code of a SQLite error: `SQLITE_IOERR_WRITE` gives `SQLITE_IOERR`. */
const primary = (code: string): string => /^SQLITE_[A-Z]+/.exec(code)?.[0] ?? code
