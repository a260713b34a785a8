/** Tests that a page draws no more often than it has time for. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { PacedDrawing } from '../../../src/runtime/dashboard/paced-drawing.js'

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

/** Makes something that changes every millisecond, and whose painting takes `took`. Returns when it was drawn, and what was drawn. */
async function drawn(took: number, milliseconds: number): Promise<{ readonly times: number[]; readonly values: number[] }> {
  const times: number[] = []
  const values: number[] = []
  const began = performance.now()
  let value = 0
  const drawing = new PacedDrawing(
    () => {
      times.push(performance.now() - began)
      values.push(value)
    },
    () => new Promise((resolve) => setTimeout(resolve, took)),
  )
  for (; value < milliseconds; value++) {
    drawing.soon()
    await vi.advanceTimersByTimeAsync(1)
  }
  drawing.now()
  await vi.advanceTimersByTimeAsync(10 * took + 100)
  return { times, values }
}

it('draws at once, then once a frame, then the end', async () => {
  const { times, values } = await drawn(1, 100)
  expect(times).toEqual([0, 17, 34, 51, 68, 85, 100])
  expect(values.at(-1)).toBe(100)
})

it('goes on soon after a page was hidden', async () => {
  const { times } = await drawn(10_000, 12_500)
  expect(times).toEqual([0, 11_000, 12_500])
})

it('leaves half of the time to the user where drawing is slow', async () => {
  const { times } = await drawn(50, 950)
  expect(times).toEqual([0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950])
})
