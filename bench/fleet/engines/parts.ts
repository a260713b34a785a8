/** Finds the routers and engines of other projects that scripts/engine-parts.mjs installs. */
import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

export const partsFolder = (): string => process.env['KVFOLD_ENGINE_PARTS'] ?? join(homedir(), '.cache', 'kvfold', 'engines')

export const pythonOf = (venv: string): string => join(partsFolder(), venv, 'bin', 'python')

/** Returns a sentence about the first missing file; null if all exist. */
export const lacks = (...files: readonly string[]): string | null => {
  const file = files.find((each) => !existsSync(each))
  return file === undefined ? null : `${file} is not there; scripts/engine-parts.mjs makes it`
}
