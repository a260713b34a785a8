import { expect, it } from 'vitest'
import { Spending } from '../../../src/runtime/server/spent.js'

it('counts computed and generated tokens by the events, with those of a compaction', () => {
  const spending = new Spending()
  const usage = { promptTokens: 50, cachedTokens: 40, completionTokens: 5 }
  spending.on({ type: 'compaction', content: 'All is well.', stands: 2, paused: false, usage })
  expect(spending.tokens).toBe(15)
  const plan = { type: 'plan', step: 0, shown: 100, reused: 70, compute: 30 } as const
  spending.on(plan)
  spending.on({ type: 'progress', step: 0, done: 20, total: 30 })
  expect(spending.tokens).toBe(35)
  // Another engine takes the step over, and computes all of it.
  spending.on(plan)
  spending.on({ type: 'tokens', tokens: [1, 2] })
  spending.on({ type: 'tokens', tokens: [3] })
  expect(spending.tokens).toBe(35 + 30 + 3)
})
