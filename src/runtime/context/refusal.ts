/** Refusals: the outcome of an operation that could not be carried out, with a reason that a model can act on. */
import type { ErrorCode } from '../core/errors.js'
import type { LedgerEntry } from '../kv/ledger.js'

/** The operation changed nothing. `message` says why in one or two sentences, and what to do instead. */
export interface Refusal {
  readonly ok: false
  readonly code: Extract<
    ErrorCode,
    'tool/bad-arguments' | 'tool/unknown-id' | 'tool/refused' | 'tool/costs-more' | 'engine/cancelled'
  >
  readonly message: string
  /** Ledger entries of steps that ran before the refusal, for example those of a summary that came out empty. */
  readonly ledger?: readonly LedgerEntry[]
}

/** The outcome of an operation: its results, or a refusal. */
export type Result<T extends object> = ({ readonly ok: true } & T) | Refusal

export const refuse = (code: Refusal['code'], message: string): Refusal => ({ ok: false, code, message })

/** Joins items as `a`, `a and b`, `a, b and c`. The `and` shows a small model where the list ends. */
export function listed(items: readonly string[]): string {
  const last = items.at(-1) ?? ''
  return items.length < 2 ? last : `${items.slice(0, -1).join(', ')} and ${last}`
}

/** Quotes text for use in a message: double quotes, escaped line ends. A text longer than about `longest` characters loses its middle. */
export function quoted(text: string, longest = 80): string {
  const half = Math.floor(longest / 2)
  const short = text.length <= longest ? text : `${text.slice(0, half)} ... ${text.slice(-half)}`
  return JSON.stringify(short)
}
