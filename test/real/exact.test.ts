/** Contract `exact` on real weights, one model with sliding windows: after random edits the model predicts what it does after a fresh prefill. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { edited, freshLogprobs } from '../../bench/driver.js'
import type { Contract } from '../../src/runtime/core/contract.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Random } from '../../src/runtime/core/random.js'
import type { Span } from '../../src/runtime/core/span.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { NativeContext, NativeModel } from '../../src/runtime/native/types.js'
import { NEEDED, REAL_MODELS } from './support/models.js'

const MODELS = ['smollm2-f32', 'gemma3-f32'].filter((name) => REAL_MODELS[name] !== undefined)
/** In F32, too, are keys and values: with quantised products or F16 keys two fresh prefills of one prompt differ by 0.3 nats and more. */
const SETTINGS = { threads: 1, batchThreads: 1, flashAttention: 'off', keyType: 'f32', valueType: 'f32' } as const
/** The folds, and the restore of the first, of spans of about a hundred tokens. Fold number 4 ends just before the predicted token. */
const EDITS = [1, 4, 1]
/** How many of the likeliest tokens are compared. */
const COMPARED = 20
/**
 * The bound in nats. Measured: 2e-3 for two fresh prefills, whole and token by token, and 4e-3 for a step after edits. The control,
 * approximate cells, differs by 1.6.
 */
const BOUND = 2e-2
type Likely = { readonly token: number; readonly logprob: number }

if (MODELS.length === 0) it.skip(NEEDED)

describe.each(MODELS)('%s', (name) => {
  const model = REAL_MODELS[name]!
  let engine: LlamaEngine
  let reference: NativeModel
  let whole: NativeContext
  /**
   * Computes token by token: its difference from `whole` is that of rounding alone. Larger batches may not differ at all (61 on a Xeon with
   * AMX).
   */
  let single: NativeContext

  beforeAll(async () => {
    const native = await openNative({ gpu: 'cpu' })
    engine = await LlamaEngine.load(native, model, { ...SETTINGS, cells: 4096, hostBytes: 2 ** 26 })
    reference = await native.loadModel(model)
    whole = await reference.createContext({ ...SETTINGS, cells: 1024, batch: 1024, ubatch: 1024 })
    single = await reference.createContext({ ...SETTINGS, cells: 1024, batch: 1, ubatch: 1 })
  })
  afterAll(async () => {
    await reference.dispose()
    await engine.dispose()
  })

  it('predicts the same as a fresh prefill after random folds and restores, and not after a splice', async () => {
    const random = new Random(2026)
    const facts = Array.from(
      { length: 33 },
      (_, at) => `In the year ${1500 + random.below(500)} harbour ${at} had ${random.below(90)} boats.`,
    )
    // The text is longer than the window of 512, so that the window matters.
    const base = engine.model.tokenize([...facts, 'In the year 1868 harbour'].join(' '), { addSpecial: true })
    expect(base.length).toBeGreaterThan(580)
    const marker = engine.model.tokenize('[folded]')
    const show = async (spans: readonly Span[], contract: Contract) => {
      const { tokens: shown, origin } = edited(
        base,
        spans.map((span) => ({ ...span, marker })),
      )
      const asked = { conversation: conversationId(contract), tokens: shown, origin: origin!, maxTokens: 1, terms: { contract } }
      const { logprobs, ledger } = await engine.complete({ ...asked, logprobs: COMPARED })
      await engine.check('full')
      return { shown, ledger, top: logprobs[0]!.top }
    }
    const largest = (top: readonly Likely[], expected: Float64Array) =>
      Math.max(...top.map(({ token, logprob }) => Math.abs(logprob - expected[token]!)))

    const holes = new Map<number, Span>()
    await show([], 'exact')
    let exact = 0
    for (const [edit, at] of EDITS.entries()) {
      const end = base.length - 10 - 110 * (4 - at)
      if (!holes.delete(at)) holes.set(at, { start: end - 30 - random.below(70), end })
      const spans = [...holes.values()].sort((a, b) => a.start - b.start)
      const isLast = edit === EDITS.length - 1
      // The splice comes before the exact step, whose cells it would use.
      if (isLast) await show([], 'splice')
      const spliced = isLast ? await show(spans, 'splice') : null
      const { shown, ledger, top } = await show(spans, 'exact')
      expect(ledger.approximate).toBe(0)
      expect(ledger.reused).toBeGreaterThan(0)
      const expected = await freshLogprobs(whole, shown)
      exact = Math.max(exact, largest(top, expected))
      if (spliced === null) continue
      const again = await freshLogprobs(single, shown)
      const noise = largest(
        top.map(({ token }) => ({ token, logprob: expected[token]! })),
        again,
      )
      const control = largest(spliced.top, expected)
      const said = `largest difference from a fresh prefill ${exact.toExponential(1)}`
      console.log(`${said}; between fresh ones ${noise.toExponential(1)}; after a splice ${control.toExponential(1)}`)
      expect(exact).toBeLessThan(BOUND)
      expect(noise).toBeLessThan(BOUND)
      expect(spliced.ledger.approximate).toBeGreaterThan(0)
      expect(control).toBeGreaterThan(5 * BOUND)
    }
  }, 900_000)
})
