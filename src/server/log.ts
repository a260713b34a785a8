/** Owns what the server's log may hold: who asked where, how it ended and how long it took, never what was said. */
import { KvfoldError } from '../core/errors.js'

export function logStream(write: (line: string) => void = (line) => process.stderr.write(line)): {
  write: (line: string) => void
} {
  return { write }
}

/** Messages of errors that clients see may quote what they sent: their code is enough. Others are ours to find. */
export function errorForLogs(error: Error): { type: string; message: string; stack: string } {
  if (error instanceof KvfoldError) return { type: error.name, message: error.code, stack: '' }
  if ('statusCode' in error && Number(error.statusCode) < 500)
    return { type: error.name, message: String((error as { code?: unknown }).code), stack: '' }
  return { type: error.name, message: error.message, stack: error.stack ?? '' }
}
