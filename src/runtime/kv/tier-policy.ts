/** Decides which sequences a full tier drops first, and when it pays to move cells off the device. */
import { hostTime, type TierRates } from './cost-model.js'

// Which sequences a full tier (host memory or disk) drops.

export interface Kept {
  /** Number of tokens that would have to be computed again if the sequence were dropped. */
  readonly tokens: number
  readonly bytes: number
  /** When it was last used: milliseconds since 1970, or ticks of a clock. */
  readonly lastUse: number
}

/**
 * Returns the benefit per byte of keeping a sequence: tokens to recompute / (bytes x age). The age is 1 + `now` - last use. The longer a
 * sequence was unused, the longer it will probably stay unused. So the age estimates the chance of a hit, and the tokens what a hit saves.
 *
 * @param now the time, in the unit of `lastUse`; a later last use counts as `now`
 */
export function benefit({ tokens, bytes, lastUse }: Kept, now: number): number {
  return tokens / (Math.max(1, bytes) * (1 + Math.max(0, now - lastUse)))
}

/**
 * Returns the fewest sequences to drop so that the rest takes at most `budget` bytes: those of least benefit first; of equals, the longest
 * unused.
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

// When it pays to move cells off the device that no running step shows, because attention runs over them in every decode. The decision
// needs rates that were measured on the device. Without rates, cells leave only when other cells need their room.

/** A conversation's parked cells on the device. All fields count cells. */
export interface ParkedLoad {
  /** Cells of the versions that would be moved. All of them are copied. */
  readonly held: number
  /** Those of them that no other sequence holds. The move frees them. */
  readonly freed: number
  /**
   * Cells that only the live sequence holds. They are moved together afterwards, because attention runs up to the highest cell in use. 0 if
   * other cells will take the freed ones.
   */
  readonly live: number
}

/** Expected tokens whose attention would run over the parked cells. */
export interface ComingTokens {
  /** Tokens that the beginning step computes; 0 if none begins. */
  readonly due: number
  /** Tokens that will be generated until the conversation restores its folds, or ends. */
  readonly ahead: number
}

/** The fewest cells that a move must free. Freeing fewer makes no token measurably faster. */
export const FEWEST = 1024

/** The assumed value of `ComingTokens.ahead`: a few answers. The true number is unknown. */
export const ANSWERS = 256

/** Tokens that were computed: prompt tokens and generated ones. */
export interface Passed {
  readonly prompt: number
  readonly generated: number
}

/**
 * Whether it pays to move a conversation's parked cells off the device. It pays if copying them off, rewriting the live sequence and
 * loading the cells once take no longer than what the coming tokens save.
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
 * Whether an unused sequence has cost other conversations as much time as moving it off the device and back would take.
 * @param passed the tokens computed since its last use
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

/** Returns the milliseconds that `cells` cells add to the attention of these tokens. */
const passTime = ({ scanned }: TierRates, cells: number, { prompt, generated }: Passed): number =>
  cells * (prompt * scanned.prefill + generated * scanned.decode)
