/**
 * Draws the figures of accuracy and cost. A figure is a drawing, or the reason why it is missing. Also defines each condition's colour and
 * dashes.
 */
import { type Curve, curves, type PanelPoint, type PanelRow, type RowGroup, rows, size } from '../../figures/panels.js'
import { type LegendEntry, figure, type Panel, type Picture, THEIRS } from '../../figures/figure.js'
import { count, plural } from '../../../runtime/figures/numbers.js'
import type { AgentKind } from '../../agent.js'
import { paperFigure6, type PaperRow, paperTable1 } from '../../paper.js'
import type { Estimate } from '../../accuracy.js'
import type { Measures } from '../estimates.js'
import type { ConditionResult, Summary } from '../summary.js'
import { Labels, percent, seconds } from '../tables/labels.js'
import { PAPER_AXES, valuesOn } from '../tables/paper.js'

export interface LeftOut {
  /** Why there is no drawing: a sentence that names the data that the logs lack. */
  readonly why: string
}

export type DrawnPicture = Picture | LeftOut

/** Returns the drawing as a figure. If `svg` is '' (no data), returns the reason `why`. */
export const drawnOr = (name: string, svg: string, why: string): DrawnPicture => (svg === '' ? { why } : { name, svg })

/** The agents' colours, readable on white and on black. */
const AGENTS: Readonly<Record<AgentKind, string>> = {
  plain: '#71717a',
  sculptor: '#0d9488',
  'rag-bm25': '#ea580c',
  'rag-dense': '#ca8a04',
  memagent: '#3b82f6',
  mem0: '#a855f7',
  policy: '#16a34a',
  summary: '#db2777',
  archive: '#0891b2',
  files: '#65a30d',
  'edit-text': '#b45309',
}

const DASHES: readonly string[] = ['', '7 4', '2 3', '10 3 2 3']

export interface SeriesStyle {
  readonly colour: string
  /** The dash pattern. It tells conditions of the same agent apart: contracts, settings, logs. */
  readonly dash: string
}

/** Returns a condition's colour and dashes, which are the same in all figures. */
export function lookOf({ agents, conditions }: Summary, condition: ConditionResult): SeriesStyle {
  const kind = agents[condition.agent]!.agent
  const name = ({ variant, agent, contract }: ConditionResult): string => `${variant} ${agent} ${contract}`
  const same = [...new Set(conditions.filter(({ agent }) => agents[agent]!.agent === kind).map(name))]
  return { colour: AGENTS[kind], dash: DASHES[same.indexOf(name(condition)) % DASHES.length]! }
}

// Below: the figures of accuracy: one of all conditions and tasks, and curves along the axes of cells, beside the paper's curves.

export function accuracyPictures(summary: Summary): DrawnPicture[] {
  const labels = new Labels(summary)
  const groups = summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: summary.conditions.flatMap((condition) => {
      const { measures } = condition
      if (condition.task !== task || measures === null) return []
      const { value, interval } = measures.accuracy
      return [
        {
          label: labels.condition(condition),
          values: [100 * value] as const,
          interval: [100 * interval[0], 100 * interval[1]] as const,
          colour: lookOf(summary, condition).colour,
          text: `${percent(value)} (${measures.answered})`,
        },
      ]
    }),
  }))
  const title = 'Accuracy of every agent on every task'
  const below = 'Over all cells, with 95 % intervals; brackets show the number of answered samples.'
  const overview = figure({ title, below, panels: rows(groups, 'accuracy, %', 100) })
  return [
    drawnOr('accuracy', overview, 'No sample was answered.'),
    ...summary.tasks.map((_, task) => curvesOf(summary, labels, task)),
  ]
}

/**
 * Draws the curves of one task. Each axis with at least two values has a panel, beside the paper's curves. With two such axes, there is
 * also a panel along the second axis for each value of the first.
 */
function curvesOf(summary: Summary, labels: Labels, index: number): DrawnPicture {
  const { task, slug, axes } = summary.tasks[index]!
  const own = summary.conditions.filter((condition) => condition.task === index)
  const long = axes.filter((axis) => valuesOn(own, axis).length > 1)
  const title = `Accuracy on ${labels.task(index)}`
  const panels = long.flatMap((axis) => {
    const quoted = paperPanel(task, axis)
    return [averaged(summary, labels, own, axis, long.length > 1), ...(quoted === null ? [] : [quoted])]
  })
  const [first, second] = long
  if (first !== undefined && second !== undefined)
    panels.push(...valuesOn(own, first).map((value) => crossed(summary, labels, own, { axis: first, value, along: second })))
  const below = `With 95 % intervals.${task === 'needles' && long.length > 1 ? " It has the shape of the paper's figure 4. The paper's text has no numbers for these curves." : ''}`
  const models = long.some((axis) => paperPanel(task, axis) !== null)
    ? Object.entries(MODELS).map(([label, colour]) => ({ label: `${label} (the paper's)`, colour }))
    : []
  const svg = figure({ title, below, key: [...entries(summary, labels, own), ...models], columns: 2, panels })
  const name = task === 'needles' ? "curves in the shape of the paper's figure 4" : 'curves'
  return drawnOr(
    `accuracy-${slug}`,
    svg,
    `${labels.task(index)}: no ${name}, because ${axes.length === 0 ? 'its cells have no axis' : `no axis of its cells has two values (${axes.join(', ')})`}.`,
  )
}

const entries = (summary: Summary, labels: Labels, conditions: readonly ConditionResult[]): LegendEntry[] =>
  conditions.map((condition) => ({ label: labels.condition(condition), ...lookOf(summary, condition) }))

function averaged(
  summary: Summary,
  labels: Labels,
  conditions: readonly ConditionResult[],
  axis: string,
  several: boolean,
): Panel {
  return panel(
    `Ours, by ${axis}`,
    several ? 'all samples with this value' : samples(conditions, axis),
    axis,
    valuesOn(conditions, axis),
    conditions.map((condition) => ({
      ...lookOf(summary, condition),
      points: condition.margins.flatMap((margin) =>
        margin.axis === axis ? [point(labels.condition(condition), margin.value, margin.accuracy, margin.answered)] : [],
      ),
    })),
  )
}

function crossed(
  summary: Summary,
  labels: Labels,
  conditions: readonly ConditionResult[],
  { axis, value, along }: { readonly axis: string; readonly value: number; readonly along: string },
): Panel {
  return panel(
    `Ours, ${axis} ${value}, by ${along}`,
    '',
    along,
    valuesOn(conditions, along),
    conditions.map((condition) => ({
      ...lookOf(summary, condition),
      points: condition.cells.flatMap(({ cell, measures }): PanelPoint[] => {
        const x = cell[along]
        return cell[axis] === value && typeof x === 'number' && measures !== null
          ? [point(labels.condition(condition), x, measures.accuracy, measures.answered)]
          : []
      }),
    })),
  )
}

const panel = (title: string, below: string, axis: string, sizes: readonly number[], own: readonly Curve[]): Panel =>
  curves({ title, below, sizes, names: { x: axis, y: 'accuracy, %' }, y: { domain: [0, 100], ticks: 5 }, curves: own })

const point = (label: string, x: number, { value, interval }: Estimate, answered: number): PanelPoint => ({
  x,
  value: 100 * value,
  interval: [100 * interval[0], 100 * interval[1]],
  says: `${label}, ${size(x)}: ${percent(value)} % (${plural(answered, 'sample')})`,
})

/** Returns a text on how many samples each point of a curve along the axis has. */
function samples(conditions: readonly ConditionResult[], axis: string): string {
  const sizes = conditions.flatMap(({ margins }) =>
    margins.filter((margin) => margin.axis === axis).map(({ answered }) => answered),
  )
  if (sizes.length === 0) return ''
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)]
  return least === most ? `${plural(most, 'sample')} a point` : `${least} to ${most} samples a point`
}

/** The colours of the paper's three models. Models without tools have dashed lines. */
const MODELS: Readonly<Record<string, string>> = { 'Claude-4-Sonnet': '#db2777', 'GPT-4.1': '#65a30d', 'DeepSeek-V3': '#0891b2' }

function paperPanel(task: string, axis: string): Panel | null {
  const quoted = [paperTable1.piLlm, paperTable1.needles].find((part) => part.task === task && PAPER_AXES[part.task] === axis)
  if (quoted === undefined) return null
  const { rows: quotedRows }: { readonly rows: readonly PaperRow[] } = quoted
  const own = quotedRows.map(({ method, tools, values }): Curve => ({
    colour: MODELS[method]!,
    dash: tools ? '' : '4 4',
    points: values.map((value, at) => {
      const x = quoted.columns[at]!
      const says = `${method}, ${tools ? 'with tools' : 'plain'}, ${size(x)}: ${value.toFixed(1)} % (${paperTable1.source})`
      return { x, value, interval: null, says }
    }),
  }))
  const title = `The paper's, by ${axis}: other models and data`
  return panel(title, 'solid lines: with tools; dashed: plain', axis, quoted.columns, own)
}

// Below: the figures of cost: context before and after, computed and reused tokens, time.

export function costPictures(summary: Summary): DrawnPicture[] {
  const labels = new Labels(summary)
  return [context(summary, labels), work(summary, labels), time(summary, labels)]
}

/** Draws a figure like the paper's figure 6. It shows only conditions with tool calls, because only their agents change the context. */
function context(summary: Summary, labels: Labels): DrawnPicture {
  const title = 'Context before and after'
  const callers = summary.conditions.filter(({ tools, measures }) => tools.calls > 0 && measures !== null)
  const ours = (condition: ConditionResult): PanelRow[] => {
    const { before, after } = condition.measures!.context
    if (after === null) return []
    const text = `${count(before)} → ${count(after)}${change(before, after)}`
    return [{ label: labels.condition(condition), values: [before, after], colour: lookOf(summary, condition).colour, text }]
  }
  const names = new Set(callers.map(({ task }) => summary.tasks[task]!.task))
  const theirs = paperFigure6.tasks
    .filter(({ task }) => names.has(task))
    .map(({ task, before, after }): PanelRow => ({
      label: summary.tasks.find((own) => own.task === task)!.title,
      values: [before, after],
      colour: THEIRS,
      text: `${count(before)} → ${count(after)}${change(before, after)}`,
      theirs: true,
    }))
  const groups = summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: callers.filter((condition) => condition.task === task).flatMap(ours),
  }))
  const quoted = { title: `The paper's (${paperFigure6.method}): another model, other data`, rows: theirs }
  const svg = figure({
    title,
    below: "Means over samples, in the shape of the paper's figure 6; our scale differs from the paper's.",
    panels: callers.length === 0 ? [] : [...rows(groups, 'tokens'), ...rows([quoted], 'tokens')],
  })
  return drawnOr('context', svg, `${title}, as in the paper's figure 6: no agent of these logs called tools.`)
}

const change = (before: number, after: number): string =>
  before === 0 ? '' : ` (${after <= before ? '−' : '+'}${percent(Math.abs(1 - after / before))} %)`

const [COMPUTED, REUSED] = ['#ea580c', '#0d9488']

function work(summary: Summary, labels: Labels): DrawnPicture {
  const title = 'Tokens computed, and tokens shown that were in the cache'
  const groups = byTask(summary, labels, ({ work, reused }) => ({
    parts: [
      { value: work.submitted, colour: COMPUTED, says: `${count(work.submitted)} tokens computed` },
      { value: work.reused, colour: REUSED, says: `${count(work.reused)} tokens from the cache` },
    ],
    text: reused === null ? '' : `${percent(reused)} %`,
  }))
  const svg = figure({
    title,
    below: 'Means per sample, over all its steps; the number at the end is the share of shown tokens that were in the cache.',
    key: [
      { label: 'computed', colour: COMPUTED },
      { label: 'shown from the cache', colour: REUSED },
    ],
    panels: rows(groups, 'tokens a sample'),
  })
  return drawnOr('work', svg, `${title}: no sample was answered.`)
}

const TIMES = [
  { name: 'prefill', colour: '#ea580c' },
  { name: 'decode', colour: '#3b82f6' },
  { name: 'cache', colour: '#0d9488' },
  { name: 'other', colour: '#a1a1aa' },
] as const

function time(summary: Summary, labels: Labels): DrawnPicture {
  const title = 'Where the time goes'
  const groups = byTask(summary, labels, ({ milliseconds }) => ({
    parts: TIMES.map(({ name, colour }) => ({
      ...{ value: milliseconds[name] / 1000, colour, says: `${name} ${seconds(milliseconds[name])} s` },
    })),
    text: `${seconds(milliseconds.total)} s`,
  }))
  const svg = figure({
    title,
    below: 'Means over samples. other: tools, retrieval, and the wait for other samples of the run.',
    key: TIMES.map(({ name, colour }) => ({ label: name, colour })),
    panels: rows(groups, 'seconds a sample'),
  })
  return drawnOr('time', svg, `${title}: no sample was answered.`)
}

const byTask = (summary: Summary, labels: Labels, of: (measures: Measures) => Omit<PanelRow, 'label'>): RowGroup[] =>
  summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: summary.conditions.flatMap((condition) =>
      condition.task !== task || condition.measures === null
        ? []
        : [{ label: labels.condition(condition), ...of(condition.measures) }],
    ),
  }))
