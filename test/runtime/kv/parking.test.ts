/**
 * Tests when parked cells are offloaded because they slow decodes down, when they stay, and which step the ledger charges; case by case.
 */
import { describe, expect, it } from 'vitest'
import { FORGOTTEN } from '../../../src/runtime/core/contract.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { isWorthMoving } from '../../../src/runtime/kv/tier-policy.js'
import type { TierRates } from '../../../src/runtime/kv/cost-model.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { CacheHarness, missing, shownOf, type HarnessOptions } from './support/cache-harness.js'
import { NaiveDiskTier } from './support/naive-disk-tier.js'
import { PromptDraft } from './support/prompt-draft.js'

const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 60)
const tail = text(300, 15)
const marker = [900, 901, 902]
/** Returns the bytes of a saved sequence in this memory: a header, and 16 for each cell. */
const bytesOf = (cells: number): number => 8 + 16 * cells

/** A cell's copies, there and back, take as long as 100 tokens take to pass over it, as on one thread of a CPU. */
const RATES: TierRates = {
  host: { saveBytesPerSecond: 1000 / 50, loadBytesPerSecond: 1000 / 50, bytesPerCell: 1 },
  scanned: { prefill: 1, decode: 1 },
}
const COSTS = { model: null, rates: RATES }

const step = async (harness: CacheHarness, name: string, shown: Prompt, isMoving = false): Promise<LedgerEntry> => {
  const running = (await harness.fetch(name, shown)) ?? expect.fail('no sequence')
  if (isMoving) await harness.moveOn()
  while (missing(running) > 0) expect(harness.decode(running, 50)).toBe(true)
  return harness.finish(name)
}

interface Parked extends HarnessOptions {
  readonly offload?: OffloadTiers
  /** How many tokens are folded, from place 15 on. */
  readonly fold?: number
}

/**
 * A conversation of 87 tokens, most of them folded under `splice`: 40 cells are live and 51 parked. From 30 parked cells on, they may be
 * offloaded.
 */
const parked = async ({ offload = new OffloadTiers({ hostBytes: 1e6 }), fold = 50, ...options }: Parked = {}) => {
  const harness = new CacheHarness({ ...options, options: { offload, fewest: 30, costs: COSTS, ...options.options } })
  harness.terms = { contract: 'splice' }
  const prompt = new PromptDraft([system, long, tail], [1, 2])
  await step(harness, 'a', prompt.shown)
  prompt.fold(15, 15 + fold, marker)
  expect(await step(harness, 'a', prompt.shown)).toMatchObject({ contract: 'splice', parked: fold + 1, moved: 0 })
  return { harness, prompt }
}

/** What was done, call by call, until there was nothing to do any more. */
const tidied = async (harness: CacheHarness): Promise<string[]> => {
  const done: string[] = []
  for (;;) {
    const { loaded, saved } = harness.memory.moves
    if (!(await harness.tidy(1))) return done
    done.push(harness.memory.moves.loaded > loaded ? 'gathered' : harness.memory.moves.saved > saved ? 'moved' : 'nothing')
  }
}

describe('while the engine is idle', () => {
  it('parked cells are offloaded and the rest is gathered; the next step reports it, and a restore computes nothing', async () => {
    const { harness, prompt } = await parked()
    expect(await tidied(harness)).toEqual(['moved', 'gathered'])
    expect(harness.cache.totals).toMatchObject({
      used: 40,
      reach: 40,
      parked: 0,
      versions: 0,
      tiers: { host: { tokens: 51 }, lost: 0 },
    })
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ submitted: 1, moved: 51, evicted: 0 })
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ moved: 0 })
    prompt.restore(15)
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0, tiers: { host: 50 }, moved: 0 })
    expect(harness.cache.totals.tiers.host.tokens).toBe(0)
  })

  it('under exact, too, where the old text after the fold is parked with it', async () => {
    const harness = new CacheHarness({ options: { offload: new OffloadTiers({ hostBytes: 1e6 }), fewest: 30, costs: COSTS } })
    const prompt = new PromptDraft([system, long, tail], [1, 2])
    await step(harness, 'a', prompt.shown)
    prompt.fold(15, 65, marker)
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ contract: 'exact', parked: 72 })
    expect(await tidied(harness)).toEqual(['moved', 'gathered'])
    prompt.restore(15)
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ recomputed: 0, submitted: 1, moved: 72, tiers: { host: 71 } })
  })

  it('a few cells stay, and few beside many', async () => {
    expect(await tidied((await parked({ fold: 29 })).harness)).toEqual([])
    // 30 parked, 60 live.
    expect(await tidied((await parked({ fold: 30 })).harness)).toEqual([])
  })

  it('they stay where nothing was measured', async () => {
    const { harness } = await parked({ options: { costs: { model: null, rates: null } } })
    expect(await tidied(harness)).toEqual([])
    expect(harness.memory.moves).toEqual({ saved: 0, loaded: 0 })
  })

  it('without tiers they stay', async () => {
    const { harness, prompt } = await parked({ offload: new OffloadTiers({}) })
    expect(await tidied(harness)).toEqual([])
    expect(harness.memory.moves).toEqual({ saved: 0, loaded: 0 })
    prompt.restore(15)
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ submitted: 1, sources: { parked: 50 } })
  })

  it('parked cells stay if their offload would lose other sequences; this is tried once', async () => {
    const { harness } = await parked({ offload: new OffloadTiers({ hostBytes: bytesOf(49) }) })
    // It is copied and not taken.
    expect(await tidied(harness)).toEqual(['moved'])
    expect(await tidied(harness)).toEqual([])
    expect(harness.memory.moves.saved).toBe(1)
    expect(harness.cache.totals).toMatchObject({ parked: 51, tiers: { host: { tokens: 0 }, lost: 0 } })
  })

  it('with a disk tier, other sequences move to disk instead', async () => {
    const offload = new OffloadTiers({ hostBytes: bytesOf(70), disk: new NaiveDiskTier(9) })
    const { harness, prompt } = await parked({ offload })
    expect(await tidied(harness)).toEqual(['moved', 'gathered'])
    prompt.add(text(400, 60))
    await step(harness, 'a', prompt.shown)
    prompt.fold(85, 145, marker)
    await step(harness, 'a', prompt.shown)
    // The first answer's beginning, which now stands elsewhere, goes with it.
    expect(await tidied(harness)).toEqual(['moved', 'moved', 'gathered'])
    await offload.settle()
    const { host, disk, lost } = harness.cache.totals.tiers
    expect([host.tokens + disk.tokens, lost]).toEqual([51 + 2 + 61, 0])
    expect(host.bytes).toBeLessThanOrEqual(bytesOf(70))
    expect(disk.tokens).toBeGreaterThanOrEqual(50)
    prompt.restore(15)
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ recomputed: 0, tiers: { disk: 50 } })
  })

  it('cells that the last step borrowed from stay for the next one', async () => {
    const { harness, prompt } = await parked()
    prompt.fold(15, 52, [910])
    // A part of the fold is shown again, so the rest may be next.
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ sources: { parked: 13 } })
    expect(await tidied(harness)).toEqual([])
    await step(harness, 'a', prompt.shown)
    // With it goes the first marker.
    expect(await tidied(harness)).toEqual(['moved', 'moved', 'gathered'])
    prompt.restore(15)
    // The step before computed its own cells for the other 13 tokens.
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ recomputed: 0, submitted: 1, tiers: { host: 37 } })
  })

  it('parked cells that another conversation holds stay, because nothing would become free', async () => {
    const { harness, prompt } = await parked()
    await step(harness, 'b', shownOf([...prompt.base]))
    await step(harness, 'a', prompt.shown)
    expect(await tidied(harness)).toEqual([])
    harness.forget('b')
    expect(await tidied(harness)).toEqual(['moved', 'gathered'])
  })

  it('what a running conversation parked may go, and the rest is gathered when its step has ended', async () => {
    const { harness, prompt } = await parked()
    const running = (await harness.fetch('a', prompt.shown))!
    expect(await tidied(harness)).toEqual(['moved'])
    harness.decode(running, 1)
    harness.finish('a')
    expect(await tidied(harness)).toEqual(['gathered'])
  })

  it('forgetting a conversation between two calls leaves nothing to gather', async () => {
    const { harness } = await parked()
    expect(await harness.tidy(1)).toBe(true)
    harness.forget('a')
    expect(await tidied(harness)).toEqual([])
    expect(harness.cache.totals).toMatchObject({ used: 0, tiers: { host: { tokens: 0 } } })
  })
})

describe('when a step begins alone', () => {
  it('what earlier steps parked stays where it computes little, and goes between the decodes that follow, on its account', async () => {
    const { harness, prompt } = await parked({ relieves: true })
    const running = (await harness.fetch('a', prompt.shown))!
    expect(harness.cache.totals).toMatchObject({ parked: 51, tiers: { host: { tokens: 0 } } })
    await harness.moveOn()
    expect(harness.cache.totals).toMatchObject({ used: 39, parked: 0, tiers: { host: { tokens: 51 } } })
    harness.decode(running, 1)
    const entry = harness.finish('a')
    expect(entry).toMatchObject({ submitted: 1, moved: 51 })
    expect(entry.milliseconds.cache).toBeGreaterThan(0)
    expect(await tidied(harness)).toEqual(['gathered'])
  })

  it('what it parks itself goes before it computes, where what it computes passes over it as often as that takes', async () => {
    const harness = new CacheHarness({
      relieves: true,
      options: { offload: new OffloadTiers({ hostBytes: 1e6 }), fewest: 30, costs: COSTS },
    })
    const prompt = new PromptDraft([system, long, tail], [1, 2])
    await step(harness, 'a', prompt.shown)
    prompt.fold(15, 65, marker)
    prompt.add(text(400, 160))
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ contract: 'exact', parked: 72, moved: 72 })
    // Nothing is rewritten: the computed cells took the freed places.
    expect(harness.memory.moves).toEqual({ saved: 1, loaded: 0 })
    expect(harness.cache.totals).toMatchObject({ parked: 0, reach: harness.cache.totals.used })
  })

  it('cells that it borrows from stay', async () => {
    const { harness, prompt } = await parked({ relieves: true })
    prompt.restore(15)
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({
      submitted: 1,
      moved: 0,
      tiers: { host: 0 },
      sources: { parked: 50 },
    })
    expect(harness.memory.moves).toEqual({ saved: 0, loaded: 0 })
  })

  it('all cells stay while another step runs', async () => {
    const { harness, prompt } = await parked({ relieves: true })
    await harness.fetch('b', shownOf(text(500, 3)))
    expect(await step(harness, 'a', prompt.shown)).toMatchObject({ moved: 0 })
    expect(harness.cache.totals.parked).toBe(51)
  })
})

describe('what pays', () => {
  /** A token takes a microsecond for each cell that it passes over, and a copy half of one, each way. */
  const model: TierRates = {
    host: { saveBytesPerSecond: 2e8, loadBytesPerSecond: 2e8, bytesPerCell: 100 },
    scanned: { prefill: 0.001, decode: 0.001 },
  }
  const slow = { ...model, host: { ...model.host, saveBytesPerSecond: 4e5, loadBytesPerSecond: 4e5 } }

  const answers = { due: 0, ahead: 256 }

  it('if a few answers gain more than the copies there and back cost', () => {
    expect(isWorthMoving({ held: 5000, freed: 5000, live: 2000 }, answers, model)).toBe(true)
    // 256 tokens gain 1280 ms; the copies take half a millisecond for each cell.
    expect(isWorthMoving({ held: 5000, freed: 5000, live: 2000 }, answers, slow)).toBe(false)
    expect(isWorthMoving({ held: 2500, freed: 5000, live: 50 }, answers, slow)).toBe(true)
  })

  it('if the step that begins gains more by itself', () => {
    const load = { held: 5000, freed: 5000, live: 0 }
    // 600 tokens gain 3000 ms; the copies take 2500 ms.
    expect(isWorthMoving(load, { due: 600, ahead: 0 }, slow)).toBe(true)
    expect(isWorthMoving(load, { due: 400, ahead: 0 }, slow)).toBe(false)
  })

  it('is nothing where nothing was measured', () => {
    expect(isWorthMoving({ held: 5000, freed: 5000, live: 0 }, { due: 1e9, ahead: 1e9 }, null)).toBe(false)
  })

  it('is never a move that frees hardly anything', () => {
    expect(isWorthMoving({ held: 5000, freed: 1023, live: 0 }, answers, model)).toBe(false)
    expect(isWorthMoving({ held: 0, freed: 0, live: 0 }, answers, model, 0)).toBe(false)
  })
})

describe('text that is to be forgotten', () => {
  it('leaves the live cells although a client inserted it under splice', async () => {
    const harness = new CacheHarness({ options: { offload: new OffloadTiers({ hostBytes: 1e6 }) } })
    harness.terms = { contract: 'splice' }
    const header = [1, 2, 3]
    const secret = text(500, 20)
    const drawn = (tokens: readonly number[], origin: Prompt['origin']): Prompt => ({
      tokens: Int32Array.from(tokens),
      messages: [{ index: 0, role: 'user', span: { start: 0, end: tokens.length } }],
      ...(origin === undefined ? {} : { origin }),
    })
    const before = Int32Array.from([...system, ...header, ...long])
    await step(harness, 'a', drawn([...before], undefined))
    // The inserted message begins like the message that it stands before.
    const inserted = [...system, ...header, ...secret, ...header, ...long]
    const hole = { span: { start: 10, end: 11 }, marker: header.length + secret.length + 1 }
    await step(harness, 'a', drawn(inserted, { base: before, holes: [hole] }))
    expect([...harness.cache.live('a' as never)!.tokens]).toContain(secret[0])
    const base = Int32Array.from(inserted, (token) => (secret.includes(token) ? FORGOTTEN : token))
    const folded = drawn([...system, ...header, ...marker, ...header, ...long], {
      base,
      holes: [{ span: { start: 13, end: 13 + secret.length }, marker: marker.length }],
    })
    await harness.cache.forgetHidden('a' as never, folded)
    const { tokens, held } = harness.cache.live('a' as never)!
    expect([...tokens.subarray(0, held)]).toEqual(system)
  })

  it('waits for a file that is still written while its cells are on the device again', async () => {
    const disk = new NaiveDiskTier(10)
    const put = disk.put.bind(disk)
    let release = () => {}
    const gate = new Promise<void>((resolve) => (release = resolve))
    disk.put = async (...given) => {
      await gate
      return put(...given)
    }
    const harness = new CacheHarness({ cells: 64, options: { offload: new OffloadTiers({ hostBytes: 1, disk }) } })
    const shown = shownOf(text(200, 40), [1, 2])
    harness.step('a', shown)
    harness.step('b', shownOf(text(600, 50), [1, 2]))
    await step(harness, 'a', shown)
    const origin = { base: shown.tokens.map((token, at) => (at < 20 ? FORGOTTEN : token)), holes: [] }
    let isForgotten = false
    const forgetting = harness.cache.forgetHidden('a' as never, { ...shown, origin }).then(() => (isForgotten = true))
    await new Promise((resolve) => setTimeout(resolve, 5))
    expect(isForgotten).toBe(false)
    release()
    await forgetting
    expect(disk.items.filter(({ record }) => record.conversation === ('a' as never))).toEqual([])
  })
})
