/** Decides which sequences a full tier drops first, and when it pays to move cells off the device. */
import { hostTime, type TierRates } from './cost-model.js'

// The order in which a full tier, host memory or disk, drops sequences.

export interface Kept {
  /** Number of tokens that would have to be computed again if the sequence were dropped. */
  readonly tokens: number
  readonly bytes: number
  /** When it was last used, in any ascending unit: milliseconds since 1970, or ticks of a clock. */
  readonly lastUse: number
}

/**
 * Returns the benefit per byte of keeping a sequence: tokens to recompute / (bytes x age). The age is 1 + `now` - last use. The longer a
 * sequence was unused, the longer it will probably stay so. So the age estimates the chance of a hit, and the tokens estimate the saving of
 * a hit.
 *
 * @param now the time; a later last use counts as now
 */
export function benefit({ tokens, bytes, lastUse }: Kept, now: number): number {
  return tokens / (Math.max(1, bytes) * (1 + Math.max(0, now - lastUse)))
}

/**
 * Returns the sequences to drop so that the others take at most `budget` bytes, and no more of them than needed. Those of least benefit
 * come first; of equals, the longest unused.
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

// When it pays to move cells off the device that no running step shows: every decode passes over them. The decision needs rates that were
// measured on the device. Without rates, cells leave only when other cells need their room.

/** A conversation's parked cells on the device. All fields count cells. */
export interface ParkedLoad {
  /** Cells of the versions to be moved, which are copied. */
  readonly held: number
  /** How many of these cells no other sequence holds. The move frees them. */
  readonly freed: number
  /**
   * Number of cells that only the live sequence holds. They are rewritten after the move, because attention runs up to the highest cell in
   * use. 0 when other cells take the free places.
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

/** The fewest cells that a move must free. Freeing fewer makes no token measurably faster. */
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
 * Whether moving a conversation's parked cells off the device pays. The costs are copying them off, rewriting the live sequence, and
 * bringing the cells back once. They must not exceed the time that the coming tokens save.
 * @param rates null if nothing was measured; then no move pays
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
 * Whether an unused sequence has cost other conversations as much time as moving it off the device and back takes. `passed` counts the
 * tokens that were computed since its last use.
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

/** Returns the milliseconds that it takes for the given tokens to pass over `cells` cells. */
const passTime = ({ scanned }: TierRates, cells: number, { prompt, generated }: Passed): number =>
  cells * (prompt * scanned.prefill + generated * scanned.decode)
