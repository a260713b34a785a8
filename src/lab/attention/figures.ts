/** Draws the figures of an attention study: pairs, their changes, interference, layers and heads, an agent's turn, and watched spans. */
import * as Plot from '@observablehq/plot'
import type { Contract } from '../../runtime/core/contract.js'
import { curves, type PanelRow, rows as rowPanels } from '../figures/panels.js'
import { COLOURS, FAINT, figure, fitting, LESS, MORE, type Panel } from '../figures/figure.js'
import { signed } from '../../runtime/figures/numbers.js'
import { mean } from '../../runtime/core/mean.js'
import type { AttentionHead } from '../../runtime/native/types.js'
import { type FindingFigure, type Finding, type InterferencePoint, kept } from './findings.js'
import { HEAD_SCORES, type HeadScoreName, type HeadScores } from './head-scores.js'
import {
  changeOf,
  type From,
  FROM_NAMES,
  FROMS,
  type ValueAttention,
  meanGlance,
  type Pair,
  type PairComparison,
  seenFrom,
} from './pairs.js'
import type { SpanStudy } from './spans.js'
import type { EpisodeRecord, EpisodeStep, PromptRecord } from './records.js'

const EQUAL = { stroke: FAINT, strokeDasharray: '5 4' } as const

/**
 * Draws each pair as a point: x is its weight in the complete prompt, y its weight in the folded one. `findings`: those under `contract`.
 */
export function scatter(records: readonly PromptRecord[], contract: Contract, findings: readonly Finding[]): string {
  const panels = findings.map(({ from, pairs, seeds, improved, r2 }): Panel => {
    const points = pairsOf(records, contract).flatMap(({ seed, pair }) => {
      const [before, after] = [seenFrom(pair.complete, from), seenFrom(pair.folded, from)]
      return before === null || after === null ? [] : [{ seed, pair, x: before.weight, y: after.weight }]
    })
    const scale = fitting(points.flatMap(({ x, y }) => [x, y]))
    const [least, most] = scale.domain as [number, number]
    const agreement = r2 === null ? '' : `, R² = ${r2.value.toFixed(3)}`
    return {
      title: capital(FROM_NAMES[from]),
      below: `${pairs} pairs in ${seeds} prompts; ${improved} lie above the line${agreement}`,
      height: 380,
      plot: {
        x: { ...scale, label: 'complete prompt, mean weight' },
        y: { ...scale, label: `folded (${contract}), mean weight` },
        marks: [
          Plot.link([0], { x1: least, y1: least, x2: most, y2: most, ...EQUAL }),
          Plot.dot(points, {
            x: ({ x }: { readonly x: number }) => Math.max(x, scale.type === 'log' ? least : 0),
            y: ({ y }: { readonly y: number }) => Math.max(y, scale.type === 'log' ? least : 0),
            ...{ r: 3, fill: COLOURS[contract], fillOpacity: 0.45 },
            title: ({ seed, pair, x, y }: (typeof points)[number]) =>
              `${pair.key}: ${pair.value} (seed ${seed})\ncomplete ${x.toPrecision(3)}, folded ${y.toPrecision(3)}`,
          }),
        ],
      },
    }
  })
  const title = `Attention to current values, folded (${contract}) against complete, each pair a point`
  return figure({ title, columns: 2, panels })
}

/**
 * Draws by how much a fold changes the weight on current values, how much of that softmax arithmetic explains, and what remains beyond the
 * controls.
 */
export function controls(findings: readonly Finding[]): string {
  const groups = findings.map((finding) => {
    const { contract, from, pairs, seeds } = finding
    const row = (label: string, of: FindingFigure | null, colour: string): PanelRow[] =>
      of === null
        ? []
        : [
            {
              ...{ label, values: [of.value], colour, text: `${signed(of.value)} %` },
              ...(of.interval === null ? {} : { interval: of.interval }),
            },
          ]
    return {
      title: `${contract}, ${FROM_NAMES[from]}: ${pairs} pairs of ${seeds} prompts`,
      rows: [
        ...row('folded', finding.meanChange, COLOURS[contract]),
        ...row('arithmetic alone', finding.baselineMeanChange, COLOURS.complete),
        ...row('folded less arithmetic', finding.excessMeanChange, COLOURS[contract]),
        ...row('beyond made-up words', finding.beyondPlacebo, COLOURS[contract]),
        ...row('beyond unasked keys', finding.beyondUnasked, COLOURS[contract]),
      ],
    }
  })
  const panels = rowPanels(groups, 'change of the mean weight on a current value, %')
  return panels.length === 0
    ? ''
    : figure({
        title: 'How much of the gain softmax arithmetic makes, and how much is left beyond folds of other text',
        below:
          'Means over pairs; lines are 95 % intervals by bootstrap over prompts. Beyond: folded less arithmetic, less the same of the control.',
        panels,
      })
}

const capital = (text: string): string => text.slice(0, 1).toUpperCase() + text.slice(1)

/** Returns the comparisons under the contract. Leaves out prompts whose step fell back to another contract, as the findings do. */
const comparisonsOf = (records: readonly PromptRecord[], contract: Contract) =>
  records.flatMap((record) =>
    kept(record, contract)
      ? record.comparisons.flatMap((one) => (one.contract === contract ? [{ ...one, seed: record.seed }] : []))
      : [],
  )

const pairsOf = (records: readonly PromptRecord[], contract: Contract): { readonly seed: number; readonly pair: Pair }[] =>
  comparisonsOf(records, contract).flatMap(({ seed, pairs }) => pairs.map((pair) => ({ seed, pair })))

const BINS = 24
/** The share of the changes that may lie outside the histogram, on each side. */
const BEYOND = 0.03
/**
 * The histogram reaches at most this far from 0, in percent. A weight cannot lose more than 100 %. Larger gains are counted beside the
 * bins.
 */
const WIDEST = 100

/** Draws a histogram of how much the fold changes each pair's weight, in percent. */
export function changes(records: readonly PromptRecord[], contract: Contract, findings: readonly Finding[]): string {
  const panels = findings.map(({ from, pairs, seeds, meanChange, medianChange }): Panel => {
    const values = pairsOf(records, contract)
      .flatMap(({ pair }) => changeOf(pair, from) ?? [])
      .sort((a, b) => a - b)
    const said = [`${pairs} pairs of ${seeds} prompts`]
    if (meanChange !== null && medianChange !== null)
      said.push(`mean ${signed(meanChange.value)} %, median ${signed(medianChange.value)} %`)
    const outer = Math.max(Math.abs(quantile(values, BEYOND)), Math.abs(quantile(values, 1 - BEYOND)), 1e-6)
    const edge = rounded(Math.min(WIDEST, outer))
    const size = (2 * edge) / BINS
    const [left, right] = [values.filter((value) => value < -edge).length, values.filter((value) => value > edge).length]
    // The number of bins is even, so 0 is a border between two bins.
    const bins = Array.from({ length: BINS }, (_, index) => {
      const start = (index - BINS / 2) * size
      const own = values.filter((value) => value >= start && (value < start + size || (index === BINS - 1 && value === edge)))
      return { start, end: start + size, count: own.length }
    })
    return {
      title: capital(FROM_NAMES[from]),
      below: said.join('; '),
      height: 340,
      plot: {
        x: { domain: [-edge, edge], ticks: 6, label: 'change of the mean weight by folding, %' },
        y: { nice: 5, ticks: 5, label: 'pairs' },
        marks: [
          Plot.rectY(
            bins.filter(({ count }) => count > 0),
            {
              ...{ x1: 'start', x2: 'end', y: 'count', insetLeft: 0.75, insetRight: 0.75 },
              fill: ({ start }: (typeof bins)[number]) => (start >= 0 ? MORE : LESS),
              title: ({ start, end, count }: (typeof bins)[number]) => `${signed(start)} to ${signed(end)} %: ${count} pairs`,
            },
          ),
          Plot.ruleY([0], { strokeOpacity: 0.5 }),
          Plot.ruleX([0], EQUAL),
          beyond(left, 'left'),
          beyond(right, 'right'),
        ],
      },
    }
  })
  const title = `Change of attention to current values by folding (${contract}), in percent`
  return figure({ title, columns: 2, panels })
}

const beyond = (count: number, side: 'left' | 'right'): Plot.Markish =>
  Plot.text(count > 0 ? [`${count} further ${side}`] : [], {
    ...{ frameAnchor: `top-${side}`, dx: side === 'left' ? 4 : -4, fill: FAINT },
  })

/** Rounds the end of an axis up to 1, 2, 3, 4, 5, 6, 8 or 10 times a power of ten. */
function rounded(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 3, 4, 5, 6, 8, 10].map((factor) => factor * power).find((size) => size >= value * (1 - 1e-9)) ?? value
}

const quantile = (sorted: readonly number[], share: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0

/**
 * Draws how attention to a key's earlier and current values depends on the number of updates per key. Returns '' if `points` has only one
 * such number.
 */
export function interference(points: readonly InterferencePoint[]): string {
  const sizes = [...new Set(points.map(({ n }) => n))].sort((a, b) => a - b)
  if (sizes.length < 2) return ''
  const contracts = [...new Set(points.map(({ contract }) => contract))]
  const seeds = [...new Set(points.map((point) => point.seeds))].sort((a, b) => a - b)
  const panels = (['older', 'current'] as const).flatMap((of) =>
    FROMS.map((from) =>
      curves({
        title: `Mass on ${of === 'older' ? "the key's earlier values" : 'the current value'}`,
        below: FROM_NAMES[from],
        sizes,
        names: { x: 'updates per key (n)', y: 'mean mass, 0 to 1' },
        curves: contracts.map((contract) => ({
          colour: COLOURS[contract ?? 'complete'],
          points: points
            .filter((point) => point.contract === contract && point.from === from)
            .sort((a, b) => a.n - b.n)
            .map(({ n, pairs, [of]: { value, interval } }) => ({
              ...{ x: n, value, interval, says: `n = ${n}: ${value.toPrecision(3)} (${pairs} pairs)` },
            })),
        })),
      }),
    ),
  )
  const key = contracts.map((contract) => ({
    label: contract === null ? 'complete' : `folded, ${contract}`,
    colour: COLOURS[contract ?? 'complete'],
  }))
  return figure({
    title: `Attention to earlier and current values against updates per key, ${seeds[0] ?? 0}${seeds.length > 1 ? ` to ${seeds.at(-1)}` : ''} prompts each`,
    key,
    columns: 2,
    panels,
  })
}

/** Up to this many layers and heads, a map shows the numbers in its cells. */
const WRITTEN = 8
/** A number below this share of the map's largest number is shown as ≈0. */
const NOTHING = 1e-4

/**
 * Draws maps by layer and head of the attention to current values: complete prompt, folded prompt, and the difference. There is one set of
 * maps for the value's tokens as queries, and one for the token before them. Returns '' if nothing was measured.
 */
export function headMaps(records: readonly PromptRecord[], contract: Contract): string {
  const own = comparisonsOf(records, contract)
  const cells = cellsOf(own)
  const seen = FROMS.filter((from) =>
    cells.every(({ complete, folded }) => seenFrom(complete, from) !== null && seenFrom(folded, from) !== null),
  )
  const panels = cells.length === 0 ? [] : seen.flatMap((from) => mapsOf(cells, from, contract))
  const title = `Attention to current values by layer and head, complete and folded (${contract})`
  const below = `Mass on the current value's tokens in %, means of ${own.length} prompts.`
  return figure({ title, below, columns: 3, panels })
}

const SCORE_TITLES: Readonly<Record<HeadScoreName, string>> = {
  sink: 'Sink: weight on the first token',
  previous: 'Weight on the token before',
  induction: 'Induction: what came next the first time',
  retrieval: 'Retrieval: copied tokens looked at most',
}

/** Draws one map by layer and head for each kind of head score. */
export function headFigure(scores: readonly HeadScores[]): string {
  const panels = HEAD_SCORES.map((name) =>
    map(
      scores,
      scores.map((one) => 100 * mean(one[name])),
      100,
      SCORE_TITLES[name],
      'darkest: 100 %',
    ),
  )
  const below = `Means of ${scores[0]?.sink.length ?? 0} prompts, in %.`
  return figure({ title: 'Scores of attention heads', below, columns: 2, panels })
}

/** The attention of one layer and head, averaged over prompts. */
interface HeadCell extends AttentionHead {
  readonly complete: ValueAttention
  readonly folded: ValueAttention
}

function mapsOf(cells: readonly HeadCell[], from: From, contract: Contract): Panel[] {
  const mass = (glance: ValueAttention): number => 100 * (seenFrom(glance, from)?.current ?? 0)
  const before = cells.map(({ complete }) => mass(complete))
  const after = cells.map(({ folded }) => mass(folded))
  const change = after.map((value, index) => value - before[index]!)
  const most = Math.max(...before, ...after, Number.MIN_VALUE)
  const largest = Math.max(...change.map(Math.abs), Number.MIN_VALUE)
  const name = from === 'value' ? "From the value's tokens" : 'From the predicting token'
  return [
    map(cells, before, most, `${name}: complete`, `darkest: ${number(most)} %`),
    map(cells, after, most, `folded, ${contract}`, 'same scale'),
    map(cells, change, largest, 'folded less complete', `darkest: ±${number(largest)}`),
  ]
}

function map(cells: readonly AttentionHead[], values: readonly number[], most: number, title: string, below: string): Panel {
  const [layers, heads] = [[...new Set(cells.map(({ layer }) => layer))], [...new Set(cells.map(({ head }) => head))]]
  const largest = Math.max(...values.map(Math.abs))
  const at = cells.map(({ layer, head }, index) => ({ layer, head, value: values[index]! }))
  const some = (all: readonly number[]) => all.filter((_, index) => index % Math.ceil(all.length / 12) === 0)
  return {
    ...{ title, below, rules: null, height: Math.max(36, Math.min(layers.length * 34, 420)) + 68 },
    plot: {
      ...{ marginLeft: 48, marginRight: 12, marginTop: 8, padding: 0.04 },
      x: { type: 'band', domain: heads, ticks: some(heads), label: 'head', labelOffset: 36 },
      y: { type: 'band', domain: layers, ticks: some(layers), label: 'layer', labelOffset: 36 },
      opacity: { type: 'identity' },
      marks: [
        Plot.cell(at, {
          ...{ x: 'head', y: 'layer' },
          fill: ({ value }: { readonly value: number }) => (value < 0 ? LESS : MORE),
          fillOpacity: ({ value }: { readonly value: number }) => 0.05 + (0.8 * Math.abs(value)) / most,
          title: ({ layer, head, value }: (typeof at)[number]) => `layer ${layer}, head ${head}: ${number(value)} %`,
        }),
        Plot.text(layers.length <= WRITTEN && heads.length <= WRITTEN ? at : [], {
          ...{ x: 'head', y: 'layer', fontSize: 11 },
          text: ({ value }: { readonly value: number }) => (Math.abs(value) < NOTHING * largest ? '≈0' : number(value)),
        }),
      ],
    },
  }
}

function cellsOf(comparisons: readonly PairComparison[]): HeadCell[] {
  const rows = comparisons.flatMap(({ heads }) => heads)
  const groups = new Map<string, typeof rows>()
  for (const row of rows) groups.set(`${row.layer}/${row.head}`, [...(groups.get(`${row.layer}/${row.head}`) ?? []), row])
  return [...groups.values()].map((group) => ({
    layer: group[0]!.layer,
    head: group[0]!.head,
    complete: meanGlance(group.map(({ complete }) => complete))!,
    folded: meanGlance(group.map(({ folded }) => folded))!,
  }))
}

const number = (value: number): string => {
  const size = Math.abs(value)
  return size === 0
    ? '0'
    : size >= 0.01
      ? value.toFixed(size >= 10 ? 1 : 2).replace('-', '−')
      : value.toExponential(0).replace('-', '−').replace('e−', 'e-')
}

const ROLES: Readonly<Record<string, string>> = {
  system: '#8b8b94',
  user: '#0d9488',
  assistant: '#3b82f6',
  tool: '#ea580c',
}
const MARKER = '#facc15'
const OWN = '#9333ea'
/** A segment of a bar shows its name only from this percentage of the attention on; a smaller one has no room. */
const NAMED = 3

/** Draws an agent's turn: for each step its tool calls, and a bar that divides the attention of its generated tokens among the messages. */
export function episode({ n, seed, steps, right, asked }: EpisodeRecord): string {
  const parts = steps.flatMap(partsOf)
  const said = (step: EpisodeStep) => `step ${step.step + 1}: ${calls(step.calls)}`
  // The y axis counts steps downwards. A step's text is centred 0.35 below the start of its row, and its bar is below the text.
  const place = { y: ({ step }: EpisodeStep) => step + 0.35 } as const
  type TurnPart = (typeof parts)[number]
  return figure({
    title: `An agent's turn (n = ${n}, seed ${seed}): ${steps.length} steps, ${right} of ${asked} values right`,
    below:
      'Attention of the tokens that a step generates: mean over layers, heads and these tokens. Numbers are messages, from 0.',
    key: [
      ...Object.entries(ROLES).map(([label, colour]) => ({ label, colour })),
      { label: 'markers of folded text', colour: MARKER },
      { label: "the step's own tokens", colour: OWN },
    ],
    panels: [
      {
        height: steps.length * 70 + 54,
        rules: null,
        plot: {
          ...{ marginLeft: 20, marginRight: 20, marginTop: 0 },
          x: { domain: [0, 100], label: 'share of the attention, %' },
          y: { domain: [steps.length, 0], axis: null },
          marks: [
            Plot.text(steps, { ...place, text: said, frameAnchor: 'left', textAnchor: 'start' }),
            Plot.text(steps, {
              ...{ ...place, frameAnchor: 'right', textAnchor: 'end', fill: FAINT },
              text: ({ queries, shown }: EpisodeStep) => `${queries} tokens look; ${shown} tokens are shown before them`,
            }),
            Plot.rect(parts, {
              ...{ x1: 'from', x2: 'to', y1: ({ step }: TurnPart) => step + 0.5, y2: ({ step }: TurnPart) => step + 0.94 },
              ...{ fill: 'colour', insetRight: 0.6, title: 'says' },
            }),
            Plot.text(
              parts.filter(({ from, to }) => to - from >= NAMED),
              {
                x: ({ from, to }: TurnPart) => (from + to) / 2,
                y: ({ step }: TurnPart) => step + 0.72,
                text: 'name',
                fill: 'white',
              },
            ),
          ],
        },
      },
    ],
  })
}

function partsOf({ step, shares, own }: EpisodeStep) {
  const parts = [
    ...shares.flatMap(({ message, role, mass, markers, tokens }) => [
      {
        name: String(message),
        colour: ROLES[role] ?? '#8b8b94',
        mass: mass - markers,
        of: `message ${message} (${role}, ${tokens} tokens)`,
      },
      { name: '', colour: MARKER, mass: markers, of: `markers in message ${message}` },
    ]),
    { name: 'own', colour: OWN, mass: own, of: "the step's own tokens" },
  ].filter(({ mass }) => mass > 0)
  const whole = parts.reduce((sum, { mass }) => sum + mass, 0)
  let to = 0
  return parts.map(({ name, colour, mass, of }) => ({
    ...{ step, name, colour, from: to, to: (to += (100 * mass) / whole) },
    says: `${of}: ${(100 * mass).toFixed(2)} %`,
  }))
}

/** Names the tools that a step called, and how often. A step without calls gave the answer. */
function calls(all: readonly string[]): string {
  const names = [...new Set(all)]
  if (names.length === 0) return 'the answer'
  return names
    .map((name) => [name, all.filter((call) => call === name).length] as const)
    .map(([name, count]) => (count > 1 ? `${name} x ${count}` : name))
    .join(', ')
}

/** Draws how much attention the whole answer gives to each watched span. */
export function spanFigure({ rows, answers }: SpanStudy): string {
  const sides = answers.map(({ side }) => ({ side, label: side === 'complete' ? 'complete' : `folded, ${side}` }))
  const groups = [...new Set(rows.map(({ name }) => name))].map((name) => {
    const own = rows.filter((row) => row.name === name)
    return {
      title: name.replace(/\s+/gu, ' '),
      rows: sides.flatMap(({ side, label }) => {
        const one = own.find(({ contract }) => contract === side)
        const mass = side === 'complete' ? own[0]?.complete : one?.folded
        if (mass === undefined) return []
        if (mass === null) return [{ label, parts: [], text: 'not shown' }]
        const says = mass.toPrecision(3) + (one?.change == null ? '' : ` (${signed(one.change)} %)`)
        return [{ label, parts: [{ value: mass, colour: COLOURS[side], says }], text: says }]
      }),
    }
  })
  return figure({
    title: 'Share of the attention of the whole answer on each span',
    below: `${groups.length} spans; mean over layers, heads and the tokens of the answer.`,
    key: sides.map(({ side, label }) => ({ label, colour: COLOURS[side] })),
    panels: rowPanels(groups, 'attention mass on the span, 0 to 1'),
  })
}
