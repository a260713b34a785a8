/** Splice, blend, refresh, compaction, closed gaps and the host tier on a real model, against fresh prefills and against llama.cpp driven by hand. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { conversationId, seqId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine, type Completion, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { boundOnDevice } from '../../support/noise.js'
import { decodeInto, firstPrediction, freshPrediction, largestDifference, logSoftmax } from '../../support/predictions.js'

const SETTINGS = { cells: 2048, sequences: 12, threads: 1, batchThreads: 1, flashAttention: 'off' } as const
const SPLICE: StepContract = { contract: 'splice' }
const EXACT: StepContract = { contract: 'exact' }
const ID = conversationId('c')
/** Without flash attention, what chunking and neighbours change (exact.test.ts measures 3e-4 at most on a CPU). */
let floor = 1e-3
/** The same with flash attention, whose cells are of 16 bits, and for keys of three digits. */
let flashFloor = 2e-2
let coarseFloor = 3e-2

interface Hole {
  readonly start: number
  readonly end: number
  readonly marker: Int32Array
}

let native: Native
let engine: LlamaEngine

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  const { flashAttention } = SETTINGS
  floor = await boundOnDevice(native, await tinyModel(), { flashAttention }, floor)
  flashFloor = await boundOnDevice(native, await tinyModel(), { flashAttention: 'on' }, flashFloor)
  coarseFloor = await boundOnDevice(native, await tinyModel(), { flashAttention, keyType: 'bf16' }, coarseFloor)
})
afterEach(() => engine.dispose())

async function load(options: LlamaEngineOptions = {}): Promise<void> {
  engine = await LlamaEngine.load(native, await tinyModel(), { ...SETTINGS, ...options })
}

const text = (count: number, salt: number): Int32Array =>
  Int32Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104729) % (engine.modelInfo.vocabulary - 300)))

function folded(base: Int32Array, holes: readonly Hole[]): Pick<Completion, 'tokens' | 'origin'> {
  const tokens: number[] = []
  let at = 0
  for (const { start, end, marker } of holes) {
    tokens.push(...base.subarray(at, start), ...marker)
    at = end
  }
  tokens.push(...base.subarray(at))
  const origin = { base, holes: holes.map(({ start, end, marker }) => ({ span: { start, end }, marker: marker.length })) }
  return { tokens: Int32Array.from(tokens), origin }
}

/** Shows this and samples one token; the ledger entry, and log-probabilities of the next token. */
async function show(base: Int32Array, holes: readonly Hole[], terms: StepContract, conversation = ID) {
  const { ledger, logprobs } = await engine.complete({
    conversation,
    ...folded(base, holes),
    terms,
    maxTokens: 1,
    logprobs: engine.modelInfo.vocabulary,
  })
  await engine.check('full')
  return { ledger, next: firstPrediction(logprobs, engine.modelInfo.vocabulary) }
}

describe('splice', () => {
  it('computes the marker and leaves what follows as it was; the restore is exact and computes nothing', async () => {
    await load()
    const base = text(900, 1)
    const before = await show(base, [], SPLICE)
    const hole = { start: 200, end: 700, marker: text(12, 2) }
    const there = await show(base, [hole], SPLICE)
    expect(there.ledger).toMatchObject({
      contract: 'splice',
      fallback: null,
      submitted: 13,
      recomputed: 0,
      fresh: 12,
      side: 1,
      parked: 501,
    })
    expect(there.ledger.approximate).toBe(200)
    expect(there.ledger.positions).toBe(900)
    const back = await show(base, [], SPLICE)
    expect(back.ledger).toMatchObject({
      submitted: 1,
      side: 1,
      approximate: 0,
      reused: 900,
      sources: { own: 400, parked: 500, shared: 0 },
    })
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
    // Folded again, the marker is there already.
    expect((await show(base, [hole], SPLICE)).ledger.submitted).toBe(1)
  })

  it('predicts what llama.cpp predicts when the splice is made by hand', async () => {
    await load()
    const base = text(600, 3)
    const marker = text(9, 4)
    await show(base, [], SPLICE)
    const { next } = await show(base, [{ start: 100, end: 400, marker }], SPLICE)
    const model = await native.loadModel(await tinyModel())
    const context = await model.createContext(SETTINGS)
    await decodeInto(context, 0, 0, base.slice(0, 599))
    context.untag(seqId(0), { start: 100, end: 400 })
    context.tag(seqId(0), seqId(1), { start: 0, end: 100 })
    await decodeInto(context, 1, 100, marker)
    context.tag(seqId(1), seqId(0), { start: 100, end: 109 })
    await decodeInto(context, 0, 599, base.slice(599))
    expect(largestDifference(next, logSoftmax(context.logits(0)))).toBeLessThan(floor)
    await model.dispose()
  })

  it('marks what was decoded while text was hidden, until the conversation is exact again', async () => {
    await load()
    const base = text(500, 5)
    const hole = { start: 100, end: 300, marker: text(8, 6) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    const longer = Int32Array.from([...base, ...text(40, 7)])
    expect((await show(longer, [hole], SPLICE)).ledger).toMatchObject({ submitted: 40, approximate: 240 })
    // Restored: the 40 tokens still carry what they did not see.
    expect((await show(longer, [], SPLICE)).ledger).toMatchObject({ submitted: 1, approximate: 40, recomputed: 0 })
    const exact = await show(longer, [], EXACT)
    expect(exact.ledger).toMatchObject({ approximate: 0, recomputed: 40 })
    expect(largestDifference(exact.next, await fresh(longer))).toBeLessThan(floor)
  })

  it('computes a marker that is longer than what it hides alone: what follows is copied, and the restore is exact and free', async () => {
    for (const flashAttention of ['on', 'off'] as const) {
      await load({ flashAttention })
      const base = text(600, 8)
      const before = await show(base, [], SPLICE)
      const hole = { start: 100, end: 110, marker: text(20, 9) }
      const there = await show(base, [hole], SPLICE)
      const said = { contract: 'splice', fallback: null, submitted: 21, fresh: 20, recomputed: 0, side: 1, turned: 489 }
      expect(there.ledger).toMatchObject({ ...said, parked: 500, approximate: 490, positions: 610 })
      const back = await show(base, [], SPLICE)
      expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0, turned: 0, positions: 600 })
      expect(largestDifference(back.next, before.next)).toBeLessThan(flashAttention === 'on' ? flashFloor : floor)
      expect((await show(base, [hole], SPLICE)).ledger).toMatchObject({ submitted: 1, approximate: 490 })
      if (flashAttention === 'on') await engine.dispose()
    }
  })

  it('copies what stands between a short fold and an earlier long one, whose gap takes it up', async () => {
    await load()
    const base = text(600, 40)
    const before = await show(base, [], SPLICE)
    const long = { start: 200, end: 400, marker: text(10, 41) }
    const short = { start: 100, end: 110, marker: text(20, 42) }
    await show(base, [long], SPLICE)
    const both = await show(base, [short, long], SPLICE)
    expect(both.ledger).toMatchObject({
      contract: 'splice',
      fallback: null,
      submitted: 21,
      recomputed: 0,
      turned: 100,
      positions: 600,
    })
    expect((await show(base, [long], SPLICE)).ledger).toMatchObject({ submitted: 1, turned: 0, approximate: 200 })
    const back = await show(base, [], SPLICE)
    expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0 })
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
  })

  it('predicts what llama.cpp predicts when cells are moved by hand', async () => {
    await load()
    const base = text(400, 43)
    const marker = text(20, 44)
    await show(base, [], SPLICE)
    const { next } = await show(base, [{ start: 100, end: 110, marker }], SPLICE)
    const model = await native.loadModel(await tinyModel())
    const context = await model.createContext(SETTINGS)
    await decodeInto(context, 0, 0, base.slice(0, 399))
    context.untag(seqId(0), { start: 100, end: 110 })
    context.shift(seqId(0), { start: 110, end: 399 }, 10)
    context.tag(seqId(0), seqId(1), { start: 0, end: 100 })
    await decodeInto(context, 1, 100, marker)
    context.tag(seqId(1), seqId(0), { start: 100, end: 120 })
    await decodeInto(context, 0, 409, base.slice(399))
    expect(largestDifference(next, logSoftmax(context.logits(0)))).toBeLessThan(floor)
    await model.dispose()
  })

  it('keeps what was copied through host memory', async () => {
    await load({ cells: 1024, hostBytes: 2 ** 28 })
    const base = text(450, 45)
    const hole = { start: 50, end: 60, marker: text(20, 46) }
    await show(base, [], SPLICE)
    const there = await show(base, [hole], SPLICE)
    await show(text(900, 47), [], EXACT, conversationId('d'))
    const again = await show(base, [hole], SPLICE)
    expect(again.ledger).toMatchObject({ submitted: 1, approximate: there.ledger.approximate })
    expect(again.ledger.tiers.host).toBeGreaterThan(400)
    expect(largestDifference(again.next, there.next)).toBeLessThan(floor)
    expect((await show(base, [], SPLICE)).ledger).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('falls back to exact where a marker is longer than what it hides and keys cannot be turned, and says so', async () => {
    await load({ keyType: 'bf16' })
    const base = text(300, 8)
    await show(base, [], SPLICE)
    const { ledger, next } = await show(base, [{ start: 100, end: 110, marker: text(20, 9) }], SPLICE)
    expect(ledger).toMatchObject({ contract: 'exact', approximate: 0 })
    expect(ledger.fallback).toMatch(/longer marker than the hidden text.*cannot be rotated/)
    expect(
      largestDifference(next, await fresh(folded(base, [{ start: 100, end: 110, marker: text(20, 9) }]).tokens)),
    ).toBeLessThan(coarseFloor)
  })

  it('never lends approximate cells to another conversation', async () => {
    await load()
    const base = text(400, 10)
    const hole = { start: 50, end: 200, marker: text(10, 11) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    const other = conversationId('other')
    const { ledger, next } = await show(base, [hole], SPLICE, other)
    // What stands before the hole, and the marker, are exact.
    expect(ledger.sources).toEqual({ own: 0, parked: 0, shared: 60 })
    expect(ledger.approximate).toBe(0)
    expect(largestDifference(next, await fresh(folded(base, [hole]).tokens))).toBeLessThan(floor)
  })
})

describe('blend', () => {
  it('computes as many tokens again as it was told to; with all of them it is exact', async () => {
    await load()
    const base = text(600, 12)
    for (const [share, recomputed] of [
      [0, 0],
      // Six runs of 16.
      [0.5, 96],
      // The last token is computed in any case.
      [1, 199],
    ] as const) {
      // Each time another marker, or what the last conversation computed would be lent.
      const hole = { start: 100, end: 400, marker: text(10, 50 + 10 * share) }
      const exact = await fresh(folded(base, [hole]).tokens)
      const id = conversationId(`share ${share}`)
      await show(base, [], EXACT, id)
      const terms: StepContract = { contract: 'blend', blend: { spread: share } }
      const { ledger, next } = await show(base, [hole], terms, id)
      expect(ledger).toMatchObject({ contract: 'blend', recomputed, side: 1 })
      if (share === 1) expect(largestDifference(next, exact)).toBeLessThan(floor)
      else expect(ledger.approximate).toBe(200)
    }
  })
})

describe('refresh', () => {
  it('makes a spliced conversation exact in slices, while another conversation is answered', async () => {
    await load({ ubatch: 64 })
    const base = text(900, 14)
    const hole = { start: 100, end: 300, marker: text(10, 15) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    const [{ exact, ledger }, meanwhile] = await Promise.all([
      engine.refresh(ID),
      show(text(50, 16), [], EXACT, conversationId('d')),
    ])
    expect(exact).toBe(true)
    expect(ledger.length).toBeGreaterThan(3)
    expect(ledger.every(({ kind }) => kind === 'refresh')).toBe(true)
    expect(meanwhile.ledger.kind).toBe('answer')
    const { ledger: after, next } = await show(base, [hole], SPLICE)
    expect(after).toMatchObject({ approximate: 0, submitted: 1 })
    expect(after.positions).toBe(after.shown)
    expect(largestDifference(next, await fresh(folded(base, [hole]).tokens))).toBeLessThan(floor)
    // And the hidden text is still there to be restored.
    expect((await show(base, [], SPLICE)).ledger).toMatchObject({ approximate: 0, submitted: 1 })
  })

  /** A spliced conversation. */
  const spliced = async (options: LlamaEngineOptions = {}) => {
    await load({ ubatch: 64, ...options })
    const base = text(900, 17)
    const hole = { start: 100, end: 200, marker: text(10, 18) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    return { base, hole }
  }

  it('can be interrupted before its first slice', async () => {
    await spliced()
    const controller = new AbortController()
    const running = engine.refresh(ID, { signal: controller.signal })
    controller.abort()
    expect(await running).toEqual({ exact: false, ledger: [] })
  })

  it('takes back no step of its conversation that runs meanwhile', async () => {
    await load({ ubatch: 64 })
    const base = text(300, 17)
    const hole = { start: 100, end: 220, marker: text(10, 18) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    const longer = Int32Array.from([...base, ...text(40, 19)])
    const [{ ledger: step }, { exact, ledger }] = await Promise.all([show(longer, [hole], SPLICE), engine.refresh(ID)])
    expect(step.approximate).toBeGreaterThan(0)
    expect(exact).toBe(true)
    expect(ledger.at(-1)!.shown).toBeGreaterThanOrEqual(step.shown)
    expect((await show(longer, [hole], SPLICE)).ledger).toMatchObject({ approximate: 0, submitted: 1 })
  })

  it.each([64, 512])(
    'pushes no conversation out while the engine is idle, and without room computes in place: ubatch %i',
    async (ubatch) => {
      const { base, hole } = await spliced({ cells: 1200, hostBytes: 0, ubatch })
      const other = text(50, 19)
      await show(other, [], EXACT, conversationId('d'))
      expect(await engine.refresh(ID, { when: 'idle' })).toEqual({ exact: false, ledger: [] })
      for (const [shown, holes, id] of [
        [base, [hole], ID],
        [other, [], conversationId('d')],
      ] as const)
        expect((await show(shown, [...holes], SPLICE, id)).ledger.submitted).toBe(1)
      expect((await engine.refresh(ID)).exact).toBe(true)
      expect((await show(base, [hole], SPLICE)).ledger).toMatchObject({ approximate: 0, submitted: 1 })
    },
  )

  it('makes the prompt of a stopped answer exact', async () => {
    await load({ ubatch: 64 })
    const base = text(600, 20)
    const hole = { start: 100, end: 300, marker: text(10, 21) }
    await show(base, [], SPLICE)
    const controller = new AbortController()
    const onText = () => {
      controller.abort()
      return false
    }
    const asked = { conversation: ID, ...folded(base, [hole]), terms: SPLICE, maxTokens: 50, signal: controller.signal }
    expect(await engine.complete({ ...asked, onText })).toMatchObject({ finish: 'cancelled' })
    expect(await engine.refresh(ID)).toMatchObject({ exact: true })
    expect((await show(base, [hole], SPLICE)).ledger).toMatchObject({ approximate: 0, submitted: 1 })
  })

  it('can be interrupted; the conversation goes on as it was and a second refresh takes up where the first ended', async () => {
    const { base, hole } = await spliced()
    const controller = new AbortController()
    const running = engine.refresh(ID, { signal: controller.signal })
    const asked = show(base, [hole], SPLICE)
    // It runs between two slices, of which most are still to come.
    expect((await asked).ledger.submitted).toBe(1)
    controller.abort()
    expect((await running).exact).toBe(false)
    const { exact, ledger } = await engine.refresh(ID)
    expect(exact).toBe(true)
    expect(ledger.reduce((sum, { submitted }) => sum + submitted, 0)).toBeLessThanOrEqual(701)
  })
})

describe('compaction and closed gaps', () => {
  it('a compacted conversation predicts the same', async () => {
    await load({ hostBytes: 2 ** 28 })
    const base = text(900, 19)
    const hole = { start: 100, end: 700, marker: text(10, 20) }
    await show(base, [], SPLICE)
    const before = await show(base, [hole], SPLICE)
    expect(await engine.compact(ID)).toBe(310)
    await engine.check('full')
    const after = await show(base, [hole], SPLICE)
    expect(after.ledger.submitted).toBe(1)
    expect(largestDifference(after.next, before.next)).toBeLessThan(floor)
    expect((await show(base, [], SPLICE)).ledger).toMatchObject({ approximate: 0, submitted: 1 })
  })

  it('closed gaps free positions, are counted as approximate, and leave hidden text restorable', async () => {
    await load()
    const base = text(600, 21)
    const hole = { start: 100, end: 500, marker: text(10, 22) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    expect(await engine.closeGaps(ID)).toBe(390)
    await engine.check('full')
    const after = await show(base, [hole], SPLICE)
    expect(after.ledger).toMatchObject({ positions: 210, approximate: 100, submitted: 1 })
    const exact = await show(base, [hole], EXACT)
    expect(exact.ledger).toMatchObject({ approximate: 0, recomputed: 100 })
    expect(largestDifference(exact.next, await fresh(folded(base, [hole]).tokens))).toBeLessThan(floor)
  })
})

describe('the host tier', () => {
  it('is given nothing whose keys are still to be turned: it would come back with the old ones', async () => {
    await load({ cells: 512, hostBytes: 2 ** 28 })
    const base = text(300, 50)
    const hole = { start: 100, end: 200, marker: text(10, 51) }
    await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    expect(await engine.closeGaps(ID)).toBe(90)
    // Makes room before it decodes anything.
    expect((await show(text(400, 52), [], EXACT, conversationId('d'))).ledger.evicted).toBeGreaterThanOrEqual(100)
    const { ledger, next } = await show(base, [hole], SPLICE)
    expect(ledger.approximate).toBe(0)
    expect(largestDifference(next, await fresh(folded(base, [hole]).tokens))).toBeLessThan(floor)
  })

  it('takes what the cache has no room for, and gives it back bit for bit', async () => {
    await load({ cells: 1024, hostBytes: 2 ** 28 })
    const base = text(700, 23)
    const hole = { start: 100, end: 600, marker: text(10, 24) }
    const open = await show(base, [], SPLICE)
    await show(base, [hole], SPLICE)
    const other = await show(text(800, 25), [], EXACT, conversationId('d'))
    expect(other.ledger.moved).toBeGreaterThan(0)
    expect(other.ledger.evicted).toBe(0)
    expect(engine.cacheTotals.tiers.host.tokens).toBeGreaterThanOrEqual(500)
    const back = await show(base, [], SPLICE)
    expect(back.ledger.tiers.host).toBeGreaterThanOrEqual(500)
    expect(back.ledger).toMatchObject({ approximate: 0, recomputed: 0 })
    expect(largestDifference(back.next, open.next)).toBeLessThan(floor)
    expect(back.ledger.submitted).toBe(1)
  })

  it('gives the least useful up when it is full, and what is lost is computed again', async () => {
    await load({ cells: 512, hostBytes: 60_000 })
    for (let round = 0; round < 6; round++) await show(text(400, 30 + round), [], EXACT, conversationId(`r${round}`))
    const { host, lost } = engine.cacheTotals.tiers
    expect(host.bytes).toBeLessThanOrEqual(60_000)
    expect(lost).toBeGreaterThan(0)
    const again = await show(text(400, 30), [], EXACT, conversationId('r0'))
    expect(again.ledger.submitted).toBe(400)
    expect(largestDifference(again.next, await fresh(text(400, 30)))).toBeLessThan(floor)
  })
})

describe('the disk tier', () => {
  it('outlives the engine: the next one on the same model takes up what the last one kept', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'kvfold-disk-'))
    try {
      const disk = { folder, bytes: 2 ** 28 }
      const base = Int32Array.from({ length: 700 }, (_, at) => 270 + ((at * 31) % 100))
      await load({ cells: 1024, hostBytes: 1, disk })
      const first = await show(base, [], EXACT)
      await show(text(800, 41), [], EXACT, conversationId('d'))
      await engine.dispose()

      await load({ cells: 1024, hostBytes: 1, disk })
      const second = await show(base, [], EXACT, conversationId('someone else'))
      expect(second.ledger).toMatchObject({ tiers: { host: 0, disk: 699 }, submitted: 1 })
      expect(largestDifference(second.next, first.next)).toBeLessThan(floor)
      await engine.dispose()

      // Other cache types: nothing of it is loaded.
      await load({ cells: 1024, hostBytes: 1, disk, keyType: 'f32' })
      expect((await show(base, [], EXACT)).ledger.submitted).toBe(700)
    } finally {
      await rm(folder, { recursive: true })
    }
  })

  it('takes the beginning of a conversation whose gaps were just closed', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'kvfold-disk-'))
    try {
      const disk = { folder, bytes: 2 ** 28 }
      await load({ disk })
      const base = text(600, 60)
      const hole = { start: 100, end: 500, marker: text(10, 61) }
      await show(base, [], SPLICE)
      await show(base, [hole], SPLICE)
      expect(await engine.closeGaps(ID)).toBe(390)
      await engine.dispose()
      await load({ disk })
      const { ledger, next } = await show(base, [hole], SPLICE)
      // The marker's keys were not shifted either.
      expect(ledger).toMatchObject({ approximate: 0, tiers: { disk: 110 } })
      expect(largestDifference(next, await fresh(folded(base, [hole]).tokens))).toBeLessThan(floor)
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  })

  it('computes again what was damaged on disk', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'kvfold-disk-'))
    try {
      const disk = { folder, bytes: 2 ** 28 }
      await load({ cells: 1024, hostBytes: 1, disk })
      const base = text(700, 42)
      await show(base, [], EXACT)
      await show(text(800, 43), [], EXACT, conversationId('d'))
      await engine.dispose()
      for (const name of await readdir(folder)) {
        const bytes = await readFile(join(folder, name))
        bytes[bytes.length - 100]! ^= 1
        await writeFile(join(folder, name), bytes)
      }
      await load({ cells: 1024, hostBytes: 1, disk })
      const again = await show(base, [], EXACT)
      expect(again.ledger).toMatchObject({ tiers: { host: 0, disk: 0 }, submitted: 700 })
      expect(engine.cacheTotals.tiers.refused).toBe(1)
      expect(largestDifference(again.next, await fresh(base))).toBeLessThan(floor)
    } finally {
      await rm(folder, { recursive: true })
    }
  })
})

/** Log-probabilities after a fresh prefill in a context of its own. */
async function fresh(tokens: Int32Array): Promise<Float32Array> {
  const model = await native.loadModel(await tinyModel())
  const next = await freshPrediction(await model.createContext(SETTINGS), tokens)
  await model.dispose()
  return next
}
