/** Owns the figures of accuracy: all conditions of all tasks, and curves against what makes a task harder, the paper's beside ours. */
import { paperTable1, type PaperRow } from '../../paper.js'
import { curveChart, type Curve, type Panel, type Point } from '../figures/curves.js'
import { dotChart } from '../figures/dots.js'
import { type Drawn, drawnOr, type Entry, lookOf } from '../figures/frame.js'
import type { Estimate } from '../estimates.js'
import type { ConditionResult, Summary } from '../summary.js'
import { Labels, percent, plural } from '../tables/table.js'
import { PAPER_AXES, valuesOn } from '../tables/paper.js'

export function accuracyPictures(summary: Summary): Drawn[] {
  const labels = new Labels(summary)
  const groups = summary.tasks.map((_, task) => ({
    title: labels.task(task),
    dots: summary.conditions.flatMap((condition) => {
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
  const overview = dotChart(
    {
      title: 'Accuracy of every agent on every task',
      below: 'Over all cells, with 95 % intervals; in brackets how many samples were answered.',
      unit: 'accuracy, %',
      most: 100,
    },
    [],
    groups,
  )
  return [
    drawnOr('accuracy', 'Accuracy of every agent on every task', overview, 'No sample was answered.'),
    ...summary.tasks.map((_, task) => curves(summary, labels, task)),
  ]
}

/** A panel for every axis with two values or more, the paper's beside it; where there are two such axes, also one for every value of the first. */
function curves(summary: Summary, labels: Labels, index: number): Drawn {
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
  const svg = curveChart(title, below, [...entries(summary, labels, own), ...models], panels)
  const name = task === 'needles' ? "curves in the shape of the paper's figure 4" : 'curves'
  return drawnOr(
    `accuracy-${slug}`,
    title,
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
  return {
    title: `Ours, by ${axis}`,
    below: several ? 'all samples with this value' : samples(conditions),
    axis,
    xs: valuesOn(conditions, axis),
    curves: conditions.map((condition) => ({
      label: labels.condition(condition),
      ...lookOf(summary, condition),
      points: condition.margins.flatMap((margin) =>
        margin.axis === axis ? [point(margin.value, margin.accuracy, margin.answered)] : [],
      ),
    })),
  }
}

function crossed(
  summary: Summary,
  labels: Labels,
  conditions: readonly ConditionResult[],
  { axis, value, along }: { readonly axis: string; readonly value: number; readonly along: string },
): Panel {
  return {
    title: `Ours, ${axis} ${value}, by ${along}`,
    below: '',
    axis: along,
    xs: valuesOn(conditions, along),
    curves: conditions.map((condition) => ({
      label: labels.condition(condition),
      ...lookOf(summary, condition),
      points: condition.cells.flatMap(({ cell, measures }): Point[] => {
        const x = cell[along]
        return cell[axis] === value && typeof x === 'number' && measures !== null
          ? [point(x, measures.accuracy, measures.answered)]
          : []
      }),
    })),
  }
}

const point = (x: number, { value, interval }: Estimate, answered: number): Point => ({
  x,
  value,
  interval,
  says: plural(answered, 'sample'),
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
  const rows: readonly PaperRow[] = quoted.rows
  return {
    title: `The paper's, by ${axis}: other models and data`,
    below: 'full lines: with tools; dashed: plain',
    axis,
    xs: [...quoted.columns],
    curves: rows.map(({ method, tools, values }): Curve => ({
      label: `${method}, ${tools ? 'with tools' : 'plain'}`,
      colour: MODELS[method]!,
      dash: tools ? '' : '4 4',
      points: values.map((value, at) => ({
        x: quoted.columns[at]!,
        value: value / 100,
        interval: null,
        says: paperTable1.source,
      })),
    })),
  }
}
