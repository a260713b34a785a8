/** Tests the arithmetic about the caches of engines that are not run. */
import { describe, expect, it } from 'vitest'
import { kept } from '../../bench/runtime/edit-price.js'

const numbers = (from: number, count: number) => Array.from({ length: count }, (_, at) => from + at)
const step = (prompt: readonly number[], said: readonly number[]) => ({
  prompt: Int32Array.from(prompt),
  all: Int32Array.from([...prompt, ...said]),
})

describe('the kept tokens', () => {
  const first = numbers(0, 40)
  const later = [...first, ...numbers(100, 8)]
  const folded = [...numbers(0, 20), ...numbers(200, 10)]
  const steps = [step(first, numbers(100, 4)), step(later, [300]), step(folded, [400]), step(later, [300])]

  it('are those of the longest common beginning, except the last token of a prompt', () => {
    expect(kept(steps, 1)).toEqual({ computed: 44 + 5 + 11 + 2, cached: 44 + 20 + 47 })
  })

  it('are whole blocks if the engine keeps blocks', () => {
    expect(kept(steps, 16)).toEqual({ computed: 44 + 17 + 15 + 17, cached: 32 + 16 + 32 })
  })
})
