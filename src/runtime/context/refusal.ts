/** The result of an operation that was not carried out: why, and what to do instead. */
import type { ErrorCode } from '../core/errors.js'
import type { LedgerEntry } from '../kv/ledger.js'

/** The operation changed nothing. `message` is one or two sentences that a model or a person can act on. */
export interface Refusal {
  readonly ok: false
  readonly code: Extract<
    ErrorCode,
    'tool/bad-arguments' | 'tool/unknown-id' | 'tool/refused' | 'tool/costs-more' | 'engine/cancelled'
  >
  readonly message: string
  /** The entries of steps that the operation ran before it was refused, for example for a summary that came out empty. */
  readonly ledger?: readonly LedgerEntry[]
}

/** The outcome of an operation: its results, or the reason why nothing changed. */
export type Result<T extends object> = ({ readonly ok: true } & T) | Refusal

export const refuse = (code: Refusal['code'], message: string): Refusal => ({ ok: false, code, message })

/** Joins items as `a`, `a and b`, `a, b and c`. The `and` shows a small model where the list ends. */
export function listed(items: readonly string[]): string {
  const last = items.at(-1) ?? ''
  return items.length < 2 ? last : `${items.slice(0, -1).join(', ')} and ${last}`
}

/**
 * Quotes text in a message, with double quotes and escaped line ends. Leaves out the middle of a text with more than about `longest`
 * characters.
 */
export function quoted(text: string, longest = 80): string {
  const half = Math.floor(longest / 2)
  const short = text.length <= longest ? text : `${text.slice(0, half)} ... ${text.slice(-half)}`
  return JSON.stringify(short)
}
