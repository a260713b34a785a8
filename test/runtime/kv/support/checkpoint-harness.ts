/**
 * The harness of a cache that can only extend sequences. It checks the same rules as for every cache, over a memory that refuses all else.
 */
import { expect } from 'vitest'
import type { SeqId } from '../../../../src/runtime/core/ids.js'
import { type Span } from '../../../../src/runtime/core/span.js'
import type { KvCacheOptions } from '../../../../src/runtime/kv/cache.js'
import { CheckpointCache } from '../../../../src/runtime/kv/checkpoint-cache.js'
import type { KvMemory } from '../../../../src/runtime/kv/ports.js'
import type { StepPart } from '../../../../src/runtime/kv/step.js'
import { CacheHarness, type HarnessOptions, type Running } from './cache-harness.js'
import { Through } from './through.js'

/** Lets sequences be extended, emptied, saved and loaded whole. */
class Linear extends Through {
  override tag(): void {
    throw new Error('A recurrent state is shared by nobody.')
  }
  override untag(seq: SeqId, of: Span): void {
    const held = this.inner.positions(seq)
    if (held !== null && (of.start > held.min || of.end <= held.max)) throw new Error('A recurrent state has no middle.')
    super.untag(seq, of)
  }
  override get canShift() {
    return false
  }
  override shift(): void {
    throw new Error('A recurrent state has no positions to shift.')
  }
  override readback(): never {
    throw new Error('A recurrent state is no table of cells.')
  }
}

const REFUSAL = 'the model keeps a recurrent state'

export class CheckpointHarness extends CacheHarness {
  readonly #lost = new WeakSet<Running>()

  constructor({ options, ...rest }: Omit<HarnessOptions, 'cache' | 'wrap'> = {}) {
    super({
      ...rest,
      wrap: (memory) => new Linear(memory),
      cache: class extends CheckpointCache {
        constructor(memory: KvMemory, { offload }: KvCacheOptions = {}) {
          super(memory, { refusal: REFUSAL, ...(offload === undefined ? {} : { offload }) })
        }
      },
      ...(options === undefined ? {} : { options }),
    })
  }

  override isLost(running: Running): boolean {
    return this.#lost.has(running)
  }

  /** An aborted decode spoils the state: the sequence is empty, and the step can only be cancelled. */
  protected override settle(running: Running, tokens: Int32Array, what: StepPart, entered: number): number {
    expect(this.cache.settle(running.step, tokens, what)).toBe(0)
    if (entered > 0) {
      running.present.fill(false)
      running.generated.length = 0
      this.#lost.add(running)
      expect(this.memory.positions(running.sequence.seq)).toBeNull()
    }
    return 0
  }

  /** A checkpoint replaces all cells of the sequence. */
  protected override expectGivenWay(): number {
    return 0
  }

  /** Checks that no more is computed than the tokens after the sequence's own beginning; the last token always is. */
  protected override expectBest({ plan, present, shown, sequence }: Running): void {
    expect([plan.contract, plan.redecoded, plan.approximate]).toEqual(['exact', 0, 0])
    expect(plan.fallback).toBe(plan.asked === 'exact' ? null : REFUSAL)
    expect(present.at(-1)).toBe(false)
    const reused = present.indexOf(false)
    expect(present.slice(reused)).not.toContain(true)
    expect(this.memory.sequence(sequence.seq).map(({ token }) => token)).toEqual([...shown.tokens.subarray(0, reused)])
  }

  /** Cells that left the sequence are in the tiers, which the memory does not know. */
  protected override expectParked({ step }: Running): void {
    expect(step.parked).toBeGreaterThanOrEqual(0)
  }
}
