/** Tests where an answer looks when its conversation has answers that were sampled in another vocabulary. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { answerMass } from '../../../src/runtime/attention/answer-mass.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'

let engine: LlamaEngine

beforeAll(async () => {
  const settings = { threads: 1, batchThreads: 1, cells: 1024, attention: true } as const
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), settings)
})
afterAll(() => engine.dispose())

it('measures the tokens that the engine shows, not the foreign ones of a stored answer', async () => {
  const answer = (content: string, foreign: boolean): ChatMessage => ({
    role: 'assistant',
    content,
    ...(foreign ? { sampled: { text: content, tokens: Int32Array.from({ length: 40 }, (_, at) => 300 + at) } } : {}),
  })
  const massOf = (foreign: boolean) =>
    answerMass({
      ...{ engine, conversation: conversationId(`looks ${foreign}`), tools: [], cuts: [] },
      messages: [
        { role: 'user', content: 'Which fruit is red?' },
        answer('An apple is red.', foreign),
        { role: 'user', content: 'And which one is blue?' },
        answer('A plum is blue.', foreign),
      ],
      shown: [{ messages: 3, edits: [], contract: 'exact' }],
    })
  expect(await massOf(true)).toEqual(await massOf(false))
})
