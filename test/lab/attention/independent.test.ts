/** The built-in model in two engines, llama.cpp and ONNX Runtime (Transformers.js): the same token ids, the same logits. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Random } from '../../../src/runtime/core/random.js'
import { span } from '../../../src/runtime/core/span.js'
import { ownWords, piSample } from '../../../src/lab/pi-llm.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeModel } from '../../../src/runtime/native/types.js'
import { largest, llamaLogits } from './support/engines.js'
import { OnnxModel, onnxTokenizer, without } from './support/onnx-model.js'

interface Golden {
  readonly texts: readonly { readonly text: string }[]
  readonly prompts: readonly { readonly name: string; readonly text: string }[]
}

interface Added {
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[]
}

const builtin = fileURLToPath(new URL('../../../native-models/builtin/', import.meta.url))
const golden = JSON.parse(readFileSync(`${builtin}golden.json`, 'utf8')) as Golden
/**
 * llama.cpp's CPU products round activations to F16 where the weights are F16; ONNX Runtime computes in F32. Measured: 0.22 on an AMD EPYC.
 */
const F16_LOGITS = 0.3

let llama: NativeModel
let onnx: OnnxModel
let encode: (text: string) => readonly number[]

beforeAll(async () => {
  llama = await (await openNative({ gpu: 'cpu' })).loadModel(`${builtin}kvfold-tiny.gguf`)
  onnx = await OnnxModel.load(`${builtin}onnx`)
  encode = await onnxTokenizer(`${builtin}onnx`)
})
afterAll(async () => {
  await onnx.dispose()
  await llama.dispose()
})

it('the ONNX model is the export of the GGUF beside it', () => {
  const sha256 = createHash('sha256')
    .update(readFileSync(`${builtin}kvfold-tiny.gguf`))
    .digest('hex')
  expect(readFileSync(`${builtin}onnx/onnx/model.onnx`).includes(sha256)).toBe(true)
})

describe('the tokenizer', () => {
  const expected = (text: string) => [...llama.tokenize(text, { parseSpecial: true })]
  const sample = piSample({ words: ownWords(), updates: 4, seed: 7 })

  it.each([
    ...golden.texts.map(({ text }) => text),
    ...golden.prompts.map(({ text }) => text),
    sample.prompt,
    sample.answer,
    '',
    ' ',
    '  two   spaces, and , a  comma ,,  ,',
    'river:boat:goldharbor; goldharbor.goldharbor;',
    ' goldharborgoldharbor; Goldharbor; goldharbo',
    'abc 0123456789abcdef00 sss s0s1 deadbeef 121 212',
    'f1a2b3: 12; 3. 45, 6',
    '\r\n\ttabs\u00a0and\u200bothers \u2028 \u{1F468}\u200D\u{1F469}\u200D\u{1F467} e\u0301 \ufeff',
    '<|im_start|>user\n<|im_end|> <|im_end> <unk> <0x41> <s> </tool_call>}}\n</tool_call>',
    'constructor __proto__ toString',
    'Ünïcödé ▁ 日本語 한국어 العربية \u0000 \u0007',
  ])('gives the same ids as llama.cpp: %.40j', (text) => {
    expect(encode(text)).toEqual(expected(text))
  })

  it('gives the same ids for 4,000 texts made of pieces of tokens', () => {
    const random = new Random(2026)
    const pick = <T>(items: readonly T[]) => items[random.below(items.length)]!
    const { added_tokens: added } = JSON.parse(readFileSync(`${builtin}onnx/tokenizer.json`, 'utf8')) as Added
    const special = added.map(({ content }) => content)
    const ids = Array.from({ length: llama.info.vocabulary }, (_, token) => token)
    const ordinary = ids.filter((token) => !added.some(({ id }) => id === token)).map((token) => llama.detokenize([token]))
    expect(ordinary.length).toBeGreaterThan(1000)
    const odd = [' ', ',', ';', '.', ':', '\n', 'é', '😀', ', ', 'a', '1', '▁', '<', '\ud800']
    const piece = () => {
      const kind = random.below(10)
      if (kind === 0) return `\n${pick(special)}\n`
      if (kind < 4) return pick(odd)
      const text = pick(ordinary)
      return kind < 7 ? text : text.slice(0, 1 + random.below(text.length))
    }
    const differing = Array.from({ length: 4000 }, () => Array.from({ length: 1 + random.below(6) }, piece).join('')).filter(
      (text) => JSON.stringify(encode(text)) !== JSON.stringify(expected(text)),
    )
    expect(differing).toEqual([])
  })
})

describe('the logits', () => {
  const { prompt } = piSample({ words: ownWords(), updates: 4, seed: 11 })
  const tokens = () => llama.tokenize(`<|im_start|>user\n${prompt}<|im_end|>\n<|im_start|>assistant\n`, { parseSpecial: true })

  it('are the same as in llama.cpp at every token of a PI-LLM prompt', async () => {
    const all = tokens()
    expect(all.length).toBeGreaterThan(550)
    const { logits } = await onnx.run(all)
    expect(logits.length).toBe(all.length * llama.info.vocabulary)
    const worst = largest(await llamaLogits(llama, all), logits)
    console.log(`largest difference of a logit: ${worst.toExponential(1)}`)
    expect(worst).toBeLessThan(F16_LOGITS)
  })

  it('are the same as in llama.cpp after tokens were removed from the cache and their positions left open', async () => {
    const [all, from, hole] = [tokens(), 500, span(100, 350)]
    const { past } = await onnx.run(all.subarray(0, from))
    const spliced = await onnx.run(all.subarray(from), { past: without(past, hole), start: from })
    const worst = largest(await llamaLogits(llama, all, { from, hole }), spliced.logits)
    expect(worst).toBeLessThan(F16_LOGITS)
    // The hole matters: it changes the logits by far more.
    const whole = await onnx.run(all.subarray(from), { past, start: from })
    expect(largest(whole.logits, spliced.logits)).toBeGreaterThan(10 * F16_LOGITS)
  })
})
