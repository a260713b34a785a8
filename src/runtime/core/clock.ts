/** A clock for stored times. If the machine's clock is wrong for a while, stored data keeps its age, and new data gets no wrong dates. */
import { uptime } from 'node:os'

/** A minute and (next line) an hour, in milliseconds. */
const MINUTE = 60_000
const HOUR = 60 * MINUTE
/** A jump of the machine's clock by up to this many milliseconds is followed at once. */
const SLACK = 10 * MINUTE
/** After a larger jump, the machine's clock is believed again once it has run steadily for this many milliseconds. */
const SETTLED = 24 * HOUR
/** The machine's clock is never believed if it shows an earlier date, because kvfold did not exist then. */
const EARLIEST = Date.UTC(2026, 0)

/** The time that an earlier process stored. */
export interface EarlierTime {
  /** The latest time that the earlier process knew, in Unix milliseconds. */
  readonly seen: number
  /** How many milliseconds processes have run since one of them started with the machine's clock far ahead of `seen`. */
  readonly ran: number
  /**
   * Whether `seen` is the present time by another clock. Times then continue from it until this machine's clock has run steadily for a day.
   */
  readonly isNow?: true
}

export interface ClockOptions {
  /** The machine's time, in Unix milliseconds. Default: `Date.now`. */
  readonly wall?: () => number
  /** A count of milliseconds that includes the machine's sleep and that cannot be set. Default: the machine's uptime. */
  readonly running?: () => number
  /** The time that an earlier process stored. Default: none. */
  readonly earlier?: EarlierTime
  /** A start believes the machine's clock if it is at most this many milliseconds after `earlier.seen`. Default: an hour. */
  readonly gap?: number
  /** Receives a sentence whenever this clock starts or stops believing the machine's clock. Default: none. */
  readonly tell?: (sentence: string) => void
}

/**
 * A clock that runs steadily and follows the machine's clock in small steps. After a jump, it follows only once the machine's clock has run
 * steadily for a day.
 *
 * At a start, the machine's clock may be far ahead of the last known time. Either the machine was off, or its clock is wrong; both look the
 * same. Then dates follow the machine's clock, but ages continue from the last known time until the server has run for a day.
 */
export class SteadyClock {
  readonly #wall: () => number
  readonly #running: () => number
  readonly #tell: (sentence: string) => void
  readonly #gap: number
  /** The clock's time is the running time plus this many milliseconds. */
  #offset: number
  /** Set while ages differ from dates: the offset for ages, and the running time at which the difference began. */
  #aging: { readonly offset: number; readonly since: number } | null = null
  /** Set while the machine's clock is not believed: the offset of that clock, and the running time at which it first had this offset. */
  #doubt: { readonly offset: number; readonly since: number } | null = null

  constructor({
    wall = () => Date.now(),
    running = () => uptime() * 1000,
    earlier,
    gap = HOUR,
    tell = () => undefined,
  }: ClockOptions = {}) {
    this.#wall = wall
    this.#running = running
    this.#tell = tell
    this.#gap = gap
    const [time, runs] = [wall(), running()]
    this.#offset = time - runs
    if (earlier === undefined) return
    const { seen, ran, isNow = false } = earlier
    if (time > seen + gap && !isNow) {
      this.#aging = { offset: seen - runs, since: runs - ran }
      tell(
        `The clock says ${text(time)}, but the last known time is ${text(seen)}. For the time in between, the server deletes nothing until it has run for ${hours(SETTLED - ran)}. If the clock is wrong, set it.`,
      )
    } else if (time < seen - SLACK || time > seen + gap) {
      this.#offset = seen - runs
      this.#doubt = { offset: time - runs, since: runs }
      tell(
        `The clock says ${text(time)}, but ${isNow ? 'the database says' : 'the last known time is'} ${text(seen)}. Times continue from there; set the clock.`,
      )
    }
  }

  /** Returns the time for dates, in Unix milliseconds. */
  now(): number {
    const [wall, running] = [this.#wall(), this.#running()]
    const offset = wall - running
    const doubt = this.#doubt
    if (this.#isPlausible(offset)) {
      if (doubt !== null) this.#tell(`The clock is right again: it says ${text(wall)}.`)
      return this.#follow(wall, offset)
    }
    const time = Math.round(running + this.#offset)
    if (doubt === null || Math.abs(offset - doubt.offset) > SLACK) {
      this.#doubt = { offset, since: running }
      this.#tell(
        `The clock jumped to ${text(wall)}. Times continue from ${text(time)} until the clock has run steadily for ${hours(SETTLED)}. Until then the jump makes nothing old enough to delete.`,
      )
    } else if (running - doubt.since >= SETTLED && wall >= EARLIEST) {
      this.#tell(`The clock has run steadily since it jumped, so the server follows it again: it is ${text(wall)}.`)
      return this.#follow(wall, offset)
    }
    return time
  }

  /** Returns the time for computing ages, in Unix milliseconds. It is never later than `now` or the machine's time. */
  aged(): number {
    const now = this.now()
    return Math.min(now, this.#wall(), this.#agingTime(now))
  }

  /** The time to store for a later process (`ClockOptions.earlier`). */
  get left(): EarlierTime {
    const now = this.now()
    const seen = this.#agingTime(now)
    return { seen, ran: this.#aging === null ? 0 : this.#running() - this.#aging.since }
  }

  /** Whether the machine's clock agrees with this clock, or continues the time that was known before a start far ahead of it. */
  #isPlausible(offset: number): boolean {
    if (Math.abs(offset - this.#offset) <= SLACK) return true
    return this.#aging !== null && offset >= this.#aging.offset - SLACK && offset <= this.#aging.offset + this.#gap
  }

  #follow(wall: number, offset: number): number {
    this.#offset = offset
    this.#doubt = null
    return wall
  }

  #agingTime(now: number): number {
    if (this.#aging === null) return now
    const { offset, since } = this.#aging
    const running = this.#running()
    const time = Math.round(running + offset)
    if (time < now - this.#gap && running - since < SETTLED) return time
    this.#aging = null
    return now
  }
}

const text = (time: number): string => new Date(time).toISOString().replace(/\.\d+Z$/u, 'Z')

const hours = (milliseconds: number): string => {
  const count = Math.max(1, Math.ceil(milliseconds / HOUR))
  return count === 1 ? 'an hour' : `${count} hours`
}

/** The clock of this process, without a stored earlier time. */
export const steady = new SteadyClock()
