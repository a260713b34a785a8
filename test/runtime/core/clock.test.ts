/** Tests how `SteadyClock` treats a clock that is set wrongly: it does not believe the clock at once, and it does not doubt it for ever. */
import { describe, expect, it } from 'vitest'
import { SteadyClock, type EarlierTime } from '../../../src/runtime/core/clock.js'

const HOUR = 3_600_000
const DAY = 24 * HOUR
const START = Date.UTC(2026, 10, 27)

/** A machine whose wall clock a test can set. */
function machine({ at = START, earlier, gap }: { at?: number; earlier?: EarlierTime; gap?: number } = {}) {
  let [wall, running] = [at, 1_000_000]
  const told: string[] = []
  const clock = new SteadyClock({
    wall: () => wall,
    running: () => running,
    tell: (sentence) => told.push(sentence),
    ...(earlier === undefined ? {} : { earlier }),
    ...(gap === undefined ? {} : { gap }),
  })
  return {
    clock,
    told,
    set: (by: number) => (wall += by),
    run: (milliseconds: number) => {
      wall += milliseconds
      running += milliseconds
    },
  }
}

describe('while the process runs', () => {
  it("the time is the machine's, and small corrections are followed", () => {
    const { clock, told, set, run } = machine()
    run(3 * DAY)
    set(-60_000)
    expect([clock.now(), clock.aged()]).toEqual([START + 3 * DAY - 60_000, START + 3 * DAY - 60_000])
    run(HOUR)
    set(9 * 60_000)
    expect(clock.now()).toBe(START + 3 * DAY + HOUR + 8 * 60_000)
    expect(told).toEqual([])
  })

  it.each([400 * DAY, -400 * DAY, 2 * HOUR])('a jump by %d and back does not change the time', (jump) => {
    const { clock, told, set, run } = machine()
    run(HOUR)
    clock.now()
    set(jump)
    run(5 * HOUR)
    const now = clock.now()
    expect(now).toBe(START + 6 * HOUR)
    expect(clock.aged()).toBe(Math.min(now, now + jump))
    run(HOUR)
    set(-jump)
    expect([clock.now(), clock.aged()]).toEqual([START + 7 * HOUR, START + 7 * HOUR])
    expect(told).toEqual([
      expect.stringContaining('The clock jumped to 202'),
      'The clock is right again: it says 2026-11-27T07:00:00Z.',
    ])
  })

  it.each([400 * DAY, -100 * DAY])('a jump by %d is believed after a day', (jump) => {
    const { clock, told, set, run } = machine()
    set(jump)
    clock.now()
    run(DAY - 1)
    expect(clock.now()).toBe(START + DAY - 1)
    run(1)
    expect([clock.now(), clock.aged()]).toEqual([START + jump + DAY, START + jump + DAY])
    expect(told.at(-1)).toContain('follows it again')
  })

  it('a clock that shows a date before kvfold existed is never believed', () => {
    const { clock, set, run } = machine()
    set(-START)
    clock.now()
    run(9 * DAY)
    expect(clock.now()).toBe(START + 9 * DAY)
  })

  it('a second jump starts the day of waiting again', () => {
    const { clock, set, run } = machine()
    set(400 * DAY)
    clock.now()
    run(DAY - 1)
    set(400 * DAY)
    expect(clock.now()).toBe(START + DAY - 1)
    run(DAY - 1)
    expect(clock.now()).toBe(START + 2 * DAY - 2)
  })
})

describe('at a start', () => {
  it('a short gap counts as time in which the server was off', () => {
    const { clock, told } = machine({ earlier: { seen: START - 14 * DAY, ran: 0 }, gap: 15 * DAY })
    expect([clock.now(), clock.aged()]).toEqual([START, START])
    expect(told).toEqual([])
  })

  it('after a long gap, times follow the clock, and ages wait for a day, counted over all starts', () => {
    const seen = START - 400 * DAY
    const first = machine({ earlier: { seen, ran: 0 } })
    expect([first.clock.now(), first.clock.aged()]).toEqual([START, seen])
    first.run(20 * HOUR)
    expect([first.clock.now(), first.clock.aged()]).toEqual([START + 20 * HOUR, seen + 20 * HOUR])
    expect(first.clock.left).toEqual({ seen: seen + 20 * HOUR, ran: 20 * HOUR })

    const second = machine({ at: START + DAY, earlier: first.clock.left })
    expect(second.clock.aged()).toBe(seen + 20 * HOUR)
    second.run(4 * HOUR)
    expect(second.clock.aged()).toBe(START + DAY + 4 * HOUR)
    expect(second.clock.left).toEqual({ seen: START + DAY + 4 * HOUR, ran: 0 })
    expect(second.told).toEqual([expect.stringContaining('until it has run for 4 hours')])
  })

  it('a clock that was ahead at the start and comes back was never believed', () => {
    const seen = START - HOUR
    const { clock, set, run } = machine({ at: START + 400 * DAY, earlier: { seen, ran: 0 } })
    run(HOUR)
    set(-400 * DAY)
    expect([clock.now(), clock.aged()]).toEqual([START + HOUR, START + HOUR])
    expect(clock.left).toEqual({ seen: START + HOUR, ran: 0 })
  })

  it('a clock that is behind gives no dates and no ages, and setting it right loses nothing', () => {
    const { clock, told, set, run } = machine({ at: 0, earlier: { seen: START, ran: 0 } })
    run(HOUR)
    expect([clock.now(), clock.aged()]).toEqual([START + HOUR, HOUR])
    expect(clock.left).toEqual({ seen: START + HOUR, ran: 0 })
    set(START)
    expect([clock.now(), clock.aged()]).toEqual([START + HOUR, START + HOUR])
    expect(told).toEqual([expect.stringContaining('the last known time is 2026-11-27'), expect.stringContaining('right again')])
  })
})
