/**
 * Runs the study: every task of the schedule on a real engine, with the time left, and the conclusions from the measurements. A stopped run
 * returns the measurements so far.
 */
import { type Contract, CONTRACTS } from '../../../src/runtime/core/contract.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { calibrate, type CalibrateOptions, SEQUENCES } from '../../../src/runtime/engine/calibrate.js'
import { type CalibrationSettings, measuredOn } from '../../../src/runtime/engine/calibration.js'
import type { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { type CostModel, fitCosts, hostTime, medianOf, type Timed } from '../../../src/runtime/kv/cost-model.js'
import type { ContextOptions, ModelInfo, Native } from '../../../src/runtime/native/types.js'
import { below, cheapest, type CostLine, type TokenRange, winsFrom } from './line.js'
import { expected, type CostLines, type Point, predictLines, schedule, type TimedTask, type Arm, ARMS } from './schedule.js'
import { type Fill, Stopwatch, type StopwatchOptions, type TurnTiming } from './stopwatch.js'

/** A timed turn, with its round and point. */
export interface TimedTurn extends TurnTiming {
  readonly round: number
  readonly point: Point
}

export interface Measured {
  readonly fills: readonly Fill[]
  /** Turns that kept the context, at every depth. */
  readonly depths: readonly TurnTiming[]
  /** In the order in which they were timed. */
  readonly turns: readonly TimedTurn[]
  /** False if the study was stopped before its end. */
  readonly whole: boolean
}

export interface StudyOptions extends StopwatchOptions {
  readonly engine: LlamaEngine
  /** The cost model that estimates the time left. */
  readonly cost: CostModel
  readonly points: readonly Point[]
  readonly rounds: number
  /** Receives the share of the work that is done (0 to 1), the milliseconds left, and the name of the current task. */
  readonly onProgress?: (share: number, left: number | null, what: string) => void
}

/** Returns the cells that the study needs in the engine's context: the text, what a fold computes again, and answers. */
export const cellsFor = (points: readonly Point[], generated: number): number =>
  Math.max(...points.map(({ before, after }) => before + after)) + 2 * generated + 64

/** @throws KvfoldError from the engine; engine/cancelled only if nothing was timed yet */
export async function study(options: StudyOptions): Promise<Measured> {
  const { engine, points, rounds, cost, signal } = options
  const tasks = schedule({ points, rounds })
  const clock = new Clock(expected(cost, tasks, options), options.onProgress)
  const watch = new Stopwatch(engine, Math.max(...points.map(({ before }) => before)), options)
  const fills: Fill[] = []
  const depths: TurnTiming[] = []
  const turns: TimedTurn[] = []
  const result = (whole: boolean): Measured => ({ fills, depths, turns, whole })
  try {
    for (const [index, task] of tasks.entries()) {
      clock.begin(index, nameOf(task))
      switch (task.kind) {
        case 'fill': {
          const { from, to } = task
          fills.push(
            await watch.fill(to, (done) => {
              clock.within(done / (to - from))
            }),
          )
          break
        }
        case 'depth':
          depths.push(await watch.turn('keep'))
          break
        case 'warm-up':
          await watch.turn(task.way, task.point)
          break
        case 'turn':
          turns.push({ round: task.round, point: task.point, ...(await watch.turn(task.way, task.point)) })
      }
    }
    return result(true)
  } catch (error) {
    const stopped = signal?.aborted === true || (error instanceof KvfoldError && error.code === 'engine/cancelled')
    if (!stopped || turns.length === 0) throw error
    return result(false)
  }
}

function nameOf(task: TimedTask): string {
  switch (task.kind) {
    case 'fill':
      return `computing the text up to ${task.to} tokens`
    case 'depth':
      return `generating after ${task.tokens} tokens`
    case 'warm-up':
      return 'warming up'
    case 'turn': {
      const { round, way, point } = task
      const { before, after, share } = point
      return `round ${round + 1}: ${way === 'keep' ? `${before} tokens kept` : `${before} folded to ${after} under ${way}, ${Math.round(100 * share)} % before the fold`}`
    }
  }
}

/** Reports how far a run has come, from the expected times of its tasks and the error of these estimates so far. */
class Clock {
  readonly #begun = performance.now()
  readonly #all: number
  #index = 0
  #what = ''

  constructor(
    private readonly expected: readonly number[],
    private readonly onProgress: StudyOptions['onProgress'],
  ) {
    this.#all = sum(expected)
  }

  begin(index: number, what: string): void {
    this.#index = index
    this.#what = what
    this.within(0)
  }

  /** Records that `share` of the current task is done. */
  within(share: number): void {
    const done = sum(this.expected.slice(0, this.#index)) + share * (this.expected[this.#index] ?? 0)
    const spent = performance.now() - this.#begun
    const left = done === 0 ? null : ((this.#all - done) * spent) / done
    this.onProgress?.(this.#all === 0 ? 1 : done / this.#all, left, this.#what)
  }
}

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0)

// Below: a cost model for the study, measured in the same run.

export interface MachineCosts {
  readonly info: ModelInfo
  readonly cost: CostModel
}

/** Cells of the calibration's context, all that it fills. */
const CELLS = 18_432

/**
 * Loads the model for a calibration, and disposes of it afterwards.
 * @param check throws before any measurement if the model does not fit the study
 * @throws KvfoldError model/*, memory/*, engine/cancelled
 */
export async function machineCosts(
  native: Native,
  path: string,
  settings: CalibrationSettings & ContextOptions,
  { check, ...options }: CalibrateOptions & { readonly check: (info: ModelInfo) => void },
): Promise<MachineCosts> {
  const model = await native.loadModel(path, settings.model)
  try {
    const { info } = model
    check(info)
    const subject = { info, settings, backend: native.backend }
    const trained = info.trainedContext
    const context = await model.createContext({
      ...settings,
      cells: trained > 0 ? Math.min(trained, CELLS) : CELLS,
      sequences: SEQUENCES,
      fullSlidingWindow: info.slidingWindow > 0,
    })
    return { info, cost: await calibrate(context, info.vocabulary, measuredOn(subject, context), options) }
  } finally {
    await model.dispose()
  }
}

// Below: conclusions from the measurements: the lines, the answer lengths from which on folds pay, and the predictions beside them. Pure.

/** The median, the smallest and the largest of several measurements. */
export interface Spread {
  readonly median: number
  readonly low: number
  readonly high: number
}

/** For which answers a fold costs less than keeping the context. */
export interface Pays {
  /** The number of generated tokens from which on it always costs less; null if there is none. */
  readonly from: number | null
  readonly stretches: readonly TokenRange[]
}

/**
 * An estimate of the turn if the cells that the fold parked had been moved off the device first. Parked cells on the device still cost
 * attention time. The engine moves them off only when it is idle and short of room, never within a turn. So the estimate has three parts:
 * the measured fold, the calibration's time to save the parked cells, and a measured time per token. The last one was measured behind a
 * text of that length, with no other cells in use.
 */
export interface MovedOff {
  readonly saving: number
  readonly perToken: number
  readonly pays: Pays
}

export interface WayResult {
  readonly way: Arm
  readonly rounds: number
  /** Prompt tokens computed. */
  readonly computed: number
  /** Milliseconds: `first` to the first token, `perToken` between two tokens. */
  readonly first: Spread
  readonly perToken: Spread
  readonly line: CostLine
  /** Null for `keep`. */
  readonly pays: Pays | null
  /** `pays.from` computed from each round by itself; it shows how far to trust the result. */
  readonly paysInRounds: readonly (number | null)[]
  /** The result if the folded cells were moved off the device first; null for `keep`. */
  readonly movedOff: MovedOff | null
}

export interface Predicted {
  readonly lines: CostLines
  readonly pays: Readonly<Record<Contract, Pays>>
}

/** A measured point, and the predictions for it. */
export interface PointResult {
  readonly point: Point
  readonly ways: readonly WayResult[]
  readonly cheapest: readonly { readonly name: Arm; readonly tokens: TokenRange }[]
  /** `calibration`: predictions made beforehand. `fit`: predictions by the fit to this run. */
  readonly calibration: Predicted
  readonly fit: Predicted
}

/** A point that was not measured. */
export interface Extrapolated extends Predicted {
  readonly point: Point
}

/** Returns every point at which each way was timed at least once. `model`: the calibration. */
export function pointResults(measured: Measured, points: readonly Point[], model: CostModel, blend: number): PointResult[] {
  const growth = growthOf(measured)
  const fit = fitted(measured, model)
  return points.flatMap((point) => {
    const here = measured.turns.filter((turn) => turn.point === point)
    if (ARMS.some((way) => !here.some((turn) => turn.way === way))) return []
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

/** The inputs of `movedOff`: `perToken` milliseconds with no other cells in use, and the milliseconds to save cells. */
interface FreeCosts {
  readonly perToken: number
  readonly save: (cells: number) => number
}

function waysOf(turns: readonly TimedTurn[], growth: number, alone: FreeCosts): WayResult[] {
  const of = (way: Arm) => turns.filter((turn) => turn.way === way)
  const lineOf = (own: readonly TimedTurn[]): CostLine => ({
    first: medianOf(own.map(({ first }) => first)),
    perToken: medianOf(own.map(({ perToken }) => perToken)),
    growth,
  })
  const keep = lineOf(of('keep'))
  return ARMS.map((way) => {
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

function movedOff(own: readonly TimedTurn[], line: CostLine, keep: CostLine, { perToken, save }: FreeCosts): MovedOff {
  const saving = save(medianOf(own.map(({ cells, shown }) => cells - shown)))
  return { saving, perToken, pays: paysOf({ ...line, first: line.first + saving, perToken }, keep) }
}

const paysOf = (fold: CostLine, keep: CostLine): Pays => ({ from: winsFrom(fold, keep), stretches: below(fold, keep) })

const spreadOf = (values: readonly number[]): Spread => ({
  median: medianOf(values),
  low: Math.min(...values),
  high: Math.max(...values),
})

/**
 * Returns how many milliseconds longer a token takes for each token before it: the slope over all depths, at least 0. It applies to both
 * alternatives, so it bends the lines but moves no crossing.
 */
function growthOf({ depths, turns }: Measured): number {
  const all = [...depths, ...turns.filter(({ way }) => way === 'keep')]
  const mean = (values: readonly number[]) => values.reduce((a, b) => a + b, 0) / values.length
  const [x, y] = [mean(all.map(({ shown }) => shown)), mean(all.map(({ perToken }) => perToken))]
  const spread = all.reduce((sum, { shown }) => sum + (shown - x) ** 2, 0)
  const together = all.reduce((sum, { shown, perToken }) => sum + (shown - x) * (perToken - y), 0)
  return spread === 0 ? 0 : Math.max(0, together / spread)
}

/** Returns the calibration with its rates fitted to this run's longer contexts. Bookkeeping and copies keep the calibration's rates. */
export function fitted({ fills, depths, turns }: Measured, model: CostModel): CostModel {
  const prefill = [
    ...fills.map(({ from, to, milliseconds }): Timed => ({ tokens: to - from, attended: from, cells: from, milliseconds })),
    // Only folds under `exact`, which compute a single span of tokens.
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
