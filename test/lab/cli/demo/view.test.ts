/** Tests the demo's last sentences: each is true whatever happened. */
import { expect, it } from 'vitest'
import type { Reading } from '../../../../src/lab/cli/demo/reader.js'
import { sentences } from '../../../../src/lab/cli/demo/view.js'

const cost = (tokens: number, plain: number) => ({
  ours: { tokens, seconds: tokens / 1000 },
  prefixCache: { tokens: plain, seconds: plain / 1000 },
})

const reading: Reading = {
  conversationTokens: 60_000,
  folds: 28,
  folding: cost(280, 56_000),
  asked: 46,
  right: 45,
  shown: 5000,
  answer: '\nThe current value of a is b.\nThe current value of c is d.',
  restore: { tokens: 2000, again: 0, ...cost(4, 6500) },
  total: cost(61_000, 120_000),
}

it('says what was read, answered, folded and restored, and what that computed', () => {
  const said = sentences(reading, 16_384, 'splice')
  expect(said[0]).toBe('The conversation has 60,000 tokens, 3.7 times the context, and it went on.')
  expect(said[1]).toMatch(/45 of 46 .* 5,000 tokens in context\. It begins: The current value of a is b\.$/)
  expect(said[2]).toMatch(/^28 folds computed 280 tokens, 280 ms\. .* 56,000 tokens, about 56\.0 s/)
  expect(said[3]).toMatch(/None of its 2,000 tokens was computed again; .* after 4 ms\. A prefix cache computes 6,500 tokens/)
  expect(said[4]).toMatch(/computed 61,000 tokens\. A prefix cache computes 120,000 /)
  expect(said[5]).toMatch(/spliced/)
})

it('claims nothing that did not happen', () => {
  const short = { ...reading, conversationTokens: 600, folds: 0, restore: null, answer: ' ' }
  const said = sentences(short, 16_384, 'exact')
  expect(said).toHaveLength(3)
  expect(said[0]).toBe('The conversation has 600 tokens, which the context holds.')
  expect(said[1]).toMatch(/It begins: \(nothing\)$/)
  const again = sentences({ ...reading, restore: { ...reading.restore!, again: 12 } }, 16_384, 'exact')
  expect(again[3]).toMatch(/12 of its 2,000 tokens were computed again/)
})
