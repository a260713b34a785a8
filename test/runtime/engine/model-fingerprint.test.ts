/** Tests the fingerprint that tells the weights of model files apart. */
import { createHash } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { modelFingerprint } from '../../../src/runtime/engine/model-facts.js'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-fingerprint-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

const write = (name: string, text: string): string => {
  const path = join(folder, name)
  writeFileSync(path, text)
  return path
}

it('is the hash of the size and the bytes of a small file', async () => {
  const path = write('model.gguf', 'weights')
  expect(await modelFingerprint(path)).toEqual(createHash('sha256').update('7').update('weights').digest())
})

it('covers all parts of a split model, and needs none of a file that only has such a name', async () => {
  const first = write('model-00001-of-00003.gguf', 'one')
  const alone = await modelFingerprint(first)
  write('model-00002-of-00003.gguf', 'two')
  write('model-00003-of-00003.gguf', 'three')
  const whole = await modelFingerprint(first)
  expect(whole).not.toEqual(alone)
  write('model-00003-of-00003.gguf', 'other')
  expect(await modelFingerprint(first)).not.toEqual(whole)
})
