/** Tests the order of the queue: turns between tenants, priority and age within one, limits, cancellation. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Queue, QueueFull } from '../../../../src/runtime/server/threads/queue.js'

const settled = () => new Promise<void>((resolve) => setImmediate(resolve))

/** A queue that records its entries as they begin, each with the function that frees its slot. */
function watchedQueue(slots: number, limit = 100) {
  const queue = new Queue({ slots, limit })
  const begun: string[] = []
  const leave = new Map<string, () => void>()
  const enter = (name: string, tenant: string, priority = 0, signal?: AbortSignal, onPosition?: (before: number) => void) =>
    queue
      .enter({
        tenant,
        priority,
        ...(signal === undefined ? {} : { signal }),
        ...(onPosition === undefined ? {} : { onPosition }),
      })
      .then((release) => {
        begun.push(name)
        leave.set(name, release)
      })
  return { queue, begun, leave, enter }
}

describe('the queue', () => {
  it('starts requests at once while slots are free, and then in turns between tenants', async () => {
    const { begun, leave, enter, queue } = watchedQueue(1)
    void enter('a1', 'a')
    for (const name of ['a2', 'a3', 'a4']) void enter(name, 'a')
    for (const name of ['b1', 'b2']) void enter(name, 'b')
    await settled()
    expect([begun, queue.running, queue.waiting]).toEqual([['a1'], 1, 5])
    for (let at = 0; at < 6; at++) {
      leave.get(begun.at(-1)!)!()
      await settled()
    }
    expect(begun).toEqual(['a1', 'a2', 'b1', 'a3', 'b2', 'a4'])
    expect([queue.running, queue.waiting]).toEqual([0, 0])
  })

  it('orders by priority before age, but only within a tenant', async () => {
    const { begun, leave, enter } = watchedQueue(1)
    void enter('first', 'a')
    void enter('a-low', 'a', -1)
    void enter('a-old', 'a')
    void enter('a-high', 'a', 9)
    void enter('b', 'b', -100)
    await settled()
    for (let at = 0; at < 5; at++) {
      leave.get(begun.at(-1)!)!()
      await settled()
    }
    expect(begun).toEqual(['first', 'a-high', 'b', 'a-old', 'a-low'])
  })

  it('refuses requests beyond its limit, and accepts the next one when there is room', async () => {
    const { leave, enter, begun } = watchedQueue(1, 1)
    void enter('a', 'a')
    void enter('b', 'a')
    await expect(enter('c', 'z')).rejects.toBeInstanceOf(QueueFull)
    leave.get('a')?.()
    await settled()
    leave.get('a')!()
    await settled()
    expect(begun).toEqual(['a', 'b'])
    void enter('d', 'a')
    await settled()
    await expect(enter('e', 'a')).rejects.toMatchObject({ waiting: 1 })
  })

  it('gives a place of the tenant with the most requests to another one when it is full', async () => {
    const { leave, enter, begun, queue } = watchedQueue(1, 4)
    void enter('a', 'a')
    const waiting = ['a1', 'a2', 'a3', 'a4'].map((name, at) => enter(name, 'a', at === 1 ? -1 : 0).catch(() => `${name} left`))
    void enter('b1', 'b')
    expect(await Promise.race(waiting)).toBe('a2 left')
    void enter('c1', 'c')
    expect(await Promise.race([waiting[0], waiting[2], waiting[3]])).toBe('a4 left')
    // Two requests of a, one of b and one of c: a further one of these would only change places.
    for (const tenant of ['a', 'b', 'c']) await expect(enter('x', tenant)).rejects.toBeInstanceOf(QueueFull)
    expect(queue.waiting).toBe(4)
    for (let at = 0; at < 5; at++) {
      leave.get(begun.at(-1)!)!()
      await settled()
    }
    expect(begun).toEqual(['a', 'a1', 'b1', 'c1', 'a3'])
  })

  it('counts requests, not the parts of one', async () => {
    const { queue, enter } = watchedQueue(1, 1)
    void enter('a', 'a')
    for (let part = 0; part < 5; part++) void queue.enter({ tenant: 'a', priority: 0, follows: true })
    void enter('b', 'b')
    await settled()
    expect(queue.waiting).toBe(1)
    await expect(enter('c', 'c')).rejects.toMatchObject({ waiting: 1 })
    // Parts have a limit of their own, which lets several of the largest requests wait.
    const parts = Array.from({ length: 4200 }, () => queue.enter({ tenant: 'a', priority: 0, follows: true }).catch(() => 'full'))
    expect(await Promise.race([...parts.slice(0, 4000), settled().then(() => 'waiting')])).toBe('waiting')
    expect(await parts.at(-1)).toBe('full')
  })

  it('reports places as they change, and removes a request whose client leaves', async () => {
    const { leave, enter, begun, queue } = watchedQueue(1)
    const told: Record<string, number[]> = { b: [], c: [], d: [] }
    const gone = new AbortController()
    await enter('a', 'x')
    void enter('b', 'x', 0, undefined, (before) => told['b']!.push(before))
    const c = enter('c', 'x', 0, gone.signal, (before) => told['c']!.push(before))
    void enter('d', 'x', 0, undefined, (before) => told['d']!.push(before))
    await settled()
    expect(told).toEqual({ b: [0], c: [1], d: [2] })
    gone.abort()
    await expect(c).rejects.toMatchObject({ code: 'engine/cancelled' })
    await settled()
    expect([told, queue.waiting]).toEqual([{ b: [0], c: [1], d: [2, 1] }, 2])
    leave.get('a')!()
    leave.get('a')!()
    await settled()
    expect([begun, told['d'], queue.running]).toEqual([['a', 'b'], [2, 1, 0], 1])
    await expect(enter('e', 'x', 0, gone.signal)).rejects.toMatchObject({ code: 'engine/cancelled' })
  })

  it('never exceeds the slots, loses no request, and takes turns, whatever happens', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 3 }),
        fc.array(fc.oneof(fc.record({ tenant: fc.constantFrom('a', 'b', 'c') }), fc.constant('leave' as const)), {
          maxLength: 40,
        }),
        async (slots, moves) => {
          const { queue, begun, leave, enter } = watchedQueue(slots)
          const entered: string[] = []
          const running: string[] = []
          const waitingOf = (tenant: string) => entered.filter((name) => name.startsWith(tenant) && !begun.includes(name)).length
          let before = 0
          const look = async () => {
            await settled()
            running.push(...begun.slice(before))
            before = begun.length
            expect(queue.running).toBe(running.length)
            expect(running.length).toBeLessThanOrEqual(slots)
            expect(queue.waiting).toBe(entered.length - begun.length)
            if (queue.waiting > 0) expect(running.length).toBe(slots)
          }
          for (const move of moves) {
            if (move === 'leave') {
              const name = running.shift()
              const waited = ['a', 'b', 'c'].filter((tenant) => waitingOf(tenant) > 0)
              if (name !== undefined) leave.get(name)!()
              await look()
              // The request that began is of a tenant that waited.
              if (name !== undefined && waited.length > 0) expect(waited).toContain(begun.at(-1)![0])
            } else {
              const name = `${move.tenant}${entered.length}`
              entered.push(name)
              void enter(name, move.tenant)
              await look()
            }
          }
          while (running.length > 0) {
            leave.get(running.shift()!)!()
            await look()
          }
          expect([...begun].sort()).toEqual([...entered].sort())
          // The requests of one tenant begin in the order in which they came.
          for (const tenant of ['a', 'b', 'c'])
            expect(begun.filter((name) => name.startsWith(tenant))).toEqual(entered.filter((name) => name.startsWith(tenant)))
        },
      ),
      { numRuns: 60 },
    )
  })
})
