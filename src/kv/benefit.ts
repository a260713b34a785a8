/** Owns the order in which kept sequences are given up when a tier is full, be it host memory or disk. */

export interface Kept {
  /** Tokens that would have to be recomputed without it. */
  readonly tokens: number
  readonly bytes: number
  /** When it was last used, in any unit that ascends: milliseconds since 1970, or ticks of a clock. */
  readonly lastUse: number
}

/**
 * What keeping it is worth per byte: tokens to recompute / (bytes x age), with age = 1 + `now` - last use, in the unit of both. The longer
 * something was not asked for, the longer it will probably not be; so age stands for the chance of a hit, as tokens for what one saves.
 *
 * @param now no use lies after it, or counts as of now
 */
export function benefit({ tokens, bytes, lastUse }: Kept, now: number): number {
  return tokens / (Math.max(1, bytes) * (1 + Math.max(0, now - lastUse)))
}

/** What to give up so that the rest takes at most `budget` bytes: by least benefit, of equals the longest unused, and no more than needed. */
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
