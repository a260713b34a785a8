/** Tests that another file of the GPU's library replaces the shipped one and computes the same. */
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { LibraryFiles } from '../../src/runtime/native/types.js'
import { decoding, runScript } from '../runtime/native/support/fixture.js'
import { TEST_GPU } from '../support/device.js'
import { tinyModel } from '../support/models.js'

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-library-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

interface Said {
  readonly files: LibraryFiles | null
  readonly devices: readonly string[]
  readonly logits: readonly number[]
}

/** Runs a process on this library of the GPU: a path, or `shipped`. */
async function said(library: string): Promise<Said> {
  const { code, stdout, stderr } = await runScript(`
    import { openNative } from 'kvfold/native/binding'
    process.env['KVFOLD_${TEST_GPU.toUpperCase()}_LIBRARY'] = ${JSON.stringify(library)}
    const { backend, loadModel } = await openNative({ gpu: '${TEST_GPU}' })
    ${decoding(await tinyModel())}
    const files = backend.libraries['${TEST_GPU}'] ?? null
    console.log(JSON.stringify({ files, devices: backend.devices, logits }))
    await model.dispose()`)
  expect(code, stderr).toBe(0)
  return JSON.parse(stdout) as Said
}

it('replaces the shipped one, and its devices are the same', async (context) => {
  const theirs = await said('shipped')
  // Metal is part of a library with everything else.
  if (theirs.files === null) {
    context.skip()
    return
  }
  expect(theirs.files.used).toBe(theirs.files.shipped)
  const copy = join(folder, basename(theirs.files.shipped))
  copyFileSync(theirs.files.shipped, copy)
  const ours = await said(copy)
  expect(ours.files?.used).toBe(copy)
  expect([...ours.devices].sort()).toEqual([...theirs.devices].sort())
  expect(ours.logits).toEqual(theirs.logits)
})
