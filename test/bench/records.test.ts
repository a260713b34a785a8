/** Records of the built-in model are of the weights that are shipped; what is of older ones is measured again or removed. */
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { builtinModel } from '../../src/cli/builtin.js'
import { modelFingerprint } from '../../src/engine/model-facts.js'

const FOLDER = new URL('../../bench/results/', import.meta.url)
const NAME = 'kvfold-tiny'

/** Every model that a record names with a hash. */
function modelsIn(value: unknown): { readonly name: unknown; readonly hash: unknown }[] {
  if (typeof value !== 'object' || value === null) return []
  const { name, sha256, fingerprint } = value as Record<string, unknown>
  const hash = sha256 ?? fingerprint
  return [...(hash === undefined ? [] : [{ name, hash }]), ...Object.values(value).flatMap(modelsIn)]
}

describe('records', () => {
  it('of the built-in model are of the shipped weights', async () => {
    const shipped = [
      createHash('sha256').update(readFileSync(builtinModel())).digest('hex'),
      (await modelFingerprint(builtinModel())).toString('hex'),
    ]
    const named = readdirSync(FOLDER)
      .filter((file) => file.endsWith('.json'))
      .flatMap((file) => modelsIn(JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8'))).map((model) => ({ file, ...model })))
      .filter(({ name }) => name === NAME)
    expect(named.length).toBeGreaterThanOrEqual(3)
    for (const { file, hash } of named)
      expect(shipped, `bench/results/${file} is of other weights: measure it again, or remove it`).toContain(hash)
  })
})
