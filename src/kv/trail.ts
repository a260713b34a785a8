/** Owns what a cell's values depend on, as a number: its token, its position, and every cell that could be seen when it was computed. */
import { createHash } from 'node:crypto'

/** What prints begin with: those of different tenants never agree, so nobody is lent cells that another tenant's text left. */
export interface Seed {
  readonly low: number
  readonly high: number
}

/** Of who names no tenant. */
export const COMMON: Seed = { low: 0x243f6a88, high: 0x13198a2e }

/** The same for the same name, whichever process asks: cells on disk stay their tenant's. */
export function seedOf(tenant: string | undefined): Seed {
  if (tenant === undefined) return COMMON
  const hash = createHash('sha256').update(tenant).digest()
  return { low: hash.readInt32LE(0), high: hash.readInt32LE(4) }
}

/**
 * Two 32-bit halves, because a cell's print decides whether it may stand in for a computation: equal prints of equal tokens mean that the
 * values are the same. Prints nest: what was seen enters by the prints of the cells seen, so one that was computed beside text that is
 * hidden now differs from a fresh prefill's, and so does every cell computed after it.
 */
export class Trail {
  #low: number
  #high: number
  /** Print of the last cell that was `placed`. */
  low = 0
  high = 0

  constructor({ low, high }: Seed = COMMON) {
    this.#low = low
    this.#high = high
  }

  /** The print of a cell with this token and position, computed after all that was seen; it goes into `low` and `high`. */
  place(token: number, position: number): void {
    this.low = mix(mix(this.#low, token, 0x85ebca6b), position, 0xc2b2ae35)
    this.high = mix(mix(this.#high, position, 0x27d4eb2f), token, 0x9e3779b1)
  }

  /** A cell with this print is seen from now on. */
  see(low: number, high: number): void {
    this.#low = mix(mix(this.#low, low, 0x85ebca6b), high, 0x27d4eb2f)
    this.#high = mix(mix(this.#high, high, 0xc2b2ae35), low, 0x165667b1)
  }
}

function mix(state: number, value: number, factor: number): number {
  const mixed = Math.imul(state ^ value, factor)
  return Math.imul(mixed ^ (mixed >>> 15), 0x2c1b3c6d) ^ (mixed >>> 13)
}

/** The two halves of the prints of a text's cells, place by place. */
export interface Prints {
  readonly lows: Int32Array
  readonly highs: Int32Array
}

/** The prints that a fresh prefill of `tokens` gives its cells, place by place. */
export function freshPrints(tokens: Int32Array, seed: Seed = COMMON): Prints {
  const lows = new Int32Array(tokens.length)
  const highs = new Int32Array(tokens.length)
  const trail = new Trail(seed)
  for (let at = 0; at < tokens.length; at++) {
    trail.place(tokens[at]!, at)
    lows[at] = trail.low
    highs[at] = trail.high
    trail.see(trail.low, trail.high)
  }
  return { lows, highs }
}
