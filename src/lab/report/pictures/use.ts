/** Draws the figures of tool use: which tools agents call, in which order, how evenly and how often, and folds beside restores. */
import { paperFigure3, paperTraining } from '../../paper.js'
import * as Plot from '@observablehq/plot'
import { type LegendEntry, figure, PALETTE, type Panel, THEIRS } from '../../figures/figure.js'
import { type PanelRow, type RowGroup, rows } from '../../figures/panels.js'
import { type DrawnPicture, drawnOr, lookOf } from './picture.js'
import type { ConditionResult, Summary } from '../summary.js'
import { plural } from '../../../runtime/figures/numbers.js'
import { Labels, percent } from '../tables/labels.js'
import { toolNames } from '../tables/tools.js'

/** Returns the figures of tool use. If no agent called tools, returns one reason for all of them. */
export function usePictures(summary: Summary): DrawnPicture[] {
  const calling = summary.conditions.filter(({ tools }) => tools.calls > 0)
  const why = "Tool use, as in the paper's figures 3 and 11 to 13: no agent of these logs called tools."
  if (calling.length === 0) return [{ why }]
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

const toolEntries = (calling: readonly ConditionResult[]): LegendEntry[] =>
  toolNames(calling.map(({ tools }) => tools)).map((label, index) => ({ label, colour: PALETTE[index % PALETTE.length]! }))

const perSample = ({ tools }: ConditionResult, name: string): number => (tools.counts[name] ?? 0) / tools.samples

/**
 * Draws a figure like the paper's figure 3, with one group of rows per task. If several conditions called tools, one group per task and
 * tool.
 */
function toolCounts(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): DrawnPicture {
  const title = 'Which tools are called'
  const groups = summary.tasks.flatMap(({ task }, index): RowGroup[] => {
    const own = calling.filter((condition) => condition.task === index)
    if (own.length === 0) return []
    const quoted = paperFigure3.counts.filter((one) => one.task === task)
    const names = [...new Set([...toolNames(own.map(({ tools }) => tools)), ...quoted.map(({ tool }) => tool)])]
    const ofTool = (name: string, label: (condition: ConditionResult) => string): PanelRow[] => [
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
      ? [{ title: `${labels.task(index)}: ${labels.condition(only)}`, rows: names.flatMap((name) => ofTool(name, () => name)) }]
      : names.map((name) => ({
          title: `${labels.task(index)}: ${name}`,
          rows: ofTool(name, (condition) => labels.condition(condition)),
        }))
  })
  const theirs = `Hollow bars: the numbers of the paper's figure 3 that its text gives (${paperFigure3.method}, ${paperFigure3.samples} samples).`
  return drawnOr('tools', figure({ title, below: theirs, panels: rows(groups, 'calls a sample') }), title)
}

function quotedBar({ prompt, calls }: (typeof paperFigure3.counts)[number]): PanelRow {
  const value = calls / paperFigure3.samples
  return {
    label: `the paper's, ${prompt}`,
    parts: [{ value, colour: THEIRS, says: `${calls} calls in ${paperFigure3.samples} samples` }],
    text: value.toFixed(2),
    theirs: true,
  }
}

/** The figure shows at most this many calls per sample. The report's table on the order of calls has all of them. */
const MOST = 30

function order(labels: Labels, calling: readonly ConditionResult[]): DrawnPicture {
  const title = 'Which tool at which call'
  const below = 'The number of samples whose first, second, ... call was of each tool.'
  const key = toolEntries(calling)
  const panels = calling.map((condition): Panel => {
    const { samples, order: all, calls } = condition.tools
    const shown = all.slice(0, MOST).flatMap((counts, at) =>
      key.flatMap(({ label, colour }) => {
        const count = counts[label] ?? 0
        const says = `call ${at + 1}: ${label} in ${count} of ${samples} samples`
        return count === 0 ? [] : [{ call: at + 1, count, colour, says }]
      }),
    )
    const ordinals = Array.from({ length: Math.min(MOST, all.length) }, (_, at) => at + 1)
    const ticks = ordinals.filter((_, at) => at % Math.ceil(ordinals.length / 15) === 0)
    const name = all.length > MOST ? `call of a sample (the first ${MOST} of ${all.length})` : 'call of a sample'
    return {
      title: labels.task(condition.task),
      below: `${labels.condition(condition)}; ${plural(samples, 'sample')}, ${plural(calls, 'call')}`,
      height: 236,
      plot: {
        x: { type: 'band', domain: ordinals, ticks, padding: 0.05, label: name },
        y: { domain: [0, samples], nice: 4, ticks: 4, label: 'samples' },
        marks: [
          Plot.barY(shown, Plot.stackY({ x: 'call', y: 'count', fill: 'colour', title: 'says', order: null })),
          Plot.ruleY([0], { strokeOpacity: 0.5 }),
        ],
      },
    }
  })
  return drawnOr('tool-order', figure({ title, below, key, columns: 2, panels }), title)
}

const decimals = (value: number): string => value.toFixed(value < 1 ? 3 : 2)

const quotedRow = (label: string, { start, end }: { readonly start: number; readonly end: number }): PanelRow => ({
  label,
  values: [start, end],
  colour: THEIRS,
  text: `${decimals(start)} → ${decimals(end)}`,
  theirs: true,
})

/** Returns one group of rows per task. */
const ownGroups = (
  summary: Summary,
  labels: Labels,
  conditions: readonly ConditionResult[],
  of: (condition: ConditionResult) => number | null,
): RowGroup[] =>
  summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: conditions.flatMap((condition) => {
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

/** Draws one number per condition, beside the paper's, whose own figure shows how the number changes during training. */
function besideTraining(
  [id, title, below, unit]: readonly [id: string, title: string, below: string, unit: string],
  groups: readonly RowGroup[],
  quoted: typeof paperTraining.entropy | typeof paperTraining.calls,
): DrawnPicture {
  const theirs = { title: QUOTED, rows: quoted.rows.map((row) => quotedRow(row.of, row)) }
  return drawnOr(id, figure({ title, below, panels: rows([...groups, theirs], unit) }), title)
}

function entropies(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): DrawnPicture {
  const below = "Shannon entropy of calls by tool, in bits; in place of the paper's figure 11, which follows a training."
  const groups = ownGroups(summary, labels, calling, ({ tools }) => tools.entropy)
  return besideTraining(['tool-entropy', 'How evenly tools are used: entropy', below, 'bits'], groups, paperTraining.entropy)
}

function callsPerTask(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): DrawnPicture {
  const below = "Mean number of calls, failed ones included; in place of the paper's figure 12, which follows a training."
  const groups = ownGroups(summary, labels, calling, ({ tools }) => tools.calls / tools.samples)
  return besideTraining(['tool-calls', 'Calls a sample', below, 'calls a sample'], groups, paperTraining.calls)
}

/** Draws each tool's share of the calls, over all tasks: the counterpart of the left half of the paper's figure 13. */
function shares(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): DrawnPicture {
  const title = 'Shares of tools among the calls'
  const tools = toolEntries(calling)
  const groups = summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: calling
      .filter((condition) => condition.task === task)
      .map((condition): PanelRow => ({
        label: labels.condition(condition),
        parts: tools.map(({ label, colour }) => {
          const share = (condition.tools.counts[label] ?? 0) / condition.tools.calls
          return { value: 100 * share, colour, says: `${label} ${percent(share)} %` }
        }),
        text: plural(condition.tools.calls, 'call'),
      })),
  }))
  const below =
    "In place of the left half of the paper's figure 13, which follows a training; the paper's text has no numbers for it."
  return drawnOr('tool-shares', figure({ title, below, key: tools, panels: rows(groups, '% of all calls', 100) }), title)
}

/** Draws folds and restores per sample on PI-LLM: the counterpart of the right half of the paper's figure 13. */
function onPiLlm(summary: Summary, labels: Labels, calling: readonly ConditionResult[]): DrawnPicture {
  const title = 'Folds and restores on PI-LLM'
  const own = calling.filter(({ task }) => summary.tasks[task]!.task === 'pi-llm')
  const panels = paperTraining.piLlm.rows.flatMap(({ tool, start, end }) => {
    const groups = [
      ...ownGroups(summary, labels, own, (condition) => perSample(condition, tool)),
      { title: QUOTED, rows: [quotedRow('all samples', { start, end })] },
    ]
    return rows(
      groups.map((group) => ({ ...group, title: `${tool}: ${group.title}` })),
      'calls a sample',
    )
  })
  const below = "In place of the right half of the paper's figure 13, which follows a training."
  const svg = figure({ title, below, panels: own.length === 0 ? [] : panels })
  return drawnOr('tool-folds', svg, `${title}, as in the paper's figure 13: no agent called tools on PI-LLM.`)
}
