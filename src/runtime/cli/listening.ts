/** The error of a command that cannot listen for clients. */
import { KvfoldError } from '../core/errors.js'

/** Makes the error for an address that cannot be listened on. `other`: what to choose when another program has the address. */
export function cannotListen(where: string, error: unknown, other = 'another port with --port, or 0 for any'): KvfoldError {
  const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
  const hint = code === 'EADDRINUSE' ? `another program listens there; choose ${other}` : code
  return new KvfoldError('cli/bad-usage', `Cannot listen on ${where}: ${hint}.`, { cause: error })
}
