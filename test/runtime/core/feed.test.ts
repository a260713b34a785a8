import { describe, expect, it } from 'vitest'
import { Feed } from '../../../src/runtime/core/feed.js'

const all = async <T>(events: AsyncIterable<T>): Promise<T[]> => {
  const seen: T[] = []
  for await (const event of events) seen.push(event)
  return seen
}

describe('Feed', () => {
  it('keeps unread events in order, and ends with the answer', async () => {
    const feed = new Feed<number, string>(async (push) => {
      push(1)
      await Promise.resolve()
      push(2)
      return 'done'
    })
    expect(await feed.answer).toBe('done')
    expect(await all(feed)).toEqual([1, 2])
  })

  it('delivers events while it runs', async () => {
    let go = (): void => undefined
    const feed = new Feed<number, void>(async (push) => {
      push(1)
      await new Promise<void>((resolve) => (go = resolve))
      push(2)
    })
    const reader = feed[Symbol.asyncIterator]() as AsyncIterator<number>
    expect(await reader.next()).toEqual({ done: false, value: 1 })
    go()
    expect(await reader.next()).toEqual({ done: false, value: 2 })
    expect((await reader.next()).done).toBe(true)
  })

  it('ends the events and the answer with an error, after the events pushed before it', async () => {
    const feed = new Feed<number, string>((push) => {
      push(1)
      return Promise.reject(new Error('broken'))
    })
    const seen: number[] = []
    const reading = (async () => {
      for await (const event of feed) seen.push(event)
    })()
    await expect(reading).rejects.toThrow('broken')
    expect(seen).toEqual([1])
    await expect(feed.answer).rejects.toThrow('broken')
  })

  it('passes events to a listener at once, those from before it first', async () => {
    const seen: (number | string)[] = []
    let go = (): void => undefined
    const feed = new Feed<number, string>(async (push) => {
      push(1)
      await new Promise<void>((resolve) => (go = resolve))
      push(2)
      seen.push('pushed')
      return 'done'
    })
    const answer = feed.each((event) => {
      seen.push(event)
    })
    expect(seen).toEqual([1])
    go()
    expect(await answer).toBe('done')
    expect(seen).toEqual([1, 2, 'pushed'])
  })

  it('ends a listener with the error of the task', async () => {
    const feed = new Feed<number, string>(() => Promise.reject(new Error('broken')))
    await expect(feed.each(() => undefined)).rejects.toThrow('broken')
  })

  it('keeps the error of a listener from the task, and gives the listener no more events', async () => {
    const seen: number[] = []
    const feed = new Feed<number, string>(async (push) => {
      push(1)
      await Promise.resolve()
      push(2)
      push(3)
      return 'done'
    })
    const answer = feed.each((event) => {
      seen.push(event)
      if (event === 2) throw new Error('too much')
    })
    await expect(answer).rejects.toThrow('too much')
    expect(await feed.answer).toBe('done')
    expect(seen).toEqual([1, 2])
  })
})
