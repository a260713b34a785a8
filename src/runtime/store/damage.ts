/** Describes errors of the store, and damaged threads and responses by name, with advice for the user. */
import { KvfoldError } from '../core/errors.js'
import Database from 'libsql'

/** A thread or response that the store cannot give. `damaged`: the store still has a part of it. `lost`: the store has nothing of it. */
export interface Damage {
  readonly of: 'thread' | 'response'
  readonly kind: 'damaged' | 'lost'
  readonly tenant: string
  readonly id: string
  /** The damage in words, without a full stop. */
  readonly what: string
  /** A copy of the store reported the damage and left the item out. It is reported again only to requests for the item. */
  readonly settled?: true
}

/** Stands for the tenant of a thread when the tenant is unknown. */
export const UNNAMED = 'an unknown tenant'

/** The most lines of a report for people. Further damage is only counted. */
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

/** Returns one line for each damaged or lost item, at most `shown` lines, and a line with the number of the others. */
export function damageLines(all: readonly Damage[], shown = SHOWN): readonly string[] {
  const lines = all.slice(0, shown).map(({ of, kind, tenant, id, what }) => `${of} ${id} of ${tenant} is ${kind}: ${what}`)
  return all.length <= shown ? lines : [...lines, `and ${all.length - shown} more; kvfold store check lists all of them`]
}

// Messages for users when SQLite fails.

/** Returns kvfold's own errors unchanged. Turns an error of SQLite into one that tells the state of the store and what to do. */
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

/** Makes the error for a damaged store file. Its message says that the file was not changed. */
export function damaged(path: string, what: string, cause?: unknown): KvfoldError {
  return new KvfoldError(
    'store/damaged',
    `The store ${path} is damaged: ${what}. kvfold did not change it. Restore a backup, or move it and its -wal file away to begin with an empty store.`,
    cause === undefined ? {} : { cause },
  )
}

/** Returns the general code of a SQLite error: `SQLITE_IOERR_WRITE` becomes `SQLITE_IOERR`. */
const primary = (code: string): string => /^SQLITE_[A-Z]+/.exec(code)?.[0] ?? code
