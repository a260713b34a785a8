/** Folders that tests write to. */
import { randomUUID } from 'node:crypto'
import { mkdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll } from 'vitest'

/**
 * Returns the path of a folder that is there while the tests of this file, or of this `describe`, run. Hooks that are registered later run
 * while it is there.
 */
export function temporaryFolder(name: string): string {
  const folder = join(tmpdir(), `kvfold-${name}-${randomUUID()}`)
  beforeAll(() => {
    mkdirSync(folder)
  })
  afterAll(() => {
    rmSync(folder, { recursive: true })
  })
  return folder
}
