/** Unpacks results of conversation operations in tests. */
import type { Result } from '../../src/runtime/context/refusal.js'

/** Returns the result; throws the refusal's message if the operation was refused. */
export function granted<T extends object>(result: Result<T>): { readonly ok: true } & T {
  if (!result.ok) throw new Error(`Refused: ${result.message}`)
  return result
}

/** Returns the refusal's message; throws if the operation was carried out. */
export function refused(result: Result<object>): string {
  if (result.ok) throw new Error('This should have been refused.')
  return result.message
}
