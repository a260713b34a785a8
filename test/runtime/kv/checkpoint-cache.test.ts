/**
 * Runs the step-cache suite on the cache for models that can only extend a text: with checkpoints in memory, on a damaging disk, and
 * without any.
 */
import { describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { keepsStepCacheContract } from './step-cache.contract.js'
import { shownOf } from './support/cache-harness.js'
import { CheckpointHarness } from './support/checkpoint-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'

/** Returns `count` tokens that occur in no other text. */
const run = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const ALWAYS = ['noCells', 'noSequence', 'cancelled', 'own'] as const

describe('with checkpoints in memory', () => {
  keepsStepCacheContract({
    make: (options) => new CheckpointHarness({ ...options, options: { offload: new OffloadTiers({ hostBytes: 1e6 }) } }),
    conversations: 100,
    meets: [...ALWAYS, 'parked', 'shared', 'moved', 'parks'],
  })
})

describe('with checkpoints on a disk that damages some', () => {
  keepsStepCacheContract({
    make: (options) =>
      new CheckpointHarness({
        ...options,
        options: { offload: new OffloadTiers({ hostBytes: 1000, disk: new NaiveDiskTier(9) }) },
      }),
    conversations: 100,
    meets: [...ALWAYS, 'parked', 'shared', 'moved', 'parks'],
  })
})

it('goes on without checkpoints while there is no memory for them', () => {
  const harness = new CheckpointHarness({ cells: 100, sequences: 10, options: { offload: new OffloadTiers({ hostBytes: 1e6 }) } })
  harness.memory.saveSequence = () => {
    throw new KvfoldError('memory/insufficient', 'There is no memory for that.')
  }
  harness.step('a', shownOf(run(1000, 20), run(2000, 10)))
  expect(harness.step('b', shownOf(run(5000, 90)))).toMatchObject({ fresh: 90, evicted: 30 })
  expect(harness.step('a', shownOf(run(1000, 20), run(2000, 10)))).toMatchObject({ reused: 0, recomputed: 30 })
})

describe('without checkpoints', () => {
  keepsStepCacheContract({ make: (options) => new CheckpointHarness(options), meets: [...ALWAYS, 'evicted'], conversations: 100 })
})
