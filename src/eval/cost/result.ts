/** Owns what follows from the measurements: lines, the answers' lengths from which folds pay, predictions beside them. Pure. */
import { CONTRACTS, type Contract } from '../../core/contract.js'
import { type CostModel, fitCosts, hostTime, medianOf, type Timed } from '../../kv/cost-model.js'
import { below, cheapest, winsFrom, type CostLine, type Stretch } from './line.js'
import { predictLines, type Lines } from './schedule.js'
import { type Point, type Way, WAYS } from './scenario.js'
import type { Measured, TimedTurn } from './study.js'

/** The middle of several measurements, the least and the greatest. */
export interface Spread {
  readonly median: number
  readonly low: number
  readonly high: number
}

/** When a fold costs less than keeping the context; `from` null: never for good. */
export interface Pays {
  /** Generated tokens from which on it costs less for good. */
  readonly from: number | null
  readonly stretches: readonly Stretch[]
}

/**
 * Parked cells lie among those that attention passes over. The engine moves them off when it is idle and short of room, never within a turn; what
 * that would take and save is put together here: what the fold took, the calibration's time to save the parked cells, and tokens as they were
 * timed after a text of that length that was alone.
 */
export interface MovedOff {
  readonly saving: number
  readonly perToken: number
  readonly pays: Pays
}

export interface WayResult {
  readonly way: Way
  readonly rounds: number
  /** Prompt tokens computed. */
  readonly computed: number
  /** Milliseconds to the first token, and between two tokens. */
  readonly first: Spread
  readonly perToken: Spread
  readonly line: CostLine
  /** Null for keeping. */
  readonly pays: Pays | null
  /** The same from each round's own figures: how far the answer is to be trusted. */
  readonly paysInRounds: readonly (number | null)[]
  /** The same if what was folded were moved off the device first; null for keeping. */
  readonly movedOff: MovedOff | null
}

export interface Predicted {
  readonly lines: Lines
  readonly pays: Readonly<Record<Contract, Pays>>
}

/** A point that was measured, and what both models expect of it. */
export interface PointResult {
  readonly point: Point
  readonly ways: readonly WayResult[]
  readonly cheapest: readonly { readonly name: Way; readonly tokens: Stretch }[]
  /** By the calibration, made before; by the fit to this very run. */
  readonly calibration: Predicted
  readonly fit: Predicted
}

/** A point that was not measured. */
export interface Extrapolated extends Predicted {
  readonly point: Point
}

/** Every point of which every way was timed once at least. `model`: the calibration. */
export function pointResults(measured: Measured, points: readonly Point[], model: CostModel, blend: number): PointResult[] {
  const growth = growthOf(measured)
  const fit = fitted(measured, model)
  return points.flatMap((point) => {
    const here = measured.turns.filter((turn) => turn.point === point)
    if (WAYS.some((way) => !here.some((turn) => turn.way === way))) return []
    const alone = medianOf(measured.depths.filter(({ shown }) => shown === point.after).map(({ perToken }) => perToken))
    const ways = waysOf(here, growth, { perToken: alone, save: (cells) => hostTime(model, cells).save })
    return [
      {
        point,
        ways,
        cheapest: cheapest(ways.map(({ way, line }) => ({ name: way, line }))),
        calibration: predicted(model, point, blend),
        fit: predicted(fit, point, blend),
      },
    ]
  })
}

export function predicted(model: CostModel, point: Point, blend: number): Predicted {
  const lines = predictLines(model, point, blend)
  const pays = CONTRACTS.map((contract) => [contract, paysOf(lines[contract], lines.keep)])
  return { lines, pays: Object.fromEntries(pays) as Record<Contract, Pays> }
}

/** What `movedOff` is made of: milliseconds a token where nothing else is in use, and to save cells. */
interface Alone {
  readonly perToken: number
  readonly save: (cells: number) => number
}

function waysOf(turns: readonly TimedTurn[], growth: number, alone: Alone): WayResult[] {
  const of = (way: Way) => turns.filter((turn) => turn.way === way)
  const lineOf = (own: readonly TimedTurn[]): CostLine => ({
    first: medianOf(own.map(({ first }) => first)),
    perToken: medianOf(own.map(({ perToken }) => perToken)),
    growth,
  })
  const keep = lineOf(of('keep'))
  return WAYS.map((way) => {
    const own = of(way)
    const line = lineOf(own)
    const inRounds = own.flatMap((turn) => {
      const other = of('keep').find(({ round }) => round === turn.round)
      return other === undefined || way === 'keep' ? [] : [winsFrom(lineOf([turn]), lineOf([other]))]
    })
    return {
      way,
      rounds: own.length,
      computed: medianOf(own.map(({ computed }) => computed)),
      first: spreadOf(own.map(({ first }) => first)),
      perToken: spreadOf(own.map(({ perToken }) => perToken)),
      line,
      pays: way === 'keep' ? null : paysOf(line, keep),
      paysInRounds: inRounds,
      movedOff: way === 'keep' ? null : movedOff(own, line, keep, alone),
    }
  })
}

function movedOff(own: readonly TimedTurn[], line: CostLine, keep: CostLine, { perToken, save }: Alone): MovedOff {
  const saving = save(medianOf(own.map(({ cells, shown }) => cells - shown)))
  return { saving, perToken, pays: paysOf({ ...line, first: line.first + saving, perToken }, keep) }
}

const paysOf = (fold: CostLine, keep: CostLine): Pays => ({ from: winsFrom(fold, keep), stretches: below(fold, keep) })

const spreadOf = (values: readonly number[]): Spread => ({
  median: medianOf(values),
  low: Math.min(...values),
  high: Math.max(...values),
})

/** Milliseconds by which a token takes longer for each one before it: the slope over all depths, at least 0. Both alternatives grow alike, so it bends lines but moves no crossing. */
function growthOf({ depths, turns }: Measured): number {
  const all = [...depths, ...turns.filter(({ way }) => way === 'keep')]
  const mean = (values: readonly number[]) => values.reduce((a, b) => a + b, 0) / values.length
  const [x, y] = [mean(all.map(({ shown }) => shown)), mean(all.map(({ perToken }) => perToken))]
  const spread = all.reduce((sum, { shown }) => sum + (shown - x) ** 2, 0)
  const together = all.reduce((sum, { shown, perToken }) => sum + (shown - x) * (perToken - y), 0)
  return spread === 0 ? 0 : Math.max(0, together / spread)
}

/** The calibration with the rates that fit this run's own, longer contexts; books and copies are the calibration's. */
export function fitted({ fills, depths, turns }: Measured, model: CostModel): CostModel {
  const prefill = [
    ...fills.map(({ from, to, milliseconds }): Timed => ({ tokens: to - from, attended: from, cells: from, milliseconds })),
    // Folds that compute a single stretch.
    ...turns
      .filter(({ way }) => way === 'exact')
      .map(({ computed, shown, cells, prefill }): Timed => ({
        tokens: computed,
        attended: shown - computed,
        cells: cells - computed,
        milliseconds: prefill,
      })),
  ]
  const decode = [...depths, ...turns].map(({ shown, cells, perToken }): Timed => ({
    tokens: 1,
    attended: shown,
    cells,
    milliseconds: perToken,
  }))
  const deepest = Math.max(model.deepest, ...decode.map(({ cells }) => cells))
  const rates = fitCosts(prefill, decode, [], model.on.ubatch)
  return { ...model, deepest, prefill: rates.prefill, decode: rates.decode }
}
