/** Reads JSON files that the user names or that the package contains. */
import { readFileSync } from 'node:fs'
import type { Static, TSchema } from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { allInWords, checked } from '../../runtime/core/schema.js'

/** Returns the error for a file that cannot be used. @param what the file's contents in a word, for example `words` */
export const unreadable = (what: string, path: string | URL, why: string, cause?: unknown): KvfoldError =>
  new KvfoldError('eval/bad-data', `The ${what} in ${path instanceof URL ? path.pathname : path} cannot be read: ${why}`, {
    cause,
  })

/** Returns the contents of a JSON file that match the schema. @throws KvfoldError eval/bad-data that says what is wrong */
export function jsonIn<T extends TSchema>(path: string | URL, schema: T, what: string): Static<T> {
  let value: unknown
  try {
    value = JSON.parse(readFileSync(path, 'utf8'))
  } catch (cause) {
    throw unreadable(what, path, cause instanceof Error ? cause.message : String(cause), cause)
  }
  const read = checked(schema, value)
  if (!read.ok) throw unreadable(what, path, `${allInWords(read.faults)}.`)
  return read.value
}
