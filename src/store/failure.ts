/** Owns what users are told when SQLite cannot do its work. */
import Database from 'libsql'
import { KvfoldError } from '../core/errors.js'

/** Keeps errors of ours as they are, and says of SQLite's what happened to the store and what to do. */
export function failureOf(error: unknown, path: string): unknown {
  if (!(error instanceof Database.SqliteError)) return error
  const told = (code: 'full' | 'damaged' | 'locked' | 'failed', message: string) =>
    new KvfoldError(`store/${code}`, message, { cause: error })
  switch (primary(error.code)) {
    case 'SQLITE_FULL':
      return told(
        'full',
        `There is no room left for the store ${path}, so this was not kept; make room on its disk and try again.`,
      )
    case 'SQLITE_CORRUPT':
      return damaged(path, error.message, error)
    case 'SQLITE_NOTADB':
      return damaged(path, 'it is not a SQLite database', error)
    case 'SQLITE_BUSY':
    case 'SQLITE_LOCKED':
      return told('locked', `Another process uses the store ${path}; stop it, or give this server another folder with --store.`)
    default:
      return told('failed', `The store ${path} could not be read or written (${error.code}: ${error.message}).`)
  }
}

/** Nothing of the file was changed. */
export function damaged(path: string, what: string, cause?: unknown): KvfoldError {
  return new KvfoldError(
    'store/damaged',
    `The store ${path} is damaged: ${what}. It was left as it is: put a copy of it back, or move it and its -wal file away to begin with an empty store.`,
    cause === undefined ? {} : { cause },
  )
}

/** `SQLITE_IOERR` of `SQLITE_IOERR_WRITE`. */
const primary = (code: string): string => /^SQLITE_[A-Z]+/.exec(code)?.[0] ?? code
