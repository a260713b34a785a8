import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { writeWhole } from '../../../src/runtime/core/whole-file.js'

describe('a file that is written whole or not at all', () => {
  let folder: string
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvfold-whole-'))
  })
  afterEach(() => {
    rmSync(folder, { recursive: true })
  })

  it('replaces the earlier file when it is complete, not before', async () => {
    const path = join(folder, 'file')
    writeFileSync(path, 'old')
    await writeWhole(path, async (temporary) => {
      await writeFile(temporary, 'ne')
      expect(readFileSync(path, 'utf8')).toBe('old')
      await writeFile(temporary, 'new')
    })
    expect(readFileSync(path, 'utf8')).toBe('new')
    expect(readdirSync(folder)).toEqual(['file'])
  })

  it('leaves only the earlier file when writing fails', async () => {
    const path = join(folder, 'file')
    writeFileSync(path, 'old')
    const failed = writeWhole(path, async (temporary) => {
      await writeFile(temporary, 'half')
      throw new Error('no space')
    })
    await expect(failed).rejects.toThrow('no space')
    expect(readFileSync(path, 'utf8')).toBe('old')
    expect(readdirSync(folder)).toEqual(['file'])
  })

  it('keeps writers apart: the file of the last one to finish stays', async () => {
    const path = join(folder, 'file')
    let end = (): void => undefined
    const other = new Promise<void>((resolve) => (end = resolve))
    const slow = writeWhole(path, async (temporary) => {
      await writeFile(temporary, 'slow')
      await other
    })
    await writeWhole(path, (temporary) => writeFile(temporary, 'quick'))
    expect(readFileSync(path, 'utf8')).toBe('quick')
    end()
    await slow
    expect(readFileSync(path, 'utf8')).toBe('slow')
  })
})
