/**
 * Tests that a restore computes only one token under every contract, if some tier holds the state. Where none does, the ledger says why.
 */
import { describe, expect, it } from 'vitest'
import { CONTRACTS, type Contract } from '../../../src/runtime/core/contract.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { CacheHarness, missing, shownOf, type HarnessOptions } from './support/cache-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'
import { PromptDraft } from './support/prompt-draft.js'

/** Returns `count` tokens that occur in no other text. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 80)
const tail = text(300, 28)
const marker = [900, 901, 902]
/** How many tokens the whole conversation has. */
const LENGTH = 120

const conversation = () => new PromptDraft([system, long, tail], [1, 2])

const TIERS = {
  device: () => undefined,
  host: () => new OffloadTiers({ hostBytes: 1e6 }),
  disk: () => new OffloadTiers({ hostBytes: 1, disk: new NaiveDiskTier(1000, false) }),
} as const

type Tier = keyof typeof TIERS

class Stage {
  readonly harness: CacheHarness
  readonly prompt = conversation()
  readonly #offload: OffloadTiers | undefined

  constructor(contract: Contract, options: HarnessOptions = {}, offload?: OffloadTiers) {
    this.#offload = offload
    this.harness = new CacheHarness({
      ...options,
      options: { ...options.options, ...(offload === undefined ? {} : { offload }) },
    })
    this.harness.terms = { contract, ...(contract === 'blend' ? { blend: { first: 5 } } : {}) }
  }

  async show(generated: readonly number[] = [], shown: Prompt = this.prompt.shown, name = 'a'): Promise<LedgerEntry> {
    const running = (await this.harness.fetch(name, shown)) ?? expect.fail('no sequence')
    while (missing(running) > 0) expect(this.harness.decode(running, 16)).toBe(true)
    for (const token of generated) expect(this.harness.decode(running, Int32Array.of(token))).toBe(true)
    const entry = this.harness.finish(name)
    await this.#offload?.settle()
    return entry
  }
}

const stage = (contract: Contract, cells: number, tier: Tier, fixed = false) =>
  new Stage(contract, { cells, fixed }, TIERS[tier]())

describe.each(CONTRACTS)('a restore under %s', (contract) => {
  // With the device alone, it must have room for both states.
  const rooms = [1, 1.3, 2, 4].flatMap((times) =>
    (['device', 'host', 'disk'] as const).filter((tier) => tier !== 'device' || times >= 2).map((tier) => ({ times, tier })),
  )

  it.each(rooms)('computes one token in $times times the cells of the conversation: $tier', async ({ times, tier }) => {
    for (const [start, end] of [
      [12, 20],
      [20, 80],
      [60, 90],
      [0, 10],
    ] as const) {
      const { harness, prompt, show } = bound(stage(contract, Math.ceil(times * LENGTH), tier))
      await show()
      prompt.fold(start, end, marker)
      await show()
      if (tier !== 'device') while (await harness.tidy(0));
      prompt.restore(start)
      const entry = await show()
      expect(entry, `[${start}, ${end})`).toMatchObject({ submitted: 1, approximate: 0, recomputeReason: null, fallback: null })
      // Then the fold is made again.
      prompt.fold(start, end, marker)
      expect((await show()).submitted, `[${start}, ${end}) again`).toBe(1)
    }
  })

  it.each(rooms)('of several folds, in any order, in $times times the cells: $tier', async ({ times, tier }) => {
    if (contract !== 'exact' || times < 2) return
    for (const order of [
      [12, 40, 85],
      [85, 40, 12],
    ]) {
      const { harness, prompt, show } = bound(stage(contract, Math.ceil(times * LENGTH), tier))
      await show()
      for (const start of order) {
        prompt.fold(start, start + 20, marker)
        await show()
      }
      if (tier !== 'device') while (await harness.tidy(0));
      for (const start of order) prompt.restore(start)
      const entry = await show()
      if (entry.evicted === 0) expect(entry, order.join()).toMatchObject({ submitted: 1, approximate: 0 })
    }
  })

  it.each([true, false])('after a fold with a longer marker takes the parked exact state (fixed: %s)', async (fixed) => {
    for (const times of [1, 1.3, 4]) {
      const { prompt, show } = bound(stage(contract, Math.ceil(times * LENGTH) + 1, 'host', fixed))
      await show()
      prompt.fold(30, 32, marker)
      // If the model's keys can be shifted, the tokens after the marker are not recomputed; blend recomputes a share.
      if (fixed || contract === 'exact') expect(await show()).toMatchObject({ contract: 'exact', approximate: 0 })
      else if (contract === 'splice') expect(await show()).toMatchObject({ contract, submitted: 4, recomputed: 0 })
      else expect(await show()).toMatchObject({ contract, fallback: null })
      prompt.restore(30)
      expect(await show()).toMatchObject({ submitted: 1, approximate: 0, recomputeReason: null })
    }
  })

  it('after such a fold and an answer computes no more than the answer', async () => {
    const { prompt, show } = bound(stage(contract, 4 * LENGTH, 'host'))
    await show()
    prompt.fold(30, 32, marker)
    await show([50, 51, 52])
    prompt.say([50, 51, 52, 3], text(400, 5))
    prompt.restore(30)
    // The answer and its opening were computed with the marker in sight.
    const entry = await show()
    expect(entry.submitted).toBeLessThanOrEqual(4 + 5 + 2)
    // Exact recomputes them. The other contracts keep the cells and report them as approximate.
    expect([entry.contract, entry.approximate > 0]).toEqual([contract, contract !== 'exact'])
  })
})

describe('a restore in a tight cache', () => {
  it('evicts nothing of other running steps: it recomputes, and the ledger says that there was no room', async () => {
    const { harness, prompt, show } = bound(stage('exact', 190, 'host'))
    await show()
    prompt.fold(12, 20, marker)
    await show()
    const other = (await harness.fetch('b', shownOf(text(1000, 40))))!
    expect(harness.decode(other, 40)).toBe(true)
    expect(harness.decode(other, Int32Array.from(text(2000, 30)))).toBe(true)
    prompt.restore(12)
    const entry = await show()
    expect(entry).toMatchObject({ contract: 'exact', approximate: 0 })
    if (entry.submitted > 1) expect(entry.recomputeReason).toMatch(/108 tokens: .*no room/)
    harness.finish('b')
  })

  it('whose saved state is damaged loses nothing else', async () => {
    const offload = new OffloadTiers({ hostBytes: 1e6 })
    const s = bound(new Stage('exact', { cells: 130 }, offload))
    await s.show()
    s.prompt.fold(12, 20, marker)
    await s.show()
    for (const { place } of offload.all) if (place.tier === 'host') (place.state as Uint8Array).fill(7)
    s.prompt.restore(12)
    const entry = await s.show()
    expect(entry).toMatchObject({ submitted: 108, approximate: 0 })
    expect(entry.recomputeReason).toContain('damaged')
    s.prompt.fold(12, 20, marker)
    // The cells that the live sequence gave up for the restore were saved.
    expect(await s.show()).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('reports that no tier holds its tokens', async () => {
    const { prompt, show } = bound(stage('exact', 130, 'device'))
    await show()
    prompt.fold(12, 20, marker)
    await show()
    prompt.restore(12)
    const entry = await show()
    expect(entry).toMatchObject({ submitted: 108, approximate: 0 })
    expect(entry.recomputeReason).toContain('8 tokens: no cache tier holds them; 100 tokens: contract exact')
  })
})

describe('the reason for recomputed tokens', () => {
  it('is given for an exact fold', async () => {
    const { prompt, show } = bound(stage('exact', 400, 'device'))
    expect(await show([50])).toMatchObject({ recomputeReason: null })
    prompt.fold(20, 80, marker)
    expect((await show()).recomputeReason).toContain('40 tokens: contract exact')
  })

  it('is not given for new text or a splice', async () => {
    const { prompt, show } = bound(stage('splice', 400, 'device'))
    await show([50])
    prompt.say([50, 3], text(400, 9))
    expect(await show()).toMatchObject({ recomputeReason: null })
    prompt.fold(20, 80, marker)
    expect(await show()).toMatchObject({ submitted: 4, recomputeReason: null })
  })

  it('is given for a splice that has too few positions', async () => {
    const { prompt, show } = bound(stage('splice', 400, 'device', true))
    await show()
    prompt.fold(60, 80, [903])
    await show()
    prompt.fold(20, 22, marker)
    const entry = await show()
    expect(entry).toMatchObject({ contract: 'splice', fallback: null, recomputed: 38 + 1 })
    expect(entry.recomputeReason).toContain('39 tokens: earlier text of the prompt now takes')
  })

  it('is given for a blend', async () => {
    const { harness, prompt, show } = bound(stage('blend', 400, 'device'))
    harness.terms = { contract: 'blend', blend: { first: 5 } }
    await show()
    prompt.fold(20, 80, marker)
    expect((await show()).recomputeReason).toContain('5 tokens: blend')
  })
})

const bound = (of: Stage) => ({ harness: of.harness, prompt: of.prompt, show: of.show.bind(of) })
