/** Owns the way of errors from the addon to the caller: they arrive as "code\nsentence" and leave as KvfoldError. */
import { KvfoldError, errorTable, type ErrorCode } from '../core/errors.js'

const isCode = (text: string): text is ErrorCode => Object.hasOwn(errorTable, text)

/** The KvfoldError that the addon meant; anything else as it is. */
export function translated(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const [code = '', ...sentence] = error.message.split('\n')
  return isCode(code) ? new KvfoldError(code, sentence.join(' '), { cause: error }) : error
}

/** The error that the addon's words mean. */
export const meant = (words: string): Error => translated(new Error(words)) as Error

/** Runs a synchronous call into the addon. */
export function calling<T>(call: () => T): T {
  try {
    return call()
  } catch (error) {
    throw translated(error)
  }
}

/** Awaits an asynchronous call into the addon. */
export async function awaiting<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (error) {
    throw translated(error)
  }
}

/** Throws `native/bad-argument` with the sentence. */
export function refuse(sentence: string): never {
  throw new KvfoldError('native/bad-argument', sentence)
}

/** Throws `native/bad-argument` for a token outside of the vocabulary. */
export function refuseForeign(token: number, vocabulary: number): void {
  if (!Number.isInteger(token) || token < 0 || token >= vocabulary)
    refuse(`Token ${token} is not in the vocabulary of ${vocabulary}.`)
}
