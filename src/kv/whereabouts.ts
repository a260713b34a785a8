/** Owns where the cells of a stretch of text are: what bringing it back would find. */
import { length, type Span } from '../core/span.js'
import type { HeldSequence } from './holder.js'
import { commonPrefix } from './prefix.js'
import { tokenSource } from './shown.js'

/** In tokens, each counted once, in the first of these places that has it. `live` + `parked` + `host` + `disk` + `gone` = `tokens`. */
export interface Residency {
  readonly tokens: number
  /** In the conversation's own sequence: what hides them has not been carried out yet. */
  readonly live: number
  /** In the cache, beside what is shown. */
  readonly parked: number
  readonly host: number
  readonly disk: number
  /** Nowhere; they would be computed again, unless another conversation has the same beginning. */
  readonly gone: number
}

const PLACES = ['live', 'parked', 'host', 'disk'] as const

export type CellPlace = (typeof PLACES)[number]

/**
 * @param base an unedited prompt of the conversation
 * @param stretches tokens of it
 * @param held what the conversation has, and where; changes nothing
 */
export function residencyOf(
  base: Int32Array,
  stretches: readonly Span[],
  held: readonly { readonly holder: HeldSequence; readonly where: CellPlace }[],
): Residency[] {
  /** By place of the prompt: 1 and the place's index where it is held, the smallest; 0: nowhere. */
  const best = new Uint8Array(base.length)
  for (const { holder, where } of held) {
    const rank = 1 + PLACES.indexOf(where)
    const agrees = commonPrefix(holder.unedited, base)
    for (const { start, end } of stretches) {
      const { sourceIds: keys, tokens } = holder
      for (let place = start, entry = holder.atKey(tokenSource(start)); place < Math.min(end, agrees); place++) {
        while (entry < holder.held && keys[entry]! < tokenSource(place)) entry++
        if (keys[entry] !== tokenSource(place) || entry >= holder.held || tokens[entry] !== base[place]) continue
        if (best[place] === 0 || best[place]! > rank) best[place] = rank
      }
    }
  }
  return stretches.map((stretch) => {
    const counts = { gone: 0, live: 0, parked: 0, host: 0, disk: 0 }
    for (let place = stretch.start; place < stretch.end; place++) counts[PLACES[best[place]! - 1] ?? 'gone']++
    return { tokens: length(stretch), ...counts }
  })
}
