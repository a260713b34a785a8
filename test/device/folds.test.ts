/**
 * The whole path between us and a device in few kernels, for devices that compile for long: a decode is of one token or of 9 to 16, the model has no
 * RMS norm. Folds and restores under every contract, cells in every tier, sequences side by side; the reference is a fresh prefill on the
 * same device.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { conversationId, seqId, type ConversationId } from '../../src/runtime/core/ids.js'
import { CONTRACTS, type Contract } from '../../src/runtime/core/contract.js'
import { LlamaEngine, type Completion, type LlamaEngineOptions } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { batchOf, refused, someTokens } from '../runtime/native/support/fixture.js'
import { ON_GPU, TEST_GPU } from '../support/device.js'
import { layerNormModel } from '../support/models.js'
import { boundOnDevice } from '../support/noise.js'
import { firstPrediction, largestDifference } from '../support/predictions.js'

const UBATCH = 16
const SETTINGS = { cells: 512, sequences: 8, threads: 1, batchThreads: 1, ubatch: UBATCH, flashAttention: 'on' } as const
/** What batches of other sizes move on a CPU; cells are of 16 bits. */
let floor = 0.02
/** Sizes of batches whose kernels these tests compile anyway. */
const SIZES = [16, 12]
const HOLE = { start: 48, end: 112 }
const MARKER = 15
const BASE = 160

let native: Native
let engine: LlamaEngine | null = null
beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  floor = await boundOnDevice(native, await layerNormModel(), { flashAttention: SETTINGS.flashAttention }, floor, SIZES)
})
afterEach(async () => {
  await engine?.dispose()
  engine = null
})

async function load(options: LlamaEngineOptions = {}): Promise<LlamaEngine> {
  await engine?.dispose()
  return (engine = await LlamaEngine.load(native, await layerNormModel(), { ...SETTINGS, hostBytes: 2 ** 24, ...options }))
}

const text = (count: number, salt: number) =>
  Int32Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104729) % 100))

const base = text(BASE, 1)
const folded = {
  tokens: Int32Array.from([...base.subarray(0, HOLE.start), ...text(MARKER, 2), ...base.subarray(HOLE.end)]),
  origin: { base, holes: [{ span: HOLE, marker: MARKER }] },
}

/** Shows this and samples one token; the ledger entry, and log-probabilities of the next token. */
async function show(
  on: LlamaEngine,
  request: Pick<Completion, 'tokens' | 'origin'>,
  contract: Contract,
  conversation: ConversationId = conversationId('c'),
) {
  const { vocabulary } = on.modelInfo
  const { ledger, logprobs } = await on.complete({
    ...{ conversation, ...request, terms: { contract } },
    ...{ maxTokens: 1, logprobs: vocabulary },
  })
  await on.check('full')
  return { ledger, next: firstPrediction(logprobs, vocabulary) }
}

/** What an engine that never saw anything else predicts. */
async function fresh(tokens: Int32Array): Promise<Float32Array> {
  const alone = await LlamaEngine.load(native, await layerNormModel(), { ...SETTINGS, hostBytes: 0 })
  try {
    return (await show(alone, { tokens }, 'exact')).next
  } finally {
    await alone.dispose()
  }
}

it('computes where it was told to', () => {
  expect(native.backend.gpu).toBe(TEST_GPU)
  expect(native.backend.devices.length).toBeGreaterThan(ON_GPU ? 1 : 0)
})

describe.each(CONTRACTS)('%s', (contract) => {
  it('folds, and restores from memory of the host as what a fresh prefill predicts', async () => {
    const on = await load({ cells: 256 })
    const before = await show(on, { tokens: base }, contract)
    expect(before.ledger.submitted).toBe(BASE)
    expect(largestDifference(before.next, await fresh(base))).toBeLessThan(floor)
    const there = await show(on, folded, contract)
    if (contract === 'exact') expect(largestDifference(there.next, await fresh(folded.tokens))).toBeLessThan(floor)
    expect(largestDifference(there.next, before.next)).toBeGreaterThan(floor)
    // Another conversation takes the room of what nobody sees.
    await show(on, { tokens: text(BASE, 3) }, 'exact', conversationId('d'))
    const back = await show(on, { tokens: base }, contract)
    expect(back.ledger).toMatchObject({ submitted: 1, approximate: 0 })
    expect(back.ledger.tiers.host).toBeGreaterThanOrEqual(HOLE.end - HOLE.start)
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
  })
})

it('what was on disk is on the device again for the next engine', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-device-'))
  try {
    const options = { cells: 256, hostBytes: 1, disk: { folder, bytes: 2 ** 26 } }
    const before = await show(await load(options), { tokens: base }, 'exact')
    await show(await load(options), { tokens: text(BASE, 3) }, 'exact', conversationId('d'))
    const back = await show(await load(options), { tokens: base }, 'exact', conversationId('e'))
    expect(back.ledger).toMatchObject({ submitted: 1, tiers: { host: 0, disk: BASE - 1 } })
    expect(largestDifference(back.next, before.next)).toBeLessThan(floor)
  } finally {
    await engine?.dispose()
    engine = null
    rmSync(folder, { recursive: true })
  }
})

it('sequences of one decode do not see each other, and cells come back bit for bit', async () => {
  const model = await native.loadModel(await layerNormModel())
  try {
    const options = { cells: 256, sequences: 4, batch: 32, ubatch: 32, threads: 1 }
    const context = await model.createContext(options)
    const [one, two] = [batchOf(someTokens(10, 1), 0, 1), batchOf(someTokens(9, 2), 0, 2)]
    await context.decode(one)
    const alone = context.logits(9)
    const state = context.saveSequence(seqId(1))
    context.clear()
    const joined = (name: 'tokens' | 'positions' | 'sequences') => Int32Array.of(...one[name], ...two[name])
    const outputs = Uint8Array.of(...one.outputs, ...two.outputs.fill(0))
    await context.decode({ tokens: joined('tokens'), positions: joined('positions'), sequences: joined('sequences'), outputs })
    expect(largestDifference(context.logits(9), alone)).toBeLessThan(floor)
    context.clear()
    expect(context.loadSequence(seqId(1), state)).toBe(true)
    expect(Buffer.compare(context.saveSequence(seqId(1)), state)).toBe(0)
  } finally {
    await model.dispose()
  }
})

it('cells for which no memory is there are refused, and the model goes on', async () => {
  const { message } = await refused('memory/insufficient', () => load({ cells: 2 ** 30 }))
  expect(message).toMatch(ON_GPU ? /of GPU memory, but only .* are free/ : /of memory, but only .* are free/)
  expect((await show(await load(), { tokens: base }, 'exact')).ledger.submitted).toBe(BASE)
})
