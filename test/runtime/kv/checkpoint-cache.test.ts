/**
 * Runs the step-cache suite on the cache for models that can only extend a text: with checkpoints in memory, on a damaging disk, and
 * without any.
 */
import { describe } from 'vitest'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { keepsStepCacheContract } from './step-cache.contract.js'
import { CheckpointHarness } from './support/checkpoint-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'

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

describe('without checkpoints', () => {
  keepsStepCacheContract({ make: (options) => new CheckpointHarness(options), meets: [...ALWAYS, 'evicted'], conversations: 100 })
})
