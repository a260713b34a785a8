/** Writes files that are complete or absent, even if the process dies while it writes. */
import { randomBytes } from 'node:crypto'
import { rename, rm } from 'node:fs/promises'

/**
 * Lets `write` fill a temporary file, and then renames it to `path`. An earlier file at `path` stays complete until then, also if `write`
 * fails.
 * @throws errors of `write` and of the file system; the temporary file is removed
 */
export async function writeWhole(
  path: string,
  write: (temporary: string) => Promise<unknown>,
  temporary = `${path}.${randomBytes(6).toString('hex')}.part`,
): Promise<void> {
  try {
    await write(temporary)
    await rename(temporary, path)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => undefined)
    throw error
  }
}
