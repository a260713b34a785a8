/** Decides which sequences a full tier drops first, and when it pays to move cells off the device. */
import { hostTime, type TierRates } from './cost-model.js'

// The order in which a full tier, host memory or disk, drops sequences.

export interface Kept {
  /** Tokens that would have to be recomputed without it. */
  readonly tokens: number
  readonly bytes: number
  /** When it was last used, in any ascending unit: milliseconds since 1970, or ticks of a clock. */
  readonly lastUse: number
}

/**
 * Returns the benefit per byte of keeping it: tokens to recompute / (bytes x age). The age is 1 + `now` - last use, in the unit of both.
 * The longer a sequence was unused, the longer it will probably stay so. So the age estimates the chance of a hit, and the tokens estimate
 * the saving of a hit.
 *
 * @param now the time; a later last use counts as now
 */
export function benefit({ tokens, bytes, lastUse }: Kept, now: number): number {
  return tokens / (Math.max(1, bytes) * (1 + Math.max(0, now - lastUse)))
}

/**
 * Returns the sequences to drop so that the rest takes at most `budget` bytes, and no more of them than needed. Those of least benefit come
 * first; of equals, the longest unused.
 */
export function surplus<T extends Kept>(kept: readonly T[], budget: number, now: number): T[] {
  let over = kept.reduce((sum, { bytes }) => sum + bytes, 0) - budget
  if (over <= 0) return []
  const given: T[] = []
  for (const each of [...kept].sort((a, b) => benefit(a, now) - benefit(b, now) || a.lastUse - b.lastUse)) {
    if (over <= 0) break
    given.push(each)
    over -= each.bytes
  }
  return given
}

// When it pays to move cells off the device. No running step shows them, but every decode passes over them. The decision needs rates that
// were measured on the device. Without rates, cells leave only when other cells need their room.

/** A conversation's parked cells on the device. All fields count cells. */
export interface ParkedLoad {
  /** Cells of the versions to be moved, which are copied. */
  readonly held: number
  /** Those of them that no other sequence holds, so that the move frees them. */
  readonly freed: number
  /**
   * Cells that only the live sequence holds. They are rewritten afterwards, because attention runs up to the highest cell in use. 0 when
   * other cells take the free places.
   */
  readonly live: number
}

/** Tokens that would pass over the parked cells. */
export interface ComingTokens {
  /** Tokens of the step that begins, computed in one go; 0 when none begins. */
  readonly due: number
  /** Tokens generated until the conversation restores its folds, or ends. */
  readonly ahead: number
}

/** Freeing fewer cells than this makes no token measurably faster. */
export const FEWEST = 1024

/**
 * Assumed number of tokens that a conversation generates until it restores its folds, or ends: a few answers. The true number is unknown.
 */
export const ANSWERS = 256

/** Tokens that other conversations computed. */
export interface Passed {
  readonly prompt: number
  readonly generated: number
}

/**
 * Whether the move pays. Its costs are copying all cells off, rewriting the live sequence, and bringing the cells back once. They must not
 * exceed the time that the coming tokens save.
 * @param rates null where nothing was measured; then no move pays
 */
export function isWorthMoving(
  { held, freed, live }: ParkedLoad,
  { due, ahead }: ComingTokens,
  rates: TierRates | null,
  fewest = FEWEST,
): boolean {
  if (rates === null || freed === 0 || freed < fewest) return false
  const { save, load } = hostTime(rates, held + live)
  return save + load <= passTime(rates, freed, { prompt: due, generated: ahead })
}

/**
 * Whether an unused sequence has cost other conversations as much as moving it off the device and back takes. `Passed` counts the tokens
 * that they computed meanwhile.
 */
export function isOutstaying(
  { held, freed }: Pick<ParkedLoad, 'held' | 'freed'>,
  passed: Passed,
  rates: TierRates | null,
): boolean {
  if (rates === null) return false
  const { save, load } = hostTime(rates, held)
  return save + load <= passTime(rates, freed, passed)
}

/** Returns the milliseconds that tokens take to pass over this many cells. */
const passTime = ({ scanned }: TierRates, cells: number, { prompt, generated }: Passed): number =>
  cells * (prompt * scanned.prefill + generated * scanned.decode)
