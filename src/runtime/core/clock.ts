/** Owns what time it is for everything that is kept: a clock that is wrong for a while neither ages what is there nor dates what comes. */
import { uptime } from 'node:os'

/** Milliseconds. */
const MINUTE = 60_000
const HOUR = 60 * MINUTE
/** A clock is corrected by so much without further ado. */
const SLACK = 10 * MINUTE
/** A clock that jumped is believed when it has run on for so long. */
const SETTLED = 24 * HOUR
/** Before this kvfold could not run: no clock that says so is believed. */
const EARLIEST = Date.UTC(2026, 0)

/** What an earlier process left of its time. */
export interface EarlierTime {
  /** When it was there last, Unix milliseconds. */
  readonly seen: number
  /** Milliseconds that processes have run for since the clock was found far ahead of `seen`. */
  readonly ran: number
  /** It is the time now, by a clock elsewhere: it is followed until ours has run on for a day. */
  readonly isNow?: true
}

export interface ClockOptions {
  /** What the machine says the time is, in Unix milliseconds. */
  readonly wall?: () => number
  /** Milliseconds that pass while the machine sleeps, too, and that nobody sets. */
  readonly running?: () => number
  /** Default: nothing is known of the time before. */
  readonly earlier?: EarlierTime
  /** Milliseconds after `earlier.seen` in which a start gives no doubt. Default: an hour. */
  readonly gap?: number
  /** Told in a sentence what the clock does. Default: nobody is. */
  readonly tell?: (sentence: string) => void
}

/**
 * Its time goes on as time runs, and follows the machine's clock in small steps. It follows a jump only when the clock has run on for a day after it.
 * At a start the clock may be far ahead of the last time that is known: a machine that was off looks like one whose clock is wrong. Times are the
 * clock's then, but ages go on from the last time known until the server has run for a day.
 */
export class SteadyClock {
  readonly #wall: () => number
  readonly #running: () => number
  readonly #tell: (sentence: string) => void
  readonly #gap: number
  /** What is added to running time. */
  #offset: number
  /** The same for ages, while it is another one. */
  #aging: { readonly offset: number; readonly since: number } | null = null
  /** A clock that says something else, and since when. */
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
        `The clock says ${text(time)}, and the last time known is ${text(seen)}. Nothing is deleted for the time in between until the server has run for ${hours(SETTLED - ran)}; if the clock is wrong, set it.`,
      )
    } else if (time < seen - SLACK || time > seen + gap) {
      this.#offset = seen - runs
      this.#doubt = { offset: time - runs, since: runs }
      tell(
        `The clock says ${text(time)}, and ${isNow ? 'the database says' : 'the last time known is'} ${text(seen)}. Times go on from there; set the clock.`,
      )
    }
  }

  /** Unix milliseconds: what to date things with. */
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
        `The clock jumped to ${text(wall)}. Times go on from ${text(time)}, and nothing is deleted for its age because of the jump, until the clock has run on for ${hours(SETTLED)}.`,
      )
    } else if (running - doubt.since >= SETTLED && wall >= EARLIEST) {
      this.#tell(`The clock has run on since it jumped, and is believed: it is ${text(wall)}.`)
      return this.#follow(wall, offset)
    }
    return time
  }

  /** Unix milliseconds: what to reckon ages by. Never later than `now`, nor than what the machine says. */
  aged(): number {
    const now = this.now()
    return Math.min(now, this.#wall(), this.#agingTime(now))
  }

  /** What a later process is to know. */
  get left(): EarlierTime {
    const now = this.now()
    const seen = this.#agingTime(now)
    return { seen, ran: this.#aging === null ? 0 : this.#running() - this.#aging.since }
  }

  /** It goes on from the time that is followed, or from the last one known before a clock that was far ahead. */
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

/** That of this process, for what knows of no earlier one. */
export const steady = new SteadyClock()
