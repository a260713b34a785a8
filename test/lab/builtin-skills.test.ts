/** Skills of the built-in model that no evaluation task tests, on held-out seeds. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Session } from '../../src/runtime/agents/session.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { lastValues, ownWords, PI_STREAM_END, PI_STREAM_START, piSample, piScore } from '../../src/lab/pi-llm.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { LONG } from '../support/long.js'

let engine: LlamaEngine

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1 })
})
afterAll(() => engine.dispose())

/** Returns the share of last values that are right when `hide` has hidden the older two thirds of a stream. */
async function read(hide: (session: Session, id: string, keys: readonly string[]) => Promise<unknown> | undefined) {
  const shares: number[] = []
  for (let sample = 0; sample < 10; sample++) {
    const { keys, updates, prompt } = piSample({ words: ownWords(), updates: 4, keys: 16, seed: 20_261_122, sample })
    const session = new Session({
      engine,
      id: conversationId(`skills-${sample}`),
      contextTools: false,
      generation: { maxTokens: 256, sampling: { temperature: 0 } },
    })
    session.conversation.add({ role: 'user', content: prompt })
    const cut = session.conversation.fragment({ startMarker: PI_STREAM_START, endMarker: PI_STREAM_END, numFragments: 3 })
    if (!cut.ok) throw new Error(cut.message)
    for (const { id } of cut.fragments.slice(0, 2)) await hide(session, id, keys)
    const { answer } = await session.resume()
    session.forget()
    const truth = { last: Object.fromEntries(lastValues(updates)), earlier: {} }
    shares.push(piScore(truth, answer).accuracy)
  }
  return shares.reduce((sum, share) => sum + share, 0) / shares.length
}

describe.runIf(LONG)('the built-in model', () => {
  it('writes summaries that keep their focus, and answers from them', async () => {
    const folded = await read((session, id) => {
      session.conversation.fold(id)
      return undefined
    })
    const summarised = await read((session, id, keys) => {
      const text = session.conversation.text(session.conversation.fragments.find((fragment) => fragment.id === id)!)
      return session.summarize(id, keys.filter((key) => text.includes(`${key}: `)).join(', '))
    })
    console.log(`right after summaries ${(100 * summarised).toFixed(1)} %, after folds ${(100 * folded).toFixed(1)} %`)
    expect(summarised).toBeGreaterThan(0.9)
    expect(folded).toBeLessThan(summarised - 0.1)
  }, 120_000)
})
