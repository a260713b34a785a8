/** Scores of attention heads on the built-in model, what it loses without the best of them, and the file that studies of heads share. */
import { join } from 'node:path'
import { beforeAll, describe, expect, it } from 'vitest'
import {
  HEAD_SCORES,
  headScoreFile,
  type HeadScores,
  randomHeads,
  readHeadScores,
  topHeads,
} from '../../../src/lab/attention/head-scores.js'
import { headLosses, type HeadPrompts, scoreHeads } from '../../../src/lab/head-study.js'
import { ownWords } from '../../../src/lab/pi-llm.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { mean } from '../../../src/runtime/core/mean.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { writeHeadAdapter } from '../../../src/runtime/native/head-adapter.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { TEST_GPU } from '../../support/device.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const PROMPTS: HeadPrompts = { prompts: 2, seed: 7, words: ownWords(), keys: 12 }

let native: Native
const folder = temporaryFolder('heads')
let scores: readonly HeadScores[]
beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  const engine = await LlamaEngine.load(native, builtinModel(), { cells: 2048, slots: 1, attention: true, flashAttention: 'off' })
  try {
    scores = await scoreHeads({ engine, ...PROMPTS })
  } finally {
    await engine.dispose()
  }
})

describe('scores of heads', () => {
  it('are between 0 and 1, one for each prompt, for all 18 heads', () => {
    expect(scores).toHaveLength(18)
    for (const one of scores)
      for (const name of HEAD_SCORES) {
        expect(one[name]).toHaveLength(PROMPTS.prompts)
        for (const value of one[name])
          expect(value >= 0 && value <= 1 + 1e-5, `${one.layer}-${one.head} ${name} ${value}`).toBe(true)
      }
  })

  it('find the heads that the built-in model was made with: some look one token back, and later ones copy', () => {
    const [back, copies] = [topHeads(scores, 'previous', 1)[0]!, topHeads(scores, 'retrieval', 4)]
    expect(back.layer).toBe(0)
    expect(mean(back.previous)).toBeGreaterThan(0.5)
    for (const one of copies) {
      expect(one.layer).toBeGreaterThan(0)
      expect(mean(one.retrieval)).toBeGreaterThan(0.9)
    }
    expect(mean(topHeads(scores, 'induction', 1)[0]!.induction)).toBeGreaterThan(0.5)
  })

  it('say what the model needs: without two heads that copy it cannot say the values; two others are not missed', async () => {
    const best = topHeads(scores, 'retrieval', 2)
    const others = randomHeads(scores, 2, topHeads(scores, 'retrieval', 6), 1)
    const files = [join(folder, 'best.gguf'), join(folder, 'others.gguf')]
    for (const [at, heads] of [best, others].entries()) await writeHeadAdapter(native, files[at]!, builtinModel(), heads)
    const engine = await LlamaEngine.load(native, builtinModel(), {
      ...{ cells: 2048, slots: 1, lora: files.map((path) => ({ path, scale: 0 })) },
    })
    try {
      const [whole, without, control] = [null, 0, 1].map((id) => headLosses({ engine, ...PROMPTS }, id))
      const loss = mean((await whole!).values)
      expect(loss).toBeLessThan(0.2)
      expect(mean((await without!).values)).toBeGreaterThan(loss + 1)
      expect(mean((await control!).values)).toBeLessThan(loss + 0.5)
    } finally {
      await engine.dispose()
    }
  })
})

describe('the shared file of scores', () => {
  it('has a list for each "layer-head", and reads back with the best head first', () => {
    const text = headScoreFile(scores, 'retrieval')
    expect(Object.keys(JSON.parse(text) as object)).toContain('2-5')
    const read = readHeadScores(text, 'scores.json')
    expect(read).toHaveLength(18)
    expect(read[0]!.score).toBe(Math.max(...scores.map((one) => mean(one.retrieval))))
  })

  it.each([
    ['{', 'scores.json is not JSON'],
    ['{}', 'scores.json has no scores'],
    ['{"layer": [1]}', 'scores.json has no scores'],
    ['{"1-2": []}', 'scores.json has no scores'],
  ])('%s is refused', (text, why) => {
    expect(() => readHeadScores(text, 'scores.json')).toThrow(why)
  })
})

it('heads at random are never the chosen ones, and there must be enough of them', () => {
  const chosen = topHeads(scores, 'sink', 16)
  const drawn = randomHeads(scores, 2, chosen, 3)
  expect(drawn).toHaveLength(2)
  for (const one of drawn) expect(chosen).not.toContainEqual(expect.objectContaining({ layer: one.layer, head: one.head }))
  expect(() => randomHeads(scores, 3, chosen, 3)).toThrow('Only 2 heads are left to draw 3 at random from; knock out fewer.')
})
