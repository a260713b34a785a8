import { expect, it } from 'vitest'
import { tokenLogprob } from '../../src/engine/logprobs.js'

it('turns logits into natural-log probabilities, best first', () => {
  const logits = Float32Array.from([Math.log(0.1), Math.log(0.6), Math.log(0.1), Math.log(0.2)])
  const { token, logprob, top } = tokenLogprob(logits, 3, 3, (id) => `t${id}`)
  expect(token).toBe(3)
  expect(Math.exp(logprob)).toBeCloseTo(0.2, 6)
  expect(top.map(({ token }) => token)).toEqual([1, 3, 0])
  expect(top.map(({ text }) => text)).toEqual(['t1', 't3', 't0'])
  expect(Math.exp(top[0]!.logprob)).toBeCloseTo(0.6, 6)
})
