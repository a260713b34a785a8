/** What engines that are not run have of prompts, by arithmetic. */
import { describe, expect, it } from 'vitest'
import { kept } from '../../bench/runtime/edit-price.js'

const numbers = (from: number, count: number) => Array.from({ length: count }, (_, at) => from + at)
const step = (prompt: readonly number[], said: readonly number[]) => ({
  prompt: Int32Array.from(prompt),
  all: Int32Array.from([...prompt, ...said]),
})

describe('what is kept', () => {
  const first = numbers(0, 40)
  const later = [...first, ...numbers(100, 8)]
  const folded = [...numbers(0, 20), ...numbers(200, 10)]
  const steps = [step(first, numbers(100, 4)), step(later, [300]), step(folded, [400]), step(later, [300])]

  it('is every token of the longest beginning, but for the last of a prompt', () => {
    expect(kept(steps, 1)).toEqual({ computed: 44 + 5 + 11 + 2, cached: 44 + 20 + 47 })
  })

  it('is whole blocks of it, where blocks are kept', () => {
    expect(kept(steps, 16)).toEqual({ computed: 44 + 17 + 15 + 17, cached: 32 + 16 + 32 })
  })
})
