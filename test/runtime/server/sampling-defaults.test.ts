/** Tests how requests without sampling fields are sampled, over a real server: by the file, by the server's flags, and field by field. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Sampling } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { layerNormModel } from '../../support/models.js'
import { serving, type Serving } from './support/serving.js'

const CHAT = '/v1/chat/completions'
const ASK = {
  messages: [{ role: 'user', content: 'Say something.' }],
  max_tokens: 12,
  kvfold: { grammar: 'root ::= [a-z ] root' },
}

const started = (path: () => Promise<string>, sampling: Sampling = {}): Promise<Serving> =>
  serving({
    sampling,
    engine: async () =>
      LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await path(), { cells: 2048, threads: 1, batchThreads: 1 }),
  })

/** With this recommendation only one token is left to choose, at any temperature. */
const recommending = () =>
  layerNormModel(4, [
    ['general.sampling.temp', { f32: 1.5 }],
    ['general.sampling.top_k', { u32: 1 }],
  ])

const post = async (served: Serving, path: string, body: object): Promise<Record<string, unknown>> => {
  const answer = await fetch(served.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  const told = (await answer.json()) as Record<string, unknown>
  expect([answer.status, told]).toEqual([200, told])
  return told
}
const said = async (served: Serving, more: object = {}): Promise<string> => {
  const { choices } = await post(served, CHAT, { ...ASK, ...more })
  return (choices as { message: { content: string } }[])[0]!.message.content
}
const settings = async (served: Serving): Promise<unknown> => {
  const props = (await (await fetch(`${served.url}/props?model=builtin`)).json()) as {
    default_generation_settings: { params: object }
  }
  return props.default_generation_settings.params
}
/** Returns how many different answers several seeds give. */
const answers = async (served: Serving, more: object = {}): Promise<number> =>
  new Set(await Promise.all([1, 2, 3, 4].map((seed) => said(served, { seed, ...more })))).size

describe('a model whose file recommends sampling settings', () => {
  let served: Serving
  beforeAll(async () => {
    served = await started(recommending)
  })
  afterAll(() => served.close())

  it('uses them, and /props shows them', async () => {
    expect(await settings(served)).toMatchObject({ temperature: 1.5, top_k: 1, top_p: 0.95, min_p: 0.05, repeat_penalty: 1 })
    expect(await answers(served)).toBe(1)
    expect(await said(served, { seed: 1 })).toBe(await said(served, { temperature: 0 }))
  })

  it("uses a request's fields where given, and the file's for the rest", async () => {
    expect(await answers(served, { top_k: 0, top_p: 1, min_p: 0 })).toBeGreaterThan(1)
    expect(await answers(served, { temperature: 100 })).toBe(1)
    expect(await answers(served, { top_k: 0, top_p: 1, min_p: 0, temperature: 0 })).toBe(1)
    const { generation_settings: told } = await post(served, '/completion', {
      prompt: 'a',
      n_predict: 1,
      top_k: 7,
      repeat_last_n: 9,
    })
    expect(told).toMatchObject({ temperature: 1.5, top_k: 7, top_p: 0.95, min_p: 0.05, repeat_last_n: 9 })
    const { temperature, top_p } = await post(served, '/v1/responses', { input: 'Say.', max_output_tokens: 1, top_p: 0.5 })
    expect([temperature, top_p]).toEqual([1.5, 0.5])
  })

  it.each([
    ['/v1/completions', { prompt: 'Say something.', max_tokens: 8 }],
    ['/v1/messages', { messages: ASK.messages, max_tokens: 8 }],
    ['/api/generate', { prompt: 'Say something.', stream: false, options: { num_predict: 8 } }],
  ])('uses them on %s', async (path, body) => {
    const text = async (seed: number) => {
      const { choices, content, response } = await post(served, path, {
        model: 'builtin',
        ...body,
        ...(path === '/api/generate' ? { options: { num_predict: 8, seed } } : { seed }),
      })
      return JSON.stringify((choices as { text: string }[] | undefined)?.[0]?.text ?? content ?? response)
    }
    expect(new Set(await Promise.all([1, 2, 3].map(text))).size).toBe(1)
  })

  it('reports log-probabilities of the model, before filtering', async () => {
    const first = async (more: object) => {
      const { choices } = await post(served, CHAT, { ...ASK, ...more, logprobs: true, top_logprobs: 5 })
      return (choices as { logprobs: { content: { top_logprobs: { logprob: number }[] }[] } }[])[0]!.logprobs.content[0]!
        .top_logprobs
    }
    const [filtered, plain] = [await first({}), await first({ temperature: 1, top_k: 0, top_p: 1, min_p: 0, seed: 1 })]
    expect(filtered).toHaveLength(5)
    filtered.forEach(({ logprob }, at) => {
      expect(logprob).toBeCloseTo(plain[at]!.logprob, 3)
    })
  })
})

describe('a model whose file has no recommendation', () => {
  it("uses llama-server's defaults", async () => {
    const served = await started(() => layerNormModel())
    try {
      expect(await settings(served)).toMatchObject({ temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 })
    } finally {
      await served.close()
    }
  })

  it("uses the server's flags, which take precedence over the file", async () => {
    const served = await started(recommending, { topK: 5, temperature: 0 })
    try {
      expect(await settings(served)).toMatchObject({ temperature: 0, top_k: 5, top_p: 0.95 })
      expect(await answers(served)).toBe(1)
    } finally {
      await served.close()
    }
  })
})
