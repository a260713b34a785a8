/** Owns the figures of cost: context before and after, tokens computed and reused, time. */
import { paperFigure6 } from '../../paper.js'
import { figure } from '../../../figures/figure.js'
import { type Row, type RowGroup, rows } from '../../../figures/rows.js'
import { THEIRS } from '../../../figures/theme.js'
import { type Drawn, drawnOr, lookOf } from './picture.js'
import type { Measures } from '../measures.js'
import type { ConditionResult, Summary } from '../summary.js'
import { count } from '../../../figures/numbers.js'
import { Labels, percent, seconds } from '../tables/labels.js'

export function costPictures(summary: Summary): Drawn[] {
  const labels = new Labels(summary)
  return [context(summary, labels), work(summary, labels), time(summary, labels)]
}

/** In the shape of the paper's figure 6: only agents that call tools change their context on purpose. */
function context(summary: Summary, labels: Labels): Drawn {
  const title = 'Context before and after'
  const callers = summary.conditions.filter(({ tools, measures }) => tools.calls > 0 && measures !== null)
  const ours = (condition: ConditionResult): Row => {
    const { before, after } = condition.measures!.context
    return {
      label: labels.condition(condition),
      values: [before, after],
      colour: lookOf(summary, condition).colour,
      text: `${count(before)} → ${count(after)}${change(before, after)}`,
    }
  }
  const names = new Set(callers.map(({ task }) => summary.tasks[task]!.task))
  const theirs = paperFigure6.tasks
    .filter(({ task }) => names.has(task))
    .map(({ task, before, after }): Row => ({
      label: summary.tasks.find((own) => own.task === task)!.title,
      values: [before, after],
      colour: THEIRS,
      text: `${count(before)} → ${count(after)}${change(before, after)}`,
      theirs: true,
    }))
  const groups = summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: callers.filter((condition) => condition.task === task).map(ours),
  }))
  const quoted = { title: `The paper's (${paperFigure6.method}): another model, other data`, rows: theirs }
  const svg = figure({
    title,
    below: "Means over samples, in the shape of the paper's figure 6; ours and theirs on scales of their own.",
    panels: callers.length === 0 ? [] : [...rows(groups, 'tokens'), ...rows([quoted], 'tokens')],
  })
  return drawnOr('context', svg, `${title}, as in the paper's figure 6: no agent of these logs called tools.`)
}

const change = (before: number, after: number): string =>
  before === 0 ? '' : ` (${after <= before ? '−' : '+'}${percent(Math.abs(1 - after / before))} %)`

const [COMPUTED, REUSED] = ['#ea580c', '#0d9488']

function work(summary: Summary, labels: Labels): Drawn {
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
    below: 'A sample, all its steps together; at the end the share of the tokens shown that were in the cache.',
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

function time(summary: Summary, labels: Labels): Drawn {
  const title = 'Where the time goes'
  const groups = byTask(summary, labels, ({ milliseconds }) => ({
    parts: TIMES.map(({ name, colour }) => ({
      ...{ value: milliseconds[name] / 1000, colour, says: `${name} ${seconds(milliseconds[name])} s` },
    })),
    text: `${seconds(milliseconds.total)} s`,
  }))
  const svg = figure({
    title,
    below: 'Means over samples; other: tools, retrieval, waiting for other samples of the run.',
    key: TIMES.map(({ name, colour }) => ({ label: name, colour })),
    panels: rows(groups, 'seconds a sample'),
  })
  return drawnOr('time', svg, `${title}: no sample was answered.`)
}

const byTask = (summary: Summary, labels: Labels, of: (measures: Measures) => Omit<Row, 'label'>): RowGroup[] =>
  summary.tasks.map((_, task) => ({
    title: labels.task(task),
    rows: summary.conditions.flatMap((condition) =>
      condition.task !== task || condition.measures === null
        ? []
        : [{ label: labels.condition(condition), ...of(condition.measures) }],
    ),
  }))
