/** Tests rerankers on real GGUFs: a score comes from the file's head over query and document together, and from no other document. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { Reranker } from '../../../src/runtime/engine/reranker.js'
import { tryModel } from '../../../src/runtime/engine/tried-models.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeModel } from '../../../src/runtime/native/types.js'
import { batchOf, refused } from '../native/support/fixture.js'
import { TEST_GPU } from '../../support/device.js'
import { SEPARATOR, synthesizeEncoder } from '../../support/synthetic-encoder.js'
import { RERANK_TEMPLATE, synthesizeOther } from '../../support/synthetic-others.js'

const ONE = { threads: 1, batchThreads: 1 } as const
const QUERY = 'Which city?'
const DOCUMENTS = ['Paris, capitale de la France', 'A machine', 'Learning is a process', 'Paris', 'a', 'word '.repeat(60)]

let native: Native
let folder: string
const open: { dispose(): Promise<void> }[] = []

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-reranker-'))
  await synthesizeEncoder(join(folder, 'bert.gguf'), { architecture: 'bert', pooling: 'rank' })
  await synthesizeEncoder(join(folder, 'headless.gguf'), { architecture: 'bert', pooling: 'rank', head: 'none' })
  await synthesizeEncoder(join(folder, 'plain.gguf'), { architecture: 'bert' })
  await synthesizeOther(join(folder, 'qwen3.gguf'), 'qwen3')
})
afterEach(async () => {
  for (const each of open.splice(0)) await each.dispose()
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

async function reranker(name: string): Promise<Reranker> {
  const made = await Reranker.load(native, join(folder, `${name}.gguf`), ONE)
  open.push(made)
  return made
}

/** Returns llama.cpp's score of these tokens, computed alone. */
async function scoreOf(model: NativeModel, tokens: readonly number[]): Promise<number> {
  const size = { cells: 512, sequences: 1, ubatch: 512, batch: 512 }
  const context = await model.createContext({ embeddings: 'rank', flashAttention: 'off', ...size, ...ONE })
  open.push(context)
  expect(await context.decode(batchOf(tokens, 0, 0, 'all'))).toBe('done')
  return context.embedding(0)[0]!
}

describe.each(['bert', 'qwen3'])('%s', (name) => {
  test('a score depends on no other document', async () => {
    const ranks = await reranker(name)
    const { scores, tokens } = await ranks.rank(QUERY, DOCUMENTS)
    expect(new Set(scores.map((score) => score.toFixed(3))).size).toBeGreaterThan(3)
    let sum = 0
    for (const [index, document] of DOCUMENTS.entries()) {
      const alone = await ranks.rank(QUERY, [document])
      expect(Math.abs(alone.scores[0]! - scores[index]!)).toBeLessThan(1e-5)
      sum += alone.tokens
    }
    expect(tokens).toBe(sum)
  })

  test('calls may overlap', async () => {
    const ranks = await reranker(name)
    const together = await Promise.all(DOCUMENTS.map((document) => ranks.rank(QUERY, [document])))
    const { scores } = await ranks.rank(QUERY, DOCUMENTS)
    for (const [
      index,
      {
        scores: [score],
      },
    ] of together.entries())
      expect(Math.abs(score! - scores[index]!)).toBeLessThan(1e-5)
  })

  test('control tokens in query and document are text', async () => {
    const ranks = await reranker(name)
    const { tokens } = await ranks.rank('<|im_end|>', ['<|im_start|>'])
    expect(tokens).toBeGreaterThan((await ranks.rank('a', ['b'])).tokens + 10)
  })

  test('its file is tried by scoring', () => tryModel(native, join(folder, `${name}.gguf`), { embeddings: 'alone' }))
})

test('an encoder reads both texts between the special tokens of its vocabulary', async () => {
  const ranks = await reranker('bert')
  const { model } = ranks
  const { bos, eos, sep } = model.special
  expect(sep).toBe(SEPARATOR)
  const prompt = [bos!, ...model.tokenize(QUERY), eos!, SEPARATOR, ...model.tokenize('Paris'), eos!]
  const { scores, tokens } = await ranks.rank(QUERY, ['Paris'])
  expect(tokens).toBe(prompt.length)
  expect(Math.abs(scores[0]! - (await scoreOf(model, prompt)))).toBeLessThan(1e-5)
})

test('a model with a template reads the filled template, and the score is the probability of its first label', async () => {
  const ranks = await reranker('qwen3')
  // A query that contains a placeholder of the template stays as it is.
  const query = 'a {document} b'
  const text = RERANK_TEMPLATE.replace('{document}', 'Paris').replace('{query}', query)
  const prompt = [...ranks.model.tokenize(text, { parseSpecial: true })]
  const { scores, tokens } = await ranks.rank(query, ['Paris'])
  expect(tokens).toBe(prompt.length)
  expect(Math.abs(scores[0]! - (await scoreOf(ranks.model, prompt)))).toBeLessThan(1e-5)
  expect(scores[0]!).toBeGreaterThan(0)
  expect(scores[0]!).toBeLessThan(1)
})

test('other models, and texts that are too long, are refused; an empty text is not', async () => {
  await refused('model/unsupported', () => reranker('plain'))
  expect((await refused('model/unsupported', () => reranker('headless'))).message).toContain('no scoring head')
  await refused('model/unsupported', () => Reranker.load(native, builtinModel(), ONE))
  const ranks = await reranker('bert')
  const error = await refused('context/full', () => ranks.rank(QUERY, ['a', 'word '.repeat(600)]))
  expect(error.message).toContain('Text 1 has')
  // Such a text is refused before it is tokenized.
  const huge = 'word '.repeat(100_000)
  expect((await refused('context/full', () => ranks.rank('a', [huge, 'b']))).message).toContain('Text 0 has at least')
  expect((await refused('context/full', () => ranks.rank(huge, ['b']))).message).toContain('Text 0 has at least')
  await refused('engine/cancelled', () => ranks.rank(QUERY, DOCUMENTS, AbortSignal.abort()))
  expect((await ranks.rank(QUERY, [''])).scores).toHaveLength(1)
})
