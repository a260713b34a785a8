/** Owns what a study reports: who measured what where, the results rounded, the paper's sentence judged. Pure. */
import type { CostModel } from '../../kv/cost-model.js'
import { longer, PAPER, pointsOf } from './schedule.js'
import { fitted, pointResults, predicted, type Extrapolated, type Pays, type PointResult } from './result.js'
import type { Point } from './scenario.js'
import type { ClockName } from './stopwatch.js'
import type { Measured } from './study.js'

/** Who ran what where; times mean little without it. */
export interface Circumstances {
  readonly command: string
  /** ISO 8601. */
  readonly date: string
  readonly kvfold: string
  /** Null where the source is no checkout; changes beside it are not noticed. */
  readonly commit: string | null
  readonly machine: {
    readonly cpu: string
    readonly cores: number
    /** Bytes. */
    readonly memory: number
    readonly os: string
    readonly node: string
    /** Average of the last minute: what else the machine did. */
    readonly load: { readonly before: number; readonly after: number }
  }
  readonly seconds: number
}

export interface Settings {
  readonly points: readonly Point[]
  readonly rounds: number
  readonly generated: number
  readonly blend: number
  readonly seed: number
  readonly clock: ClockName
}

/** The sentence of the paper's section 4.4, as a point: nothing stands before the fold, and all that is left is computed. */
export interface Claim {
  readonly text: string
  readonly source: string
  /** Of the longest context that was measured; null where no share of 0 was. */
  readonly measured: { readonly point: Point; readonly pays: Pays; readonly inRounds: readonly (number | null)[] } | null
  /** At the paper's own size. Null where it was measured. */
  readonly predicted: { readonly point: Point; readonly byFit: Pays; readonly byCalibration: Pays } | null
}

export interface CostReport extends Circumstances {
  readonly model: CostModel['on']
  readonly settings: Settings
  /** True: it was stopped, and has less rounds or points than asked for. */
  readonly interrupted: boolean
  readonly calibration: Rates
  readonly fit: Rates
  readonly measured: PointResult[]
  /** By the fit and the calibration, beyond what was measured. */
  readonly extrapolated: Extrapolated[]
  readonly claim: Claim
  readonly fills: Measured['fills']
  readonly depths: readonly object[]
  readonly turns: readonly object[]
}

/** A cost model without what it was measured on. */
type Rates = Pick<CostModel, 'deepest' | 'prefill' | 'decode' | 'books'>

const CLAIM = {
  text: 'Processing 20K tokens even without caching is significantly faster than processing 85K tokens with full caching.',
  source: 'Sculptor, section 4.4',
}

/** `cost`: the calibration. */
export function costReport(about: Circumstances, measured: Measured, cost: CostModel, settings: Settings): CostReport {
  const { points, blend } = settings
  const fit = fitted(measured, cost)
  const results = pointResults(measured, points, cost, blend)
  const extrapolate = (point: Point): Extrapolated => ({ point, ...predicted(fit, point, blend) })
  const shares = [...new Set([0, ...points.map(({ share }) => share)])]
  const most = Math.max(...points.map(({ before }) => before))
  return {
    ...about,
    model: cost.on,
    settings,
    interrupted: !measured.whole,
    calibration: ratesOf(cost),
    fit: ratesOf(fit),
    measured: results,
    extrapolated: pointsOf(longer(most), shares).map(extrapolate),
    claim: claimOf(results, fit, cost, blend),
    fills: measured.fills,
    depths: measured.depths.map(({ gaps: _, ...turn }) => turn),
    turns: measured.turns.map(({ gaps: _, ...turn }) => turn),
  }
}

function claimOf(results: readonly PointResult[], fit: CostModel, cost: CostModel, blend: number): Claim {
  const [longest] = results.filter(({ point }) => point.share === 0).sort((a, b) => b.point.before - a.point.before)
  const exact = longest?.ways.find(({ way }) => way === 'exact')
  const measured =
    longest === undefined || exact?.pays == null ? null : { point: longest.point, pays: exact.pays, inRounds: exact.paysInRounds }
  const point = { ...PAPER, share: 0 }
  const isThere = measured !== null && measured.point.before >= PAPER.before
  const by = (model: CostModel): Pays => predicted(model, point, blend).pays.exact
  return { ...CLAIM, measured, predicted: isThere ? null : { point, byFit: by(fit), byCalibration: by(cost) } }
}

const ratesOf = ({ deepest, prefill, decode, books }: CostModel): Rates => ({ deepest, prefill, decode, books })

/** The same with numbers of at most four digits behind the point: nobody measured more. */
export const rounded = (report: CostReport): string =>
  JSON.stringify(
    report,
    (_, value: unknown) =>
      typeof value === 'number' && !Number.isInteger(value)
        ? Number(Math.abs(value) < 1e-2 ? value.toPrecision(4) : value.toFixed(4))
        : value,
    2,
  )
