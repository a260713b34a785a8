/** Owns the figures of accuracy: all conditions of all tasks, and curves against what makes a task harder, the paper's beside ours. */
import { paperTable1, type PaperRow } from '../../paper.js'
import { type Curve, curves, type Point, size } from '../../../figures/curves.js'
import { type Entry, figure, type Panel } from '../../../figures/figure.js'
import { rows } from '../../../figures/rows.js'
import { type Drawn, drawnOr, lookOf } from './picture.js'
import type { Estimate } from '../estimates.js'
import type { ConditionResult, Summary } from '../summary.js'
import { plural } from '../../../figures/numbers.js'
import { Labels, percent } from '../tables/labels.js'
import { PAPER_AXES, valuesOn } from '../tables/paper.js'

export function accuracyPictures(summary: Summary): Drawn[] {
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
  const below = 'Over all cells, with 95 % intervals; in brackets how many samples were answered.'
  const overview = figure({ title, below, panels: rows(groups, 'accuracy, %', 100) })
  return [
    drawnOr('accuracy', overview, 'No sample was answered.'),
    ...summary.tasks.map((_, task) => curvesOf(summary, labels, task)),
  ]
}

/** A panel for every axis with two values or more, the paper's beside it; where there are two such axes, also one for every value of the first. */
function curvesOf(summary: Summary, labels: Labels, index: number): Drawn {
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
  const below = `With 95 % intervals.${task === 'needles' && long.length > 1 ? " In the shape of the paper's figure 4, of whose curves the text has no numbers." : ''}`
  const models = long.some((axis) => paperPanel(task, axis) !== null)
    ? Object.entries(MODELS).map(([label, colour]) => ({ label: `${label} (the paper's)`, colour }))
    : []
  const svg = figure({ title, below, key: [...entries(summary, labels, own), ...models], columns: 2, panels })
  const name = task === 'needles' ? "curves in the shape of the paper's figure 4" : 'curves'
  return drawnOr(
    `accuracy-${slug}`,
    svg,
    `${labels.task(index)}: no ${name}, because no axis of its cells has two values (${axes.length === 0 ? 'it has none' : axes.join(', ')}).`,
  )
}

const entries = (summary: Summary, labels: Labels, conditions: readonly ConditionResult[]): Entry[] =>
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
    several ? 'all samples with this value' : samples(conditions),
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
      points: condition.cells.flatMap(({ cell, measures }): Point[] => {
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

const point = (label: string, x: number, { value, interval }: Estimate, answered: number): Point => ({
  x,
  value: 100 * value,
  interval: [100 * interval[0], 100 * interval[1]],
  says: `${label}, ${size(x)}: ${percent(value)} % (${plural(answered, 'sample')})`,
})

function samples(conditions: readonly ConditionResult[]): string {
  const sizes = conditions.flatMap(({ margins }) => margins.map(({ answered }) => answered))
  if (sizes.length === 0) return ''
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)]
  return least === most ? `${plural(most, 'sample')} a point` : `${least} to ${most} samples a point`
}

/** Colours of the paper's three models; dashed without tools. */
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
  return panel(title, 'full lines: with tools; dashed: plain', axis, quoted.columns, own)
}
