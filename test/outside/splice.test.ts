/** Splices and blends of the engine against splices by llama.cpp's C API alone (reference.cc), on random prompts. */
import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Random } from '../../src/runtime/core/random.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import type { BlendChoice } from '../../src/runtime/core/contract.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { tinyModel } from '../support/models.js'
import { furthest, Reference, type SplicedRow } from './reference.js'
import { LONG } from '../support/long.js'

const CELLS = 2048
const REAL = process.env['KVFOLD_REAL_MODELS'] ?? join(homedir(), '.cache', 'kvfold', 'real')
const INSTRUCT = join(REAL, 'smollm2-135m-instruct-f32.gguf')

const MODELS = [
  { name: 'a tiny Llama', path: () => tinyModel(), prompts: LONG ? 100 : 12, real: false },
  { name: 'SmolLM2 135M in F32', path: () => Promise.resolve(INSTRUCT), prompts: 4, real: true },
]

interface Hole {
  readonly start: number
  readonly end: number
  readonly marker: readonly number[]
}

/** Two or three holes, each longer than its marker, with text between them and behind. */
function holesIn(random: Random, length: number, token: () => number): Hole[] {
  const holes: Hole[] = []
  for (let at = 10 + random.below(40); holes.length < 3;) {
    const end = at + 12 + random.below(60)
    if (end > length - 60) break
    holes.push({ start: at, end, marker: Array.from({ length: 2 + random.below(10) }, token) })
    at = end + 20 + random.below(60)
  }
  return holes
}

/**
 * Returns the shown rows. The engine has read all of `base`; the tail behind a hole is kept, but for the first tokens behind each hole and the
 * last ones, which a blend decodes again.
 */
function rowsOf(base: readonly number[], holes: readonly Hole[], { first = 0, ending = 0 }: BlendChoice): SplicedRow[] {
  const rows: SplicedRow[] = []
  let place = 0
  for (const { start, end, marker } of [...holes, { start: base.length, end: base.length, marker: [] }]) {
    const behind = rows.length
    for (; place < start; place++) {
      const isFirst = behind > 0 && rows.length < behind + first
      rows.push(isFirst ? { token: base[place]! } : { token: base[place]!, kept: place })
    }
    for (const token of marker) rows.push({ token })
    place = end
  }
  const from = holes[0]!.start + holes[0]!.marker.length
  return rows.map((row, at) =>
    at === rows.length - 1 || (at >= from && at >= rows.length - ending) ? { token: row.token } : row,
  )
}

const BLENDS: readonly BlendChoice[] = [{}, { first: 5 }, { ending: 12 }, { first: 3, ending: 20 }]

describe.each(MODELS)('on $name', ({ path, prompts, real }) => {
  it.skipIf(real && !(LONG && existsSync(INSTRUCT)))(
    'a splice or blend predicts what llama.cpp predicts after the same splice by hand',
    { timeout: 600_000 },
    async () => {
      const model = await path()
      const native = await openNative({ gpu: 'cpu' })
      const engine = await LlamaEngine.load(native, model, {
        ...{ cells: CELLS, threads: 1, batchThreads: 1, slots: 1, hostBytes: 0 },
        ...{ flashAttention: 'on', keyType: 'f32', valueType: 'f32' },
      })
      // An answer that ends at once has no log-probabilities; those of others are the ones before the bias.
      const ends = [...Array(engine.modelInfo.vocabulary).keys()].filter((one) => engine.model.isEndOfGeneration(one))
      const sampling = { logitBias: ends.map((one) => ({ token: one, bias: -1e4 })) }
      const reference = await Reference.start({ model, cells: CELLS, flashAttention: true, keyType: 'f32', valueType: 'f32' })
      try {
        for (let seed = 0; seed < prompts; seed++) {
          const random = new Random(seed, 11)
          const token = () => 10 + random.below(engine.modelInfo.vocabulary - 20)
          const base = Array.from({ length: 200 + random.below(200) }, token)
          const holes = holesIn(random, base.length, token)
          const choice = BLENDS[seed % BLENDS.length]!
          const isSplice = Object.keys(choice).length === 0
          const conversation = conversationId(`random ${seed}`)
          await engine.complete({ conversation, tokens: Int32Array.from(base), maxTokens: 0 })
          const rows = rowsOf(base, holes, choice)
          const { ledger, logprobs } = await engine.complete({
            conversation,
            tokens: Int32Array.from(rows, (row) => row.token),
            origin: {
              base: Int32Array.from(base),
              holes: holes.map(({ start, end, marker }) => ({ span: { start, end }, marker: marker.length })),
            },
            terms: isSplice ? { contract: 'splice' } : { contract: 'blend', blend: choice },
            sampling,
            maxTokens: 1,
            logprobs: engine.modelInfo.vocabulary,
          })
          expect(ledger).toMatchObject({ fallback: null, submitted: rows.filter(({ kept }) => kept === undefined).length })
          const said = new Float32Array(engine.modelInfo.vocabulary)
          for (const one of logprobs[0]!.top) said[one.token] = one.logprob
          const by = await reference.splice(base, rows)
          const again = await reference.splice(base, rows, new Set(rows.keys()))
          const exact = await reference.prefill(
            rows.map((row) => row.token),
            rows.length - 1,
          )
          // Equal within the difference that other batches make; and not an exact prefill by chance.
          const noise = Math.max(furthest(by, again), exact.noise)
          expect(furthest(said, by), `seed ${seed}`).toBeLessThanOrEqual(4 * noise + 1e-5)
          expect(furthest(said, exact.variants[0]![0]!), `seed ${seed}`).toBeGreaterThan(20 * noise)
          engine.forget(conversation)
        }
      } finally {
        reference.end()
        await engine.dispose()
      }
    },
  )
})
