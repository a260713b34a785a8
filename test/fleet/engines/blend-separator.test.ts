/**
 * Shows why no option puts LMCache's separator between fragments. LMCache looks for its tokens, and in a chat message the same text has
 * other tokens.
 */
import { describe, expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { openNative } from '../../../src/runtime/native/binding.js'

/** The default of LMCache's `blend_special_str`. */
const SEPARATOR = ' # # '

describe("LMCache's separator in the text of a message", () => {
  it('has other tokens before a word, and its own before a line break', async () => {
    const native = await openNative({ gpu: 'cpu' })
    const vocabulary = await native.loadModel(builtinModel(), { vocabOnly: true })
    try {
      const wanted = vocabulary.tokenize(SEPARATOR)
      const isFound = (text: string) => {
        const tokens = vocabulary.tokenize(text)
        return tokens.some((_, from) => wanted.every((token, at) => tokens[from + at] === token))
      }
      expect(isFound(`alpha${SEPARATOR}beta`)).toBe(false)
      expect(isFound(`alpha${SEPARATOR}\nbeta`)).toBe(true)
    } finally {
      await vocabulary.dispose()
    }
  })
})
