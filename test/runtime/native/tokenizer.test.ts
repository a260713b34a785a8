import fc from 'fast-check'
import { getLlama } from 'node-llama-cpp'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeModel } from '../../../src/runtime/native/types.js'
import { realVocabulary } from '../../support/bundle.js'
import { tinyModel } from '../../support/models.js'
import { refused } from './support/fixture.js'

const TEXTS = [
  'The stream of updates starts here.\nfruit: goldharbor; river: ashlane;',
  '  leading, trailing  \n\n\n\ttabs\t',
  'Grüße, 日本語のテキスト, مرحبا, 🙂👩‍👩‍👧',
  '<|im_start|>user\nnot a control token here<|im_end|>',
  'x = {"name": "fold_fragment", "arguments": {"fragment_id": "f0a1b2"}}',
  '1234567890 3.14159 0xFF',
]

let native: Native
let model: NativeModel

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  model = await native.loadModel(await tinyModel())
})

afterAll(() => model.dispose())

describe('tokens', () => {
  test('any text comes back as it was', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 60 }), (text) => {
        // A lone surrogate has no UTF-8 form.
        const expected = Buffer.from(text).toString()
        expect(model.detokenize(model.tokenize(text))).toBe(expected)
      }),
      { numRuns: 300 },
    )
  })

  test('the pieces joined are the text', () => {
    for (const text of TEXTS) {
      const pieces = Array.from(model.tokenize(text), (token) => model.piece(token))
      expect(Buffer.concat(pieces).toString('utf8')).toBe(text)
    }
  })

  test('tokenizing many texts on another thread gives the tokens of each text', async () => {
    const texts = ['', ...TEXTS, 'a long text, of some length. '.repeat(4_000), ...TEXTS]
    for (const options of [{}, { parseSpecial: true, addSpecial: true }])
      expect(await model.tokenizeAll(texts, options)).toEqual(texts.map((text) => model.tokenize(text, options)))
    expect(await model.tokenizeAll(TEXTS)).toEqual(TEXTS.map((text) => model.tokenize(text)))
  })

  test('short texts do not wait for long ones, two of which may be in progress', async () => {
    const long = 'word and word '.repeat(100_000)
    const ended: string[] = []
    const read = async (name: string, text: string) => {
      await model.tokenizeAll([text])
      ended.push(name)
    }
    await Promise.all([
      ...['first', 'second', 'third', 'fourth'].map((name) => read(name, long)),
      read('shorter', long.slice(0, 50_000)),
      read('short', 'a word'),
    ])
    expect(ended[0]).toBe('short')
    expect(ended.indexOf('shorter')).toBeLessThan(ended.indexOf('third'))
    expect(ended).toHaveLength(6)
  })

  test('disposing a model lets it finish the text in progress', async () => {
    const other = await native.loadModel(await tinyModel())
    const reading = other.tokenizeAll(['word '.repeat(100_000)])
    await other.dispose()
    expect((await reading)[0]!.length).toBeGreaterThan(1_000)
    await expect(other.tokenizeAll(['word '.repeat(100_000)])).rejects.toMatchObject({ code: 'native/disposed' })
  })

  test('control tokens are recognised only on request', () => {
    const { eos } = model.special
    const text = '<|im_end|>'
    expect([...model.tokenize(text, { parseSpecial: true })]).toEqual([eos])
    expect([...model.tokenize(text)]).not.toContain(eos)
    expect(model.detokenize([eos ?? -1])).toBe('')
    expect(model.detokenize([eos ?? -1], true)).toBe(text)
    expect(model.piece(eos ?? -1, false)).toHaveLength(0)
    expect(Buffer.from(model.piece(eos ?? -1)).toString()).toBe(text)
    expect(model.isControl(eos ?? -1)).toBe(true)
    expect(model.isEndOfGeneration(eos ?? -1)).toBe(true)
    expect(model.isControl(97)).toBe(false)
    expect(model.isEndOfGeneration(97)).toBe(false)
  })

  test('a piece is a copy', () => {
    model.piece(97).fill(0)
    expect(model.detokenize([97])).not.toBe('\0')
  })

  test.each([-1, 400, 1.5, NaN])('token %s is refused', async (token) => {
    await refused('native/bad-argument', () => model.piece(token))
    await refused('native/bad-argument', () => model.isControl(token))
    await refused('native/bad-argument', () => model.detokenize([token]))
  })

  test('1 MB of text', { timeout: 120_000 }, () => {
    const text = 'One message as long as a book. '.repeat(33_000)
    const tokens = model.tokenize(text)
    expect(tokens.length).toBeGreaterThan(200_000)
    expect(model.detokenize(tokens) === text).toBe(true)
  })
})

describe('against node-llama-cpp', () => {
  test.each(['gpt-2', 'llama-spm', 'falcon'])('%s: the same ids', async (name) => {
    const path = realVocabulary(name)
    const ours = await native.loadModel(path, { vocabOnly: true })
    const llama = await getLlama({ gpu: false, build: 'never', progressLogs: false, logger: () => undefined })
    const theirs = await llama.loadModel({ modelPath: path, vocabOnly: true })
    try {
      for (const text of TEXTS) {
        expect([...ours.tokenize(text)]).toEqual(theirs.tokenize(text))
        expect([...ours.tokenize(text, { parseSpecial: true })]).toEqual(theirs.tokenize(text, true))
      }
    } finally {
      await theirs.dispose()
      await ours.dispose()
    }
  })

  test('the synthetic vocabulary: the same ids', async () => {
    const llama = await getLlama({ gpu: false, build: 'never', progressLogs: false, logger: () => undefined })
    const theirs = await llama.loadModel({ modelPath: await tinyModel(), vocabOnly: true })
    try {
      for (const text of TEXTS) {
        expect([...model.tokenize(text)]).toEqual(theirs.tokenize(text))
        expect([...model.tokenize(text, { parseSpecial: true })]).toEqual(theirs.tokenize(text, true))
      }
    } finally {
      await theirs.dispose()
    }
  })

  test('a long run of characters does not overflow the stack of a vocabulary that splits by regular expression', async () => {
    const falcon = await native.loadModel(realVocabulary('falcon'), { vocabOnly: true })
    try {
      const text = '!?'.repeat(500_000)
      expect(falcon.detokenize(falcon.tokenize(text)) === text).toBe(true)
    } finally {
      await falcon.dispose()
    }
  })
})
