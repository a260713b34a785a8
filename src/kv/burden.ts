/** Owns when it pays to move cells off the device that no running step shows, and that every decode passes over all the same. */
import { decodeTime, hostTime, type CostModel } from './cost-model.js'

/** What a conversation has parked on the device. In cells. */
export interface ParkedLoad {
  /** Of the versions to be moved: they are copied. */
  readonly held: number
  /** Of those, held by nobody else: they would be free. */
  readonly freed: number
  /** Held by the lane alone: they are rewritten afterwards, because attention runs up to the highest cell in use. */
  readonly live: number
}

/** Fewer free cells than this make no token faster by what could be measured. */
export const FEWEST = 1024
/**
 * Of the cells to be rewritten, where nothing is known of the machine: what pays within `TOKENS` if the copies of a cell, there and back, take as
 * long as 128 tokens pass over it. Measured: about 100 (built-in model, one thread of a CPU, flash attention).
 */
const SHARE = 1

/** Tokens that others computed. */
export interface Passed {
  readonly prompt: number
  readonly generated: number
}

/** Tokens that a conversation generates until it restores what it folded, or ends: nobody knows; a few answers. */
const TOKENS = 256

/** Whether moving all of it, rewriting the lane, and bringing it back once take no longer than what `TOKENS` tokens gain. */
export function isWorthMoving({ held, freed, live }: ParkedLoad, model: CostModel | null, fewest = FEWEST): boolean {
  if (freed === 0 || freed < fewest) return false
  if (model === null) return freed > SHARE * live
  const copies = [hostTime(model, held), hostTime(model, live)].reduce((sum, { save, load }) => sum + save + load, 0)
  const before = decodeTime(model, { attended: live, cells: live + freed })
  return copies <= TOKENS * (before - decodeTime(model, { attended: live, cells: live }))
}

/** Whether what nobody used while others computed so many tokens has cost them as much as moving it off and bringing it back takes. */
export function isOutstaying(
  { held, freed }: Omit<ParkedLoad, 'live'>,
  { prompt, generated }: Passed,
  model: CostModel | null,
): boolean {
  if (model === null) return prompt + generated >= TOKENS
  const { save, load } = hostTime(model, held)
  return save + load <= freed * (prompt * model.prefill.rates.scanned + generated * model.decode.rates.scanned)
}
