/** Turns a study into a report: rounds the results, judges the paper's sentence, and writes both as words and tables. Pure. */
import { CONTRACTS } from '../../../src/runtime/core/contract.js'
import { count as tokens } from '../../../src/runtime/figures/numbers.js'
import { left, right, table, type Table } from '../../../src/runtime/figures/table.js'
import type { CostModel } from '../../../src/runtime/kv/cost-model.js'
import { MOST_TOKENS, type TokenRange } from './line.js'
import { longer, PAPER, type Point, pointsOf, type Arm } from './schedule.js'
import type { ClockName } from './stopwatch.js'
import {
  type Extrapolated,
  fitted,
  type Measured,
  type Pays,
  type PointResult,
  pointResults,
  predicted,
  type Predicted,
  type Spread,
} from './study.js'

export interface Settings {
  readonly points: readonly Point[]
  readonly rounds: number
  readonly generated: number
  readonly blend: number
  readonly seed: number
  readonly clock: ClockName
}

/** The claim of the paper's section 4.4 as a point: no text precedes the fold, and all remaining text is computed again. */
export interface CostClaim {
  readonly text: string
  readonly source: string
  /** The judgement at the longest measured context; null if no point with a share of 0 was measured. */
  readonly measured: { readonly point: Point; readonly pays: Pays; readonly inRounds: readonly (number | null)[] } | null
  /** The judgement at the paper's own size; null if that size was measured. */
  readonly predicted: { readonly point: Point; readonly byFit: Pays; readonly byCalibration: Pays } | null
}

export interface CostReport {
  readonly model: CostModel['on']
  readonly settings: Settings
  /** True if the study was stopped, so that it has fewer rounds or points than asked for. */
  readonly interrupted: boolean
  readonly calibration: Rates
  readonly fit: Rates
  readonly measured: PointResult[]
  /** What the fit and the calibration predict beyond the measured points. */
  readonly extrapolated: Extrapolated[]
  readonly claim: CostClaim
  readonly fills: Measured['fills']
  readonly depths: readonly object[]
  readonly turns: readonly object[]
}

/** A cost model without the measurements from which it comes. */
type Rates = Pick<CostModel, 'deepest' | 'prefill' | 'decode' | 'books'>

const CLAIM = {
  text: 'Processing 20K tokens even without caching is significantly faster than processing 85K tokens with full caching.',
  source: 'Sculptor, section 4.4',
}

/** Makes the report. `cost`: the calibration. */
export function costReport(measured: Measured, cost: CostModel, settings: Settings): CostReport {
  const { points, blend } = settings
  const fit = fitted(measured, cost)
  const results = pointResults(measured, points, cost, blend)
  const extrapolate = (point: Point): Extrapolated => ({ point, ...predicted(fit, point, blend) })
  const shares = [...new Set([0, ...points.map(({ share }) => share)])]
  const most = Math.max(...points.map(({ before }) => before))
  return {
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

function claimOf(results: readonly PointResult[], fit: CostModel, cost: CostModel, blend: number): CostClaim {
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

/** Returns the report as JSON with at most four decimal places, because no measurement is finer. */
export const rounded = (report: object): string =>
  JSON.stringify(
    report,
    (_, value: unknown) =>
      typeof value === 'number' && !Number.isInteger(value)
        ? Number(Math.abs(value) < 1e-2 ? value.toPrecision(4) : value.toFixed(4))
        : value,
    2,
  )

// Below: writes the study's numbers and judgements as words and tables. Pure.

export interface Titled {
  readonly title: string
  readonly table: Table
}

/** Formats milliseconds as `0.84 ms`, `84 ms` or `8.4 s`. */
export function time(milliseconds: number): string {
  const [value, unit] = Math.abs(milliseconds) < 1000 ? [milliseconds, 'ms'] : [milliseconds / 1000, 's']
  const digits = Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0
  return `${value.toFixed(digits)} ${unit}`
}

const spread = ({ median, low, high }: Spread): string => `${time(median)} (${time(low)} to ${time(high)})`

/** Returns table text: from how many generated tokens on the fold is cheaper. */
export function paysFrom({ from, stretches }: Pays): string {
  if (from !== null) return tokens(from)
  const [first] = stretches
  return first?.end == null ? 'never' : `${tokens(first.start)} to ${tokens(first.end - 1)} only`
}

/** Returns a phrase: for which answers a fold is cheaper. */
export function forWhich({ from, stretches }: Pays): string {
  if (from === 1) return 'for every answer'
  if (from !== null) return `for answers of ${tokens(from)} tokens or more`
  if (stretches.length === 0) return 'for no answer'
  return `only for answers of ${stretches.map(span).join(' or ')} tokens`
}

const span = ({ start, end }: TokenRange): string => `${tokens(start)} to ${tokens((end ?? MOST_TOKENS + 1) - 1)}`

const roundsOf = (rounds: readonly (number | null)[]): string => {
  const sorted = [...rounds].sort((a, b) => (a ?? Infinity) - (b ?? Infinity))
  const name = (of: number | null | undefined): string => (of == null ? 'never' : tokens(of))
  return sorted.length === 0 ? '' : `${name(sorted[0])} to ${name(sorted.at(-1))}`
}

const place = ({ before, after, share }: Point): string[] => [tokens(before), tokens(after), `${Math.round(100 * share)} %`]
const PLACE = [right('before'), right('after'), right('before the fold')]

const NAMES: Readonly<Record<Arm, string>> = { keep: 'kept, all cached', exact: 'exact', splice: 'splice', blend: 'blend' }

/** The measurements, one row per way at each point. */
export const measuredTable = ({ measured }: CostReport): Titled => ({
  title: 'Measured: one turn',
  table: table(
    [...PLACE, left('fold'), ...['computed', 'first token', 'each token', 'pays from', 'in single rounds'].map(right)],
    measured.flatMap(({ point, ways }) =>
      ways.map(({ way, computed, first, perToken, pays, paysInRounds }) => [
        ...place(point),
        NAMES[way],
        tokens(computed),
        spread(first),
        spread(perToken),
        pays === null ? '' : paysFrom(pays),
        roundsOf(paysInRounds),
      ]),
    ),
  ),
})

/** Measured and predicted values, in pairs. */
export const predictedTable = ({ measured }: CostReport): Titled => ({
  title: 'Measured, and predicted (p) by the calibration',
  table: table(
    [
      ...PLACE,
      left('fold'),
      ...['first token', 'p', 'each token', 'p', 'pays from', 'p', 'moved off: each token', 'pays from'].map(right),
    ],
    measured.flatMap(({ point, ways, calibration: { lines, pays } }) =>
      ways.map(({ way, line, pays: own, movedOff }) => [
        ...place(point),
        NAMES[way],
        ...[line.first, lines[way].first, line.perToken, lines[way].perToken].map(time),
        ...(own === null || movedOff === null || way === 'keep'
          ? []
          : [paysFrom(own), paysFrom(pays[way]), time(movedOff.perToken), paysFrom(movedOff.pays)]),
      ]),
    ),
  ),
})

/** Predictions beyond the measured points. */
export const extrapolatedTable = ({ extrapolated }: CostReport): Titled => ({
  title: 'Extrapolated by the fit to this run, not measured: generated tokens from which a fold pays',
  table: table(
    [...PLACE, right('kept, each token'), right('exact, first token'), right('exact, each token'), ...CONTRACTS.map(right)],
    extrapolated.map(({ point, lines, pays }: Predicted & { readonly point: Point }) => [
      ...place(point),
      time(lines.keep.perToken),
      time(lines.exact.first),
      time(lines.exact.perToken),
      ...CONTRACTS.map((contract) => paysFrom(pays[contract])),
    ]),
  ),
})

/** Returns the judgement of the paper's sentence as lines. */
export function claimLines({ claim, fit, calibration, settings }: CostReport): string[] {
  const { text, source, measured, predicted } = claim
  const sizes = ({ before, after }: Point): string => `${tokens(before)} tokens folded to ${tokens(after)}`
  return [
    `${source}: "${text}"`,
    measured === null
      ? 'Not measured: --shares has no 0.'
      : `Measured, ${sizes(measured.point)}, all of them computed: true ${forWhich(measured.pays)} (single rounds: ${roundsOf(measured.inRounds)}).`,
    ...(predicted === null
      ? []
      : [
          `Predicted, ${sizes(predicted.point)}: true ${forWhich(predicted.byFit)} by the fit to this run (measured up to ${tokens(fit.deepest)} cells, off by ${Math.round(100 * fit.prefill.residual.median)} % in prompts and ${Math.round(100 * fit.decode.residual.median)} % in answers, medians), ` +
            `${forWhich(predicted.byCalibration)} by the calibration (up to ${tokens(calibration.deepest)}).`,
        ]),
    'moved off: if what was folded were saved to host memory before the answer; saving it is as the calibration expects, the rest is measured.',
    ...(settings.clock === 'cpu'
      ? ["Times are the process's on the CPU, not the wall's; those of the calibration are the wall's."]
      : []),
    `A turn: the context is cached, ${settings.generated} tokens are generated, and folded text stays in the cache, parked, as in the turn after an edit.`,
  ]
}
