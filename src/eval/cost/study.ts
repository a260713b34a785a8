/** Owns running the study: every task of the schedule on a real engine, with the time left; a run that is stopped hands over what it has. */
import { KvfoldError } from '../../core/errors.js'
import type { LlamaEngine } from '../../engine/llama.js'
import type { CostModel } from '../../kv/cost-model.js'
import type { Point } from './scenario.js'
import { expected, schedule, type Task } from './schedule.js'
import { Stopwatch, type Fill, type StopwatchOptions, type Turn } from './stopwatch.js'
import { calibrate, SEQUENCES, type CalibrateOptions } from '../../engine/calibrate.js'
import { loadCalibration, measuredOn, type CalibrationSettings } from '../../engine/calibration.js'
import type { ContextOptions, ModelInfo, Native } from '../../native/types.js'

/** A turn, and which one it was. */
export interface TimedTurn extends Turn {
  readonly round: number
  readonly point: Point
}

export interface Measured {
  readonly fills: readonly Fill[]
  /** Turns that kept the context, at every depth. */
  readonly depths: readonly Turn[]
  /** In the order in which they were timed. */
  readonly turns: readonly TimedTurn[]
  /** False: it was stopped before its end. */
  readonly whole: boolean
}

export interface StudyOptions extends StopwatchOptions {
  readonly engine: LlamaEngine
  /** What the time left is guessed from. */
  readonly cost: CostModel
  readonly points: readonly Point[]
  readonly rounds: number
  /** Share of the work that is done (0..1), milliseconds left, and what is done now. */
  readonly onProgress?: (share: number, left: number | null, what: string) => void
}

/** Cells that the engine's context needs for the study: the text, what a fold computes anew, and answers. */
export const cellsFor = (points: readonly Point[], generated: number): number =>
  Math.max(...points.map(({ before, after }) => before + after)) + 2 * generated + 64

/** @throws KvfoldError what the engine throws; engine/cancelled only when nothing was timed yet */
export async function study(options: StudyOptions): Promise<Measured> {
  const { engine, points, rounds, cost, signal } = options
  const tasks = schedule({ points, rounds })
  const clock = new Clock(expected(cost, tasks, options), options.onProgress)
  const watch = new Stopwatch(engine, Math.max(...points.map(({ before }) => before)), options)
  const fills: Fill[] = []
  const depths: Turn[] = []
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

function nameOf(task: Task): string {
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

/** How far a run is, by what its tasks were expected to take and by how wrong that was so far. */
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

  /** `share` of the task that began last is done. */
  within(share: number): void {
    const done = sum(this.expected.slice(0, this.#index)) + share * (this.expected[this.#index] ?? 0)
    const spent = performance.now() - this.#begun
    const left = done === 0 ? null : ((this.#all - done) * spent) / done
    this.onProgress?.(this.#all === 0 ? 1 : done / this.#all, left, this.#what)
  }
}

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0)

// Having a cost model for the study: measured in this very run, or the one that `kvfold calibrate` kept.

export interface MachineCosts {
  readonly info: ModelInfo
  readonly cost: CostModel
}

/** Cells of a calibration's context: more are not filled. */
const CELLS = 18_432

/**
 * Loads the model for it and gives it back.
 * @param saved take the kept one instead of measuring
 * @param check throws where the model is not fit for the study, before anything is measured
 * @throws KvfoldError cli/bad-usage when none was kept, model/*, memory/*, engine/cancelled
 */
export async function machineCosts(
  native: Native,
  path: string,
  settings: CalibrationSettings & ContextOptions,
  { saved, check, ...options }: CalibrateOptions & { readonly saved: boolean; readonly check: (info: ModelInfo) => void },
): Promise<MachineCosts> {
  const model = await native.loadModel(path, settings.model)
  try {
    const { info } = model
    check(info)
    const subject = { info, settings, backend: native.backend }
    if (saved) {
      const kept = await loadCalibration(subject)
      if (kept.kind === 'found') return { info, cost: kept.model }
      throw new KvfoldError(
        'cli/bad-usage',
        kept.kind === 'refused'
          ? kept.reason
          : 'There is no calibration of this model with these options yet: run `kvfold calibrate`.',
      )
    }
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
