/** Owns what a calibrated model expects of the study's situations, by the real planner and without computing anything. */
import { decodeTime, type CostModel } from '../../kv/cost-model.js'
import { timeOf, type Prospect } from '../../kv/forecast.js'
import { rehearse } from '../../kv/rehearsal.js'
import type { CostLine } from './line.js'
import { folded, MARKER, open, type Point } from './scene.js'
import { termsOf, WAYS, type Way } from './way.js'

/** One line a way. */
export type Lines = Readonly<Record<Way, CostLine>>

/** What every way would do to a cache that holds the whole text; positions are not limited, as if the model had been trained on them. */
export function prospects(point: Point, blend: number): Readonly<Record<Way, Prospect>> {
  // Which tokens they are does not matter, only that they are different ones.
  const text = Int32Array.from({ length: point.before }, (_, index) => index)
  const marker = Int32Array.from({ length: MARKER }, (_, index) => point.before + index)
  const prospectOf = (way: Way): Prospect => {
    const shown = way === 'keep' ? open(text) : folded(text, point, marker)
    const steps = [
      { shown: open(text), terms: termsOf('keep', blend) },
      { shown, terms: termsOf(way, blend) },
    ]
    return rehearse(steps, { cells: point.before + point.after + 2 * MARKER, sequences: 8 })[1]!
  }
  return Object.fromEntries(WAYS.map((way) => [way, prospectOf(way)])) as Record<Way, Prospect>
}

/** What the model expects of every way. */
export function predictLines(model: CostModel, point: Point, blend: number): Lines {
  const all = prospects(point, blend)
  const { attended, scanned } = model.decode.rates
  const lineOf = (way: Way): CostLine => {
    const { shown, cells } = all[way]
    return {
      first: timeOf(model, all[way]),
      perToken: decodeTime(model, { attended: shown, cells }),
      growth: attended + scanned,
    }
  }
  return Object.fromEntries(WAYS.map((way) => [way, lineOf(way)])) as Record<Way, CostLine>
}
