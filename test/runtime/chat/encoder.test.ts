import { describe, expect, it } from 'vitest'
import { Tracked } from '../../../src/runtime/chat/tracked.js'
import { Encoder, type Tokenizer } from '../../../src/runtime/chat/tokens/encoder.js'

/** Bytes, and one control token `<e>` (256) that swallows the whitespace before it, as Mistral's and others do. */
const swallowing: Tokenizer = {
  special: { bos: null, eos: 256, addBos: false },
  tokenize(text, { parseSpecial = false } = {}) {
    if (!parseSpecial) return Int32Array.from(Buffer.from(text))
    const parts = text.split('<e>')
    return Int32Array.from(
      parts.flatMap((part, at) => (at === parts.length - 1 ? [...Buffer.from(part)] : [...Buffer.from(part.trimEnd()), 256])),
    )
  },
  piece: (token) => Buffer.from(token === 256 ? '<e>' : String.fromCharCode(token)),
  isControl: (token) => token === 256,
}

describe('content before a control token that swallows whitespace', () => {
  const encoded = (content: string) =>
    new Encoder(swallowing).encode(
      Tracked.join([Tracked.of(content, { field: 'content', message: 0 }), Tracked.of('<e>', 'template')]),
    ).tokens

  it('loses its last whitespace alone', () => {
    expect([...encoded('a b \n\t')]).toEqual([...Buffer.from('a b'), 256])
    expect([...encoded(' \n')]).toEqual([256])
  })

  it('may have a long run of spaces', () => {
    const begun = performance.now()
    expect(encoded(`${' '.repeat(200_000)}x`)).toHaveLength(200_002)
    expect(performance.now() - begun).toBeLessThan(3000)
  })
})
