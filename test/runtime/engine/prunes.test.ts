/**
 * Tests a long session that prunes its tool results, on a model with few trained positions: how long it continues under `splice`, and how
 * good its predictions still are.
 */
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { firstPrediction, largestDifference } from '../../support/predictions.js'
import { LONG } from '../../support/long.js'

const PRUNES = LONG ? 500 : 80
const TRAINED = 2048
const ID = conversationId('agent')
const SPLICE: StepContract = { contract: 'splice' }
/** The tokens of a tool result, and of the placeholder of a pruned one. */
const RESULT = 60
const MARKER = 2
/** How many results are shown whole. */
const RECENT = 3

let native: Native
let engine: LlamaEngine

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
})
afterEach(() => engine.dispose())

async function load(options: LlamaEngineOptions = {}): Promise<void> {
  const settings = { cells: 4096, sequences: 16, threads: 1, batchThreads: 1, flashAttention: 'off', hostBytes: 2 ** 27 } as const
  engine = await LlamaEngine.load(native, await tinyModel({ context: TRAINED }), { ...settings, ...options })
}

/** Returns `count` tokens that identify a result. */
const words = (count: number, salt: number): number[] =>
  Array.from({ length: count }, (_, at) => 260 + ((at * 7919 + salt * 104_729) % 100))

class Session {
  readonly #base = words(40, 0)
  #results = 0

  /** Adds a call and its result. */
  add(): void {
    this.#base.push(...words(1, ++this.#results + 5000), ...words(RESULT, this.#results))
  }

  /** Returns the prompt with all results pruned but the last `recent`. */
  shown(recent: number) {
    const holes = Array.from({ length: Math.max(0, this.#results - recent) }, (_, at) => {
      const start = 40 + at * (1 + RESULT) + 1
      return { span: { start, end: start + RESULT }, marker: MARKER }
    })
    const tokens: number[] = []
    let place = 0
    for (const { span } of holes) {
      tokens.push(...this.#base.slice(place, span.start), ...words(MARKER, 9000))
      place = span.end
    }
    tokens.push(...this.#base.slice(place))
    return { tokens: Int32Array.from(tokens), origin: { base: Int32Array.from(this.#base), holes } }
  }
}

async function show(session: Session, recent: number, terms: StepContract, conversation = ID) {
  const shown = session.shown(recent)
  const { vocabulary } = engine.modelInfo
  const { ledger, logprobs } = await engine.complete({ conversation, ...shown, terms, maxTokens: 1, logprobs: vocabulary })
  expect(ledger.shown).toBe(shown.tokens.length)
  return { ledger, next: firstPrediction(logprobs, vocabulary) }
}

const divergence = (p: Float32Array, q: Float32Array): number =>
  p.reduce((sum, value, at) => (Number.isFinite(value) ? sum + Math.exp(value) * (value - q[at]!) : sum), 0)

describe(`${PRUNES} prunes under splice`, () => {
  it('compute the new text and the placeholders, and never run out of positions', { timeout: 300_000 }, async () => {
    await load()
    const session = new Session()
    const seen = { submitted: 0, turned: 0, closings: 0, restores: 0, approximate: 0 }
    for (let prune = 1 - RECENT; prune <= PRUNES; prune++) {
      session.add()
      const { ledger } = await show(session, RECENT, SPLICE)
      expect(ledger, `prune ${prune}`).toMatchObject({ contract: 'splice', fallback: null })
      expect(ledger.positions).toBeLessThanOrEqual(TRAINED)
      if (prune > 0) expect(ledger.submitted).toBeLessThanOrEqual(1 + RESULT + MARKER)
      seen.submitted += ledger.submitted
      seen.turned += ledger.turned!
      if (ledger.turned! > 0) seen.closings++
      if (prune % 10 !== 0) continue
      await engine.check('full')
      if (prune <= 0) continue
      // The result pruned last is shown again, and pruned again.
      const { ledger: back } = await show(session, RECENT + 1, SPLICE)
      expect(back, `restore ${prune}`).toMatchObject({ contract: 'splice', fallback: null, submitted: 1 })
      expect((await show(session, RECENT, SPLICE)).ledger).toMatchObject({ contract: 'splice', submitted: 1 })
      await engine.check('full')
      seen.restores++
    }
    expect(seen.restores).toBe(PRUNES / 10)
    // A prune uses up 58 positions; there are 2,048, less those of the prompt.
    expect(seen.closings).toBeGreaterThan(PRUNES / 50)
    expect(seen.closings).toBeLessThan(0.3 * PRUNES)
    const spliced = await show(session, RECENT, SPLICE)
    const exact = await show(session, RECENT, { contract: 'exact' }, conversationId('reference'))
    const apart = largestDifference(spliced.next, exact.next)
    const kl = divergence(exact.next, spliced.next)
    console.log(
      `${PRUNES} prunes: ${seen.submitted} tokens computed, ${seen.turned} copied in ${seen.closings} steps; against exact at the end: KL ${kl.toExponential(1)}, largest log-probability difference ${apart.toExponential(1)}`,
    )
    expect(Number.isFinite(kl)).toBe(true)
    // Weights are random; a wrong cache would differ by several.
    expect(apart).toBeLessThan(2)
  })

  it('say why splice ends where keys cannot be shifted, and before it happens', { timeout: 100_000 }, async () => {
    await load({ keyType: 'bf16' })
    expect(engine.notes.join(' ')).toMatch(/after it again.*pass the 2048.*after the first fold again/)
    const session = new Session()
    const reasons: string[] = []
    for (let prune = 1 - RECENT; prune <= 40; prune++) {
      session.add()
      const { ledger } = await show(session, RECENT, SPLICE)
      expect(ledger.positions).toBeLessThanOrEqual(TRAINED)
      if (ledger.fallback !== null) reasons.push(ledger.fallback)
    }
    expect(reasons).toHaveLength(1)
    expect(reasons[0]).toMatch(/of the 2048 that the model was trained on.*cannot be rotated/)
  })
})
