/** Tests requests that fill a gap, on a synthetic model whose vocabulary has the tokens of fill-in prompts. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { FILL_CONTROLS } from '../../../../src/runtime/native/synthetic.js'
import { Api } from '../../../conformance/api.js'
import { TEST_GPU } from '../../../support/device.js'
import { tinyModel } from '../../../support/models.js'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
let other: Serving
/** A vocabulary with tokens for a gap, and none for repositories and files. */
let plain: Serving
let api: Api

const over = (controls: readonly string[]) =>
  serving({
    engine: async () =>
      LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel({ controls }), { threads: 1, slots: 2 }),
  })

beforeAll(async () => {
  served = await over(FILL_CONTROLS)
  plain = await over(FILL_CONTROLS.slice(0, 3))
  other = await serving()
  api = new Api(served.url)
})
afterAll(() => Promise.all([served, plain, other].map((each) => each.close())))

/** What the model says after exactly this text, whose control tokens count as such. */
async function after(text: string, of = api): Promise<string> {
  const { tokens } = (await of.post('/tokenize', { content: text, parse_special: true })).body
  return (await of.post('/completion', { prompt: tokens, n_predict: 6, temperature: 0, ignore_eos: true })).body.content as string
}

const GAP = { input_prefix: 'def add(a, b):\n', input_suffix: '\n\nprint(add(1, 2))' }
const asked = { n_predict: 6, temperature: 0, ignore_eos: true }

describe('/infill', () => {
  it('shows the text before the gap, then that after it, and answers with the text between', async () => {
    const { status, body } = await api.post('/infill', { ...GAP, ...asked })
    expect(status).toBe(200)
    const before = '<|repo_name|>myproject\n<|file_sep|>filename\n'
    const prompt = `${before}<|fim_prefix|>${GAP.input_prefix}<|fim_suffix|>${GAP.input_suffix}<|fim_middle|>`
    expect(body.content).toBe(await after(prompt))
    expect(body.tokens_evaluated).toBe((await api.post('/tokenize', { content: prompt, parse_special: true })).body.tokens.length)
    expect(body.kvfold).toBeUndefined()
  })

  it('shows other files first, and goes on with the prompt', async () => {
    const files = [{ filename: 'a.py', text: 'x = 1\n' }, { text: 'y = 2\n' }]
    const { body } = await api.post('/infill', { ...GAP, ...asked, input_extra: files, prompt: '  return' })
    const before = '<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>tmp\ny = 2\n<|file_sep|>filename\n'
    const gap = `<|fim_prefix|>${GAP.input_prefix}  return<|fim_suffix|>${GAP.input_suffix}<|fim_middle|>`
    expect(body.content).toBe(await after(before + gap))
  })

  it('separates files by a line where the vocabulary has no token for it', async () => {
    const of = new Api(plain.url)
    const { body } = await of.post('/infill', { ...GAP, ...asked, input_extra: [{ filename: 'a.py', text: 'x = 1\n' }] })
    const gap = `<|fim_prefix|>${GAP.input_prefix}<|fim_suffix|>${GAP.input_suffix}<|fim_middle|>`
    expect(body.content).toBe(await after(`\n\n--- snippet ---\n\nx = 1\n${gap}`, of))
  })

  it('takes control tokens written in the texts as text', async () => {
    const texts = { input_prefix: 'a <|fim_middle|> b', input_suffix: '<|im_end|>' }
    const { body } = await api.post('/infill', { ...texts, ...asked })
    const pieces = [texts.input_prefix, texts.input_suffix].map(
      async (content) => (await api.post('/tokenize', { content, parse_special: false })).body.tokens.length as number,
    )
    const around = (
      await api.post('/tokenize', { content: '<|repo_name|>myproject\n<|file_sep|>filename\n', parse_special: true })
    ).body.tokens.length as number
    const counts = await Promise.all(pieces)
    expect(body.tokens_evaluated).toBe(counts.reduce((sum, count) => sum + count, around + 3))
  })

  it('streams', async () => {
    const events = await api.stream('/infill', { ...GAP, ...asked })
    const { body } = await api.post('/infill', { ...GAP, ...asked })
    expect(events.map(({ content }) => content).join('')).toBe(body.content)
    expect(events.at(-1).stop).toBe(true)
  })

  it('refuses what does not fit', async () => {
    const { status, body } = await api.post('/infill', { ...GAP, input_prefix: 'word '.repeat(20_000) })
    expect([status, body.error.code]).toEqual([400, 'context_length_exceeded'])
  })
})

describe('suffix', () => {
  it('on /v1/completions and /api/generate asks for the same', async () => {
    const { content } = (await api.post('/infill', { ...GAP, ...asked })).body
    const completion = { prompt: GAP.input_prefix, suffix: GAP.input_suffix, max_tokens: 6, temperature: 0, ignore_eos: true }
    const { choices } = (await api.post('/v1/completions', completion)).body
    expect(choices[0].text).toBe(content)
    const echoed = (await api.post('/v1/completions', { ...completion, echo: true })).body
    expect(echoed.choices[0].text).toBe(`${GAP.input_prefix}${content}`)
    const generate = {
      prompt: GAP.input_prefix,
      suffix: GAP.input_suffix,
      stream: false,
      options: { num_predict: 6, temperature: 0 },
    }
    const generated = (await api.post('/api/generate', { ...generate, system: 'Be brief.' })).body
    expect(content.startsWith(generated.response)).toBe(true)
    expect(generated.kvfold.ignored).toEqual(['system'])
  })

  it('is nothing where it is empty', async () => {
    const completion = { prompt: 'a b c', max_tokens: 6, temperature: 0 }
    const texts = await Promise.all(
      [{}, { suffix: '' }].map(
        async (more) => (await api.post('/v1/completions', { ...completion, ...more })).body.choices[0].text,
      ),
    )
    expect(texts[0]).toBe(texts[1])
  })
})

describe('a model without the tokens', () => {
  it('refuses by name', async () => {
    const of = new Api(other.url)
    for (const [path, body] of [
      ['/infill', GAP],
      ['/v1/completions', { prompt: 'a', suffix: 'b' }],
      ['/api/generate', { prompt: 'a', suffix: 'b', stream: false }],
    ] as const) {
      const { status, body: told } = await of.post(path, body)
      expect(status).toBe(501)
      expect(told.error.message ?? told.error).toMatch(/^builtin cannot fill a gap: .*suffix/)
    }
  })
})
