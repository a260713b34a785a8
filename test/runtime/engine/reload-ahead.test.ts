/**
 * Tests a step whose cells are on disk. While they are read, other steps continue, and the order of steps stays. The test runs on a real
 * GGUF and a real folder, and holds the reads back.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { DiskTierFolder } from '../../../src/runtime/engine/disk-tier.js'
import { LlamaEngine, type Completion } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { neverEnding } from '../../../bench/random-tokens.js'

const stored = conversationId('stored')
const prompt = Int32Array.from({ length: 200 }, (_, at) => 1 + ((at * 7) % 250))
const other = (salt: number) => Int32Array.from({ length: 30 }, (_, at) => 1 + ((at * 11 + salt) % 250))

let folder: string
let engine: LlamaEngine
let ban: { token: number; bias: number }[]
/** Lets all reads from disk end, including later ones. */
let release: () => void
let reads = 0

async function load(): Promise<void> {
  const options = { cells: 1024, sequences: 8, slots: 3, threads: 1, batchThreads: 1, hostBytes: 2 ** 24 }
  const disk = { folder, bytes: 2 ** 26 }
  engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), { ...options, disk })
  ban = neverEnding(engine.model)
}

const complete = (request: Omit<Completion, 'sampling'>) => engine.complete({ ...request, sampling: { logitBias: ban } })

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-fetching-'))
  await load()
  await complete({ conversation: stored, tokens: prompt, maxTokens: 4 })
  await engine.dispose()
  await load()
  const gate = new Promise<void>((resolve) => (release = resolve))
  // eslint-disable-next-line @typescript-eslint/unbound-method
  const take = DiskTierFolder.prototype.take
  reads = 0
  vi.spyOn(DiskTierFolder.prototype, 'take').mockImplementation(async function (this: DiskTierFolder, id) {
    reads++
    await gate
    return take.call(this, id)
  })
})
afterEach(async () => {
  release()
  await engine.dispose()
  vi.restoreAllMocks()
  rmSync(folder, { recursive: true })
})

/** Starts a streamed answer, and counts its tokens. */
function stream(conversation: string, maxTokens: number) {
  let tokens = 0
  const result = complete({
    conversation: conversationId(conversation),
    tokens: other(maxTokens),
    maxTokens,
    onText: (_, fresh) => {
      tokens += fresh.length
      return undefined
    },
  })
  return { result, got: () => tokens }
}

it('streams continue, others begin, and the cells read are used', async () => {
  const before = stream('before', 600)
  await vi.waitFor(() => {
    expect(before.got()).toBeGreaterThan(3)
  })
  const slow = complete({ conversation: stored, tokens: prompt, maxTokens: 4 })
  await vi.waitFor(() => {
    expect(reads).toBe(1)
  })
  const seen = before.got()
  const later = stream('later', 20)
  expect((await later.result).tokens).toHaveLength(20)
  expect(before.got()).toBeGreaterThan(seen + 15)
  release()
  const { ledger, tokens } = await slow
  expect(ledger.tiers.disk).toBeGreaterThan(190)
  expect(reads).toBe(1)
  await before.result
  await engine.check('full')
  // The answer is the same as with everything computed.
  const fresh = await complete({ conversation: conversationId('fresh'), tenant: 'nobody else', tokens: prompt, maxTokens: 4 })
  expect(tokens).toEqual(fresh.tokens)
})

it('steps of the same conversation keep their order, and a cancelled one does not block the next', async () => {
  const leave = new AbortController()
  const cancelled = complete({ conversation: stored, tokens: prompt, maxTokens: 4, signal: leave.signal })
  await vi.waitFor(() => {
    expect(reads).toBe(1)
  })
  const ends: string[] = []
  const second = complete({ conversation: stored, tokens: prompt, maxTokens: 4 }).then(() => ends.push('second'))
  const third = complete({ conversation: stored, tokens: prompt.subarray(0, 50), maxTokens: 1 }).then(() => ends.push('third'))
  await stream('beside', 5).result
  expect(ends).toEqual([])
  leave.abort()
  await expect(cancelled).rejects.toMatchObject({ code: 'engine/cancelled' })
  await vi.waitFor(() => {
    expect(reads).toBe(2)
  })
  release()
  await Promise.all([second, third])
  expect(ends).toEqual(['second', 'third'])
  await engine.check('full')
})

it('the engine may be disposed of during a read', async () => {
  const slow = complete({ conversation: stored, tokens: prompt, maxTokens: 4 })
  await vi.waitFor(() => {
    expect(reads).toBe(1)
  })
  const gone = engine.dispose()
  await expect(slow).rejects.toMatchObject({ code: 'engine/cancelled' })
  release()
  await gone
})
