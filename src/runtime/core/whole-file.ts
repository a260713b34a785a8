/** Files that are there whole or not at all, whatever ends the process meanwhile. */
import { randomBytes } from 'node:crypto'
import { rename, rm } from 'node:fs/promises'

/**
 * `write` fills a file beside `path`, which then takes its place in one step. Of an earlier file all stays until then, and if `write` fails.
 * @throws what `write` throws, and the file system's errors; what was begun is removed
 */
export async function writeWhole(path: string, write: (temporary: string) => Promise<unknown>): Promise<void> {
  const temporary = `${path}.${randomBytes(6).toString('hex')}.part`
  try {
    await write(temporary)
    await rename(temporary, path)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => undefined)
    throw error
  }
}
