/** Owns the figures of tool use: which tools, in which order, how evenly, how often, and folds beside restores. */
import { paperFigure3, paperTraining } from '../../paper.js'
import { barChart, type Bar, type BarGroup } from '../figures/bars.js'
import { dotChart, type Dot, type DotGroup } from '../figures/dots.js'
import { type Drawn, drawnOr, type Entry, type LeftOut, lookOf, PALETTE, THEIRS } from '../figures/frame.js'
import { orderChart } from '../figures/order.js'
import type { ConditionResult, Summary } from '../summary.js'
import { Labels, percent, plural } from '../tables/table.js'
import { toolNames } from '../tables/tools.js'

/** None of them without calls: that is said once. */
export function usePictures(summary: Summary): Drawn[] {
  const calling = summary.conditions.filter(({ tools }) => tools.calls > 0)
  const why = "Tool use, as in the paper's figures 3 and 11 to 13: no agent of these logs called tools."
  if (calling.length === 0) return [{ title: 'Tool use', why } satisfies LeftOut]
  const labels = new Labels(summary)
  return [
    toolCounts(summary, labels, calling),
    order(labels, calling),
    entropies(summary, labels, calling),
    callsPerTask(summary, labels, calling),
    shares(summary, labels, calling),
    onPiLlm(summary, labels, calling),
  ]
}

const toolEntries = (calling: readonly ConditionResult[]): Entry[] =>
  toolNames(calling.map(({ tools }) => tools)).map((label, index) => ({ label, colour: PALETTE[index % PALETTE.length]! }))

const perSample = ({ tools }: ConditionResult, name: string): number => (tools.counts[name] ?? 0) / tools.samples

/** In the shape of figure 3: a group a task, and a tool where several conditions called tools. */
function toolCounts(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): Drawn {
  const title = 'Which tools are called'
  const groups = summary.tasks.flatMap(({ task }, index): BarGroup[] => {
    const own = calling.filter((condition) => condition.task === index)
    if (own.length === 0) return []
    const quoted = paperFigure3.counts.filter((one) => one.task === task)
    const names = [...new Set([...toolNames(own.map(({ tools }) => tools)), ...quoted.map(({ tool }) => tool)])]
    const ofTool = (name: string, label: (condition: ConditionResult) => string): Bar[] => [
      ...own.map((condition) => {
        const value = perSample(condition, name)
        const { colour } = lookOf(summary, condition)
        return {
          label: label(condition),
          parts: [{ value, colour, says: `${value.toFixed(2)} a sample` }],
          text: value.toFixed(2),
        }
      }),
      ...quoted.filter(({ tool }) => tool === name).map(quotedBar),
    ]
    const [only] = own
    return own.length === 1 && only !== undefined
      ? [{ title: `${labels.task(index)}: ${labels.condition(only)}`, bars: names.flatMap((name) => ofTool(name, () => name)) }]
      : names.map((name) => ({
          title: `${labels.task(index)}: ${name}`,
          bars: ofTool(name, (condition) => labels.condition(condition)),
        }))
  })
  const theirs = `Hollow: the paper's figure 3 (${paperFigure3.method}, ${paperFigure3.samples} samples), as far as its text has numbers.`
  return drawnOr('tools', title, barChart({ title, below: theirs, unit: 'calls a sample' }, [], groups), title)
}

function quotedBar({ prompt, calls }: (typeof paperFigure3.counts)[number]): Bar {
  const value = calls / paperFigure3.samples
  return {
    label: `the paper's, ${prompt}`,
    parts: [{ value, colour: THEIRS, says: `${calls} calls in ${paperFigure3.samples} samples` }],
    text: value.toFixed(2),
    theirs: true,
  }
}

function order(labels: Labels, calling: readonly ConditionResult[]): Drawn {
  const title = 'Which tool at which call'
  const panels = calling.map((condition) => ({
    title: labels.task(condition.task),
    below: `${labels.condition(condition)}; ${plural(condition.tools.samples, 'sample')}, ${plural(condition.tools.calls, 'call')}`,
    samples: condition.tools.samples,
    order: condition.tools.order,
  }))
  const svg = orderChart(
    title,
    'Of how many samples the first, second, ... call was of which tool.',
    toolEntries(calling),
    panels,
  )
  return drawnOr('tool-order', title, svg, title)
}

const decimals = (value: number): string => value.toFixed(value < 1 ? 3 : 2)

const quotedDot = (label: string, { start, end }: { readonly start: number; readonly end: number }): Dot => ({
  label,
  values: [start, end],
  colour: THEIRS,
  text: `${decimals(start)} → ${decimals(end)}`,
  theirs: true,
})

/** A group a task. */
const ownGroups = (
  summary: Summary,
  labels: Labels,
  conditions: readonly ConditionResult[],
  of: (condition: ConditionResult) => number | null,
): DotGroup[] =>
  summary.tasks.map((_, task) => ({
    title: labels.task(task),
    dots: conditions.flatMap((condition) => {
      const value = of(condition)
      if (condition.task !== task || value === null) return []
      return [
        {
          label: labels.condition(condition),
          values: [value] as const,
          colour: lookOf(summary, condition).colour,
          text: decimals(value),
        },
      ]
    }),
  }))

const QUOTED = `The paper's (${paperTraining.method}), beginning → end`

function entropies(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): Drawn {
  const title = 'How evenly tools are used: entropy'
  const svg = dotChart(
    {
      title,
      below: "Shannon entropy of calls by tool, in bits; in place of the paper's figure 11, which follows a training.",
      unit: 'bits',
    },
    [],
    [
      ...ownGroups(summary, labels, calling, ({ tools }) => tools.entropy),
      { title: QUOTED, dots: paperTraining.entropy.rows.map((row) => quotedDot(row.of, row)) },
    ],
  )
  return drawnOr('tool-entropy', title, svg, title)
}

function callsPerTask(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): Drawn {
  const title = 'Calls a sample'
  const svg = dotChart(
    {
      title,
      below: "Mean number of calls, failed ones included; in place of the paper's figure 12, which follows a training.",
      unit: 'calls a sample',
    },
    [],
    [
      ...ownGroups(summary, labels, calling, ({ tools }) => tools.calls / tools.samples),
      { title: QUOTED, dots: paperTraining.calls.rows.map((row) => quotedDot(row.of, row)) },
    ],
  )
  return drawnOr('tool-calls', title, svg, title)
}

/** In place of the left half of figure 13, for all tasks. */
function shares(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): Drawn {
  const title = 'Shares of tools among the calls'
  const tools = toolEntries(calling)
  const groups = summary.tasks.map((_, task) => ({
    title: labels.task(task),
    bars: calling
      .filter((condition) => condition.task === task)
      .map((condition): Bar => ({
        label: labels.condition(condition),
        parts: tools.map(({ label, colour }) => {
          const share = (condition.tools.counts[label] ?? 0) / condition.tools.calls
          return { value: 100 * share, colour, says: `${label} ${percent(share)} %` }
        }),
        text: plural(condition.tools.calls, 'call'),
      })),
  }))
  const below =
    "In place of the left half of the paper's figure 13, which follows a training and of which the text has no numbers."
  return drawnOr('tool-shares', title, barChart({ title, below, unit: '% of all calls', most: 100 }, tools, groups), title)
}

/** In place of the right half of figure 13. */
function onPiLlm(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): Drawn {
  const title = 'Folds and restores on PI-LLM'
  const own = calling.filter(({ task }) => summary.tasks[task]!.task === 'pi-llm')
  const svg = dotChart(
    { title, below: "In place of the right half of the paper's figure 13, which follows a training.", unit: 'calls a sample' },
    [],
    own.length === 0
      ? []
      : paperTraining.piLlm.rows.flatMap(({ tool, start, end }) =>
          [
            ...ownGroups(summary, labels, own, (condition) => perSample(condition, tool)),
            { title: QUOTED, dots: [quotedDot('all samples', { start, end })] },
          ].map(({ title: group, dots }) => ({ title: `${tool}: ${group}`, dots, axis: tool })),
        ),
  )
  return drawnOr('tool-folds', title, svg, `${title}, as in the paper's figure 13: no agent called tools on PI-LLM.`)
}
