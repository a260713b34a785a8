/** Owns what of a header has to agree for a run to go on in a log: all that answers depend on. */
import { isDeepStrictEqual } from 'node:util'
import { KvfoldError } from '../../core/errors.js'
import type { LogHeader } from '../log.js'

const FIELDS = ['model', 'engine', 'embedder', 'judge', 'seed', 'sampling', 'contracts', 'tasks', 'agents'] as const

/** The part of a header that makes a run the same; plain JSON. When, where and by which commit may differ: lines of the log say so. */
export function essence(header: LogHeader): Readonly<Record<string, unknown>> {
  const chosen = Object.fromEntries(FIELDS.map((field) => [field, header[field]]))
  return JSON.parse(JSON.stringify(chosen)) as Readonly<Record<string, unknown>>
}

/** @throws KvfoldError eval/other-run naming the first field that differs */
export function refuseOther(path: string, there: LogHeader, now: LogHeader): void {
  const found = difference(essence(there), essence(now), '')
  if (found === null) return
  throw new KvfoldError(
    'eval/other-run',
    `${path} holds another run (${found.field}: ${said(found.there)} there, ${said(found.now)} now); name another --log, or delete this one.`,
  )
}

interface Difference {
  readonly field: string
  readonly there: unknown
  readonly now: unknown
}

/** The first place at which two pieces of JSON differ; null when they do not. */
function difference(there: unknown, now: unknown, field: string): Difference | null {
  if (isDeepStrictEqual(there, now)) return null
  if (!isObject(there) || !isObject(now) || Array.isArray(there) !== Array.isArray(now)) return { field, there, now }
  for (const key of new Set([...Object.keys(there), ...Object.keys(now)])) {
    const place = Array.isArray(there) ? `${field}[${key}]` : field === '' ? key : `${field}.${key}`
    const found = difference(there[key], now[key], place)
    if (found !== null) return found
  }
  return null
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null

const LONGEST = 80

function said(value: unknown): string {
  if (value === undefined) return 'nothing'
  const text = JSON.stringify(value)
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}...` : text
}
