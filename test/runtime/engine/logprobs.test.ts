import { expect, it } from 'vitest'
import { tokenLogprob } from '../../../src/runtime/engine/job.js'

it('turns logits into natural-log probabilities, best first', () => {
  const logits = Float32Array.from([Math.log(0.1), Math.log(0.6), Math.log(0.1), Math.log(0.2)])
  const { token, logprob, top } = tokenLogprob(logits, 3, 3, (id) => Buffer.from(`t${id}`))
  expect(token).toBe(3)
  expect(Math.exp(logprob)).toBeCloseTo(0.2, 6)
  expect(top.map(({ token }) => token)).toEqual([1, 3, 0])
  expect(top.map(({ text }) => text)).toEqual(['t1', 't3', 't0'])
  expect(Math.exp(top[0]!.logprob)).toBeCloseTo(0.6, 6)
})

it('gives bytes for tokens that are not whole characters, and for no others', () => {
  const pieces = [
    [0xf0, 0x9f],
    [0x98, 0x80],
    [0xef, 0xbb, 0xbf],
    [0xc3, 0xa9],
    [0xef, 0xbf, 0xbd],
  ]
  const { top } = tokenLogprob(Float32Array.from([5, 4, 3, 2, 1]), 0, 5, (id) => Uint8Array.from(pieces[id]!))
  expect(top.map(({ bytes }) => bytes)).toEqual([pieces[0], pieces[1], undefined, undefined, pieces[4]])
  expect(top.map(({ text }) => text).slice(2)).toEqual(['\ufeff', 'é', '\ufffd'])
})
