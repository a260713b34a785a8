/** Compares kvfold without tools with node-llama-cpp on the same GGUF: the same token ids, and greedily the same answer. */
import { getLlama, type LlamaContext, type LlamaModel, type Token } from 'node-llama-cpp'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { tinyModel } from '../../support/models.js'

const SETTINGS = { cells: 2048, ubatch: 256, threads: 1 } as const
const GENERATED = 64

describe.each(['on', 'off'] as const)('beside node-llama-cpp, flash attention %s', (flashAttention) => {
  let engine: LlamaEngine
  let model: LlamaModel
  let context: LlamaContext

  beforeAll(async () => {
    const path = await tinyModel()
    const { cells, ubatch, threads } = SETTINGS
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), path, {
      cells,
      batch: ubatch,
      ubatch,
      threads,
      batchThreads: threads,
      flashAttention,
      sequences: 1,
    })
    const llama = await getLlama({ gpu: false, build: 'never', progressLogs: false })
    model = await llama.loadModel({ modelPath: path })
    context = await model.createContext({
      contextSize: cells,
      batchSize: ubatch,
      threads,
      sequences: 1,
      flashAttention: flashAttention === 'on',
    })
  })

  afterAll(async () => {
    await engine.dispose()
    await model.dispose()
  })

  const prompts = [
    'One short question about a river.',
    `<|im_start|>user\n${'The quick fold of the first message, again and again. '.repeat(12)}<|im_end|>\n<|im_start|>assistant\n`,
    'Zürich 日本 {"x": [1, 2, 3]}\n\n\n\tthe end <|im_end|> '.repeat(9),
  ]

  it.each(prompts.map((prompt, index) => [index, prompt] as const))(
    'prompt %i: same ids, same greedy answer',
    async (index, prompt) => {
      const ids = engine.model.tokenize(prompt, { parseSpecial: true })
      expect([...ids]).toEqual([...model.tokenize(prompt, true)])

      const { tokens, logprobs } = await engine.complete({
        conversation: conversationId(`peer-${flashAttention}-${index}`),
        tokens: ids,
        maxTokens: GENERATED,
        logprobs: 2,
      })
      const sequence = context.getSequence()
      const theirs: number[] = []
      for await (const token of sequence.evaluate([...ids] as Token[], { temperature: 0, yieldEogToken: false })) {
        theirs.push(token)
        if (theirs.length === GENERATED) break
      }
      void sequence.dispose()

      const differs = theirs.findIndex((token, at) => token !== tokens[at])
      if (differs >= 0 && differs < tokens.length) {
        // The two builds' kernels may break a tie differently. Then the two best tokens are closer than the noise.
        const [best, second] = logprobs[differs]!.top
        expect(best!.logprob - second!.logprob).toBeLessThan(flashAttention === 'on' ? 2e-2 : 1e-3)
      } else expect([...tokens]).toEqual(theirs)
    },
  )
})
