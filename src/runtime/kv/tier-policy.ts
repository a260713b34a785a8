/** Owns what is worth keeping where: what a tier gives up first, and when it pays to move cells off the device. */
import { type CostModel, hostTime } from './cost-model.js'

// The order in which kept sequences are given up when a tier is full, be it host memory or disk.

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

// When it pays to move cells off the device that no running step shows, and that every decode passes over all the same.

/** What a conversation has parked on the device. In cells. */
export interface ParkedLoad {
  /** Of the versions to be moved: they are copied. */
  readonly held: number
  /** Of those, held by nobody else: they would be free. */
  readonly freed: number
  /** Held by the live sequence alone, to be rewritten afterwards because attention runs up to the highest cell in use; 0: others take the free places. */
  readonly live: number
}

/** Tokens that would pass over what is parked. */
export interface ComingTokens {
  /** Those of the step that begins, in one go; 0: none begins. */
  readonly due: number
  /** Generated ones until the conversation restores what it folded, or ends. */
  readonly ahead: number
}

/** Fewer free cells than this make no token faster by what could be measured. */
export const FEWEST = 1024
/**
 * Where nothing is known of the machine: so many tokens pass over a cell in the time of its copies, there and back. Measured: about 100
 * (built-in model, one thread of a CPU, flash attention).
 */
const COPIES = 128

/** Tokens that a conversation generates until it restores what it folded, or ends: nobody knows; a few answers. */
export const ANSWERS = 256

/** Tokens that others computed. */
export interface Passed {
  readonly prompt: number
  readonly generated: number
}

/** Whether moving all of it, rewriting the live sequence, and bringing it back once take less than what the tokens to come gain. */
export function isWorthMoving(
  { held, freed, live }: ParkedLoad,
  { due, ahead }: ComingTokens,
  model: CostModel | null,
  fewest = FEWEST,
): boolean {
  if (freed === 0 || freed < fewest) return false
  if (model === null) return freed * (due + ahead) > COPIES * (freed + live)
  const { save, load } = hostTime(model, held + live)
  return save + load <= freed * (due * model.prefill.rates.scanned + ahead * model.decode.rates.scanned)
}

/** Whether what nobody used while others computed so many tokens has cost them as much as moving it off and bringing it back takes. */
export function isOutstaying(
  { held, freed }: Pick<ParkedLoad, 'held' | 'freed'>,
  { prompt, generated }: Passed,
  model: CostModel | null,
): boolean {
  if (model === null) return prompt + generated >= ANSWERS
  const { save, load } = hostTime(model, held)
  return save + load <= freed * (prompt * model.prefill.rates.scanned + generated * model.decode.rates.scanned)
}
