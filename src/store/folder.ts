/** Owns where the store is when nobody says. */
import { homedir } from 'node:os'
import { isAbsolute, join } from 'node:path'

/** `$XDG_STATE_HOME/kvfold`, by default `~/.local/state/kvfold`. */
export function stateFolder(environment: NodeJS.ProcessEnv = process.env): string {
  const given = environment['XDG_STATE_HOME']
  // The XDG specification has relative paths ignored.
  const base = given !== undefined && isAbsolute(given) ? given : join(homedir(), '.local', 'state')
  return join(base, 'kvfold')
}
