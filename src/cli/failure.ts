/** Owns how errors reach the person: one line on stderr, an exit code, a stack only on request. */
import { KvfoldError } from '../core/errors.js'
import { printable } from './ansi.js'

export const FAILED = 1
export const BAD_USAGE = 2

/** The line for an error, without the newline; with KVFOLD_DEBUG=1 its stack and causes follow. */
export function describe(error: unknown, debug = process.env['KVFOLD_DEBUG'] === '1'): string {
  const line =
    error instanceof KvfoldError
      ? `kvfold: ${oneLine(error.message)} [${error.code}]`
      : `kvfold: ${oneLine(error instanceof Error ? error.message : String(error))} [unexpected; KVFOLD_DEBUG=1 shows where]`
  return debug && error instanceof Error ? `${line}\n${stacks(error)}` : line
}

export const exitCode = (error: unknown): number =>
  error instanceof KvfoldError && error.code === 'cli/bad-usage' ? BAD_USAGE : FAILED

const oneLine = (text: string): string => printable(text.replace(/\s*\n\s*/g, ' ').trim())

function stacks(error: Error): string {
  const own = error.stack ?? error.message
  return error.cause instanceof Error ? `${own}\ncaused by: ${stacks(error.cause)}` : own
}
