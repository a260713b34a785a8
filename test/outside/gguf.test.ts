/**
 * Damaged GGUF files, taken by `model info` and by the server's way to a model: what stood its trial may not end those processes, hang or take all memory. The
 * long run takes 2,000 for each seed of KVFOLD_GGUF_SEEDS (default: 1, 2).
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { takeVariants, type Crash } from './gguf-pool.js'
import { LONG } from '../support/long.js'

const SEEDS = (process.env['KVFOLD_GGUF_SEEDS'] ?? '1,2').split(',').map(Number)
const SHORT = 40
const VARIANTS = 2000
let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-damaged-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const line = ({ seed, number, phase, how, what, said }: Crash): string => `${seed}/${number} ${phase}: ${how}; ${what}; ${said}`

async function survive(seed: number, count: number): Promise<void> {
  const numbers = Array.from({ length: count }, (_, number) => number)
  const { variants, works, refusals, thrown, ended, crashes } = await takeVariants(folder, seed, numbers, LONG ? 2 : 1)
  const refused = [...refusals.values()].reduce((sum, times) => sum + times, ended.length)
  if (LONG)
    console.log(
      `seed ${seed}: ${variants} variants, ${works} work, ${refused} refused in ${refusals.size} ways and by ${ended.length} trials that were ended, ${crashes.length} ended a process`,
    )
  expect(crashes.map(line)).toEqual([])
  expect(thrown).toEqual([])
  expect(works + refused).toBe(variants)
  // Else nothing was damaged, or nothing was left whole.
  expect(works).toBeGreaterThan(variants / 10)
  expect(refused).toBeGreaterThan(variants / 3)
}

test(`${SHORT} damaged models`, { timeout: 300_000 }, async () => {
  await survive(1, SHORT)
})

test.runIf(LONG).each(SEEDS)('2,000 damaged models of seed %i', { timeout: 3_600_000 }, async (seed) => {
  await survive(seed, VARIANTS)
})
