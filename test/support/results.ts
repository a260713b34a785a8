/** Reads results of conversation operations in tests. */
import type { Result } from '../../src/runtime/context/refusal.js'

/** The results; throws the refusal's message when there are none. */
export function granted<T extends object>(result: Result<T>): { readonly ok: true } & T {
  if (!result.ok) throw new Error(`Refused: ${result.message}`)
  return result
}

/** The refusal's message; throws when the operation was carried out. */
export function refused(result: Result<object>): string {
  if (result.ok) throw new Error('This should have been refused.')
  return result.message
}
