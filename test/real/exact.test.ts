/** Contract `exact` on real weights (Gemma 3 270M, sliding windows): after random edits the model predicts what it does after a fresh prefill. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { conversationId } from '../../src/core/ids.js'
import { Random } from '../../src/core/random.js'
import { LlamaEngine } from '../../src/engine/llama.js'
import { openNative } from '../../src/native/binding.js'
import type { NativeContext, NativeModel } from '../../src/native/types.js'

/** `npm run test:real` sets it. */
const MODEL = process.env['KVFOLD_REAL']
const SETTINGS = { threads: 1, batchThreads: 1, flashAttention: 'off' } as const
/** Longer than a window of 512, so that the guard has work. */
const LENGTH = 700
const TALKS = 1
const EDITS = 4
/** Likeliest tokens whose log-probabilities are compared. */
const COMPARED = 20

describe.skipIf(MODEL === undefined)('Gemma 3 270M', () => {
  let engine: LlamaEngine
  let reference: NativeModel
  let whole: NativeContext
  let chunked: NativeContext

  beforeAll(async () => {
    const native = await openNative({ gpu: 'cpu' })
    engine = await LlamaEngine.load(native, MODEL!, { ...SETTINGS, cells: 4096, hostBytes: 2 ** 26 })
    reference = await native.loadModel(MODEL!)
    whole = await reference.createContext({ ...SETTINGS, cells: 1024 })
    chunked = await reference.createContext({ ...SETTINGS, cells: 1024, batch: 61, ubatch: 61 })
  })
  afterAll(async () => {
    await reference.dispose()
    await engine.dispose()
  })

  async function fresh(context: NativeContext, tokens: Int32Array): Promise<Float64Array> {
    context.clear()
    let last = 0
    for (let start = 0; start < tokens.length; start += context.batch) {
      const part = tokens.slice(start, start + context.batch)
      last = part.length - 1
      const outputs = new Uint8Array(part.length)
      outputs[last] = 1
      const positions = part.map((_, at) => start + at)
      expect(await context.decode({ tokens: part, positions, sequences: new Int32Array(part.length), outputs })).toBe('done')
    }
    const logits = context.logits(last)
    const most = logits.reduce((a, b) => Math.max(a, b))
    const sum = logits.reduce((total, logit) => total + Math.exp(logit - most), 0)
    return Float64Array.from(logits, (logit) => logit - most - Math.log(sum))
  }

  it('predicts after random folds and restores what a fresh prefill predicts', async () => {
    const random = new Random(2026)
    const text = engine.model.tokenize(
      Array.from(
        { length: 200 },
        (_, at) => `In the year ${1500 + random.below(500)} harbour ${at} had ${random.below(90)} boats.`,
      ).join(' '),
      { addSpecial: true },
    )
    const base = text.slice(0, LENGTH)
    const marker = engine.model.tokenize('[folded]')
    let noise = 0
    const differences: number[] = []
    for (let talk = 0; talk < TALKS; talk++) {
      const conversation = conversationId(`real ${talk}`)
      const holes = new Map<number, { start: number; end: number }>()
      for (let edit = 0; edit < EDITS; edit++) {
        // One of six stretches of a hundred tokens is folded, or restored.
        const at = random.below(6)
        if (!holes.delete(at)) holes.set(at, { start: 20 + 110 * at, end: 20 + 110 * at + 30 + random.below(70) })
        const spans = [...holes.values()].sort((a, b) => a.start - b.start)
        const tokens: number[] = []
        let from = 0
        for (const { start, end } of spans) {
          tokens.push(...base.slice(from, start), ...marker)
          from = end
        }
        tokens.push(...base.slice(from))
        const shown = Int32Array.from(tokens)
        const origin = { base, holes: spans.map((span) => ({ span, marker: marker.length })) }
        const { logprobs, ledger } = await engine.complete({
          conversation,
          tokens: shown,
          origin,
          maxTokens: 1,
          logprobs: COMPARED,
        })
        expect(ledger.approximate).toBe(0)
        const expected = await fresh(whole, shown)
        const other = await fresh(chunked, shown)
        for (const { token, logprob } of logprobs[0]!.top) {
          noise = Math.max(noise, Math.abs(other[token]! - expected[token]!))
          differences.push(Math.abs(logprob - expected[token]!))
        }
        await engine.check('full')
      }
    }
    const most = Math.max(...differences)
    console.log(
      `largest difference from a fresh prefill ${most.toExponential(1)}; between two fresh ones ${noise.toExponential(1)}`,
    )
    expect(differences).toHaveLength(TALKS * EDITS * COMPARED)
    expect(most).toBeLessThan(Math.max(1e-3, 4 * noise))
  }, 900_000)
})
