/** Threads make and score the same samples as this thread, from source and under another loader. */
import { afterAll, describe, expect, it } from 'vitest'
import { openBench, type Bench } from '../../../src/lab/run/pool.js'
import { openTask } from '../../../src/lab/tasks/open.js'

describe('a pool', () => {
  let pool: Bench | null = null
  afterAll(() => pool?.close())

  it('gives the same results as this thread', async () => {
    const tasks = [
      await openTask({ task: 'pi-llm', options: { updates: [4], samples: 2, seed: 3 } }),
      await openTask({ task: 'needles', options: { needles: [3], lengths: [1000], samples: 1 } }),
    ]
    const own = openBench(tasks, 0)
    pool = openBench(tasks, 1)
    const places = [
      [0, 0],
      [0, 1],
      [1, 0],
    ] as const
    for (const [task, index] of places) {
      const sample = await pool.sample(task, index)
      expect(sample).toEqual(await own.sample(task, index))
      for (const answer of ['', 'no idea', JSON.stringify(sample.truth), sample.question])
        expect(await pool.score(task, sample, answer)).toEqual(await own.score(task, sample, answer))
    }
    // Errors keep their code.
    await expect(pool.sample(0, 2)).rejects.toMatchObject({ name: 'KvfoldError', code: 'eval/bad-data' })
    await expect(own.sample(0, 2)).rejects.toMatchObject({ name: 'KvfoldError', code: 'eval/bad-data' })
  })
})
