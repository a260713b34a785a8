/** Makes the report of a run at the order desk: a page with tables, and figures of tokens by framework and of the context by turn. */
import { mean } from '../../runtime/core/mean.js'
import { fitted } from '../agent.js'
import { curves, rows } from '../figures/panels.js'
import { figure, PALETTE } from '../figures/figure.js'
import { count, percent } from '../../runtime/figures/numbers.js'
import { publishReport } from '../figures/report.js'
import { number, table, type Table } from '../../runtime/figures/table.js'
import { type FrameworkName, frameworkNames, frameworkTitles } from './frameworks.js'
import { type Dialogue, type ServiceRow, serviceTable } from './run.js'

export interface ServicePage {
  readonly rows: readonly ServiceRow[]
  readonly dialogues: readonly Dialogue[]
  /** The command of the run. `about`: a text that names the model and says whether a script or the model answered. */
  readonly command: string
  readonly about: string
}

/** Writes `report.html` and its figures into the folder, which it creates if needed. Returns the path of the page. */
export function publishService(folder: string, { rows: all, dialogues, command, about }: ServicePage): string {
  const drawn = cellsOf(all).flatMap(({ turns, fields }) => {
    const own = all.filter((row) => row.turns === turns && row.fields === fields)
    const played = dialogues.filter(({ cell }) => cell.turns === turns && cell.fields === fields)
    const of = `${turns} turns, ${fields} unneeded fields in a record`
    return [
      { name: `tokens-${turns}-${fields}`, svg: tokensFigure(own, of) },
      { name: `context-${turns}-${fields}`, svg: contextFigure(played, of) },
    ]
  })
  return publishReport(folder, {
    title: 'The order desk',
    facts: [about],
    parts: [
      { says: [command], look: 'code' },
      ...[serviceTable(all), crossings(all), titles(all)],
      ...drawn,
      { heading: "The paper's results", parts: [paperTable(), { says: PAPER_NOTES }] },
    ],
  })
}

const colourOf = (name: FrameworkName): string => PALETTE[frameworkNames.indexOf(name) % PALETTE.length]!

const cellsOf = (all: readonly ServiceRow[]) =>
  all.filter(({ turns, fields }, at) => all.findIndex((one) => one.turns === turns && one.fields === fields) === at)

function tokensFigure(all: readonly ServiceRow[], of: string): string {
  const bars = all.map((row) => {
    const own = row.tokensComputed - row.tokensHelpers
    return {
      label: row.name,
      parts: [
        { value: own, colour: colourOf(row.name), says: `${count(own)} tokens of the agent itself` },
        { value: row.tokensHelpers, colour: '#8b8b94', says: `${count(row.tokensHelpers)} tokens of helpers` },
      ],
      text: `${count(row.tokensComputed)}${timesReact(row, all)}`,
    }
  })
  return figure({
    title: 'Tokens computed in a dialogue',
    below: of,
    key: [{ label: 'helpers: summaries, choice of lines', colour: '#8b8b94' }],
    panels: rows([{ title: '', rows: bars }], 'tokens computed, by the ledger'),
  })
}

function timesReact({ name, tokensComputed }: ServiceRow, all: readonly ServiceRow[]): string {
  const react = all.find((row) => row.name === 'react')
  return react === undefined || name === 'react' ? '' : ` (${(tokensComputed / react.tokensComputed).toFixed(2)} x)`
}

function contextFigure(dialogues: readonly Dialogue[], of: string): string {
  const names = [...new Set(dialogues.map(({ cell }) => cell.framework))]
  const most = Math.max(...dialogues.map(({ turns }) => turns.length))
  const lines = names.map((name) => {
    const own = dialogues.filter(({ cell }) => cell.framework === name)
    const points = Array.from({ length: most }, (_, at) => at).flatMap((at) => {
      const there = own.flatMap(({ turns }) => turns[at] ?? []).filter(fitted)
      if (there.length === 0) return []
      const value = mean(there.map(({ tokens }) => tokens.after))
      return [{ x: at + 1, value, interval: null, says: `${name}, turn ${at + 1}: ${count(value)} tokens` }]
    })
    return { colour: colourOf(name), points }
  })
  const sizes = Array.from({ length: most }, (_, at) => at + 1)
  const labels = { x: 'turn', y: 'tokens shown at its answer' }
  return figure({
    title: 'Context by turn',
    below: `${of}; turns that did not fit into the window are left out`,
    key: names.map((name) => ({ label: name, colour: colourOf(name), dash: '' })),
    panels: [curves({ title: '', height: 320, sizes, names: labels, curves: lines, apart: 0 })],
  })
}

/** Makes a table of the dialogues in which a framework needs less than ReAct: their turns and fields, for each framework and measure. */
function crossings(all: readonly ServiceRow[]): Table {
  const measures = [
    ['computed', (row: ServiceRow) => row.tokensComputed],
    ['computed, and a tenth of what was reused', (row: ServiceRow) => row.priced],
    ['shown', (row: ServiceRow) => row.tokensShown],
    ['context at most', (row: ServiceRow) => row.contextMost],
  ] as const
  const names = [...new Set(all.map(({ name }) => name))].filter((name) => name !== 'react')
  const lines = names.map((name) => [
    name,
    ...measures.map(([, of]) => {
      const less = all.filter((row) => {
        const react = all.find((one) => one.name === 'react' && one.turns === row.turns && one.fields === row.fields)
        return row.name === name && react !== undefined && of(row) < of(react)
      })
      return less.length === 0 ? 'nowhere' : less.map(({ turns, fields }) => `${turns} turns x ${fields} fields`).join(', ')
    }),
  ])
  return table([{ title: 'less than react in tokens' }, ...measures.map(([title]) => ({ title }))], lines)
}

const titles = (all: readonly ServiceRow[]): Table =>
  table(
    [
      { title: 'framework' },
      { title: 'what the framework does' },
      number('turns right', (line: readonly string[]) => line[2] ?? ''),
    ],
    [...new Set(all.map(({ name }) => name))].map((name) => {
      const own = all.filter((row) => row.name === name)
      return [name, frameworkTitles[name], percent(own.reduce((sum, row) => sum + row.turnsRight, 0) / own.length, 0)]
    }),
  )

// The paper's results (U-Fold, table 1): the mean reward of four runs in percent, by model and framework. Notes follow.

/** The columns: tau-bench (retail, airline), tau2 (retail, airline, telecom), VitaBench (delivery, in-store, OTA, cross-scenarios). */
const COLUMNS = [
  'tau retail',
  'airline',
  'tau2 retail',
  'airline',
  'telecom',
  'Vita delivery',
  'in-store',
  'OTA',
  'cross',
] as const

const FRAMEWORKS = ['ReAct', 'IterResearch', 'ReSum', 'U-Fold'] as const

/** The results of each model: one line for each framework in FRAMEWORKS, with a number for each column. */
const RESULTS: readonly (readonly [model: string, ...results: string[]])[] = [
  [
    'Qwen3-4B',
    '22.6 32.0 21.9 34.0 19.3 9.3 5.0 0.0 0.0',
    '19.1 26.0 14.1 22.0 24.6 13.0 7.0 0.0 0.0',
    '20.0 30.0 20.2 30.0 18.4 5.0 2.0 0.0 0.0',
    '21.7 34.0 22.8 36.0 19.3 10.0 8.0 0.0 2.0',
  ],
  [
    'Qwen3-30B-A3B-Thinking',
    '67.0 46.0 62.3 52.0 30.7 33.3 43.5 11.7 15.0',
    '43.5 42.0 34.2 44.0 20.2 24.5 41.8 12.0 10.8',
    '53.9 40.0 51.8 48.0 33.3 32.0 41.3 9.3 9.3',
    '65.2 44.0 70.2 54.0 28.9 35.0 44.0 13.8 19.5',
  ],
  [
    'DeepSeek-V3.2-Exp',
    '70.0 46.0 63.2 70.0 34.2 48.5 56.3 17.5 20.0',
    '24.3 42.0 7.0 36.0 18.4 29.5 28.8 15.0 11.8',
    '55.7 46.0 64.0 60.0 22.9 31.5 20.3 5.0 8.3',
    '74.8 54.0 64.9 68.0 37.7 56.8 58.0 21.0 21.0',
  ],
  [
    'GPT-4.1',
    '72.2 60.0 70.2 64.0 43.9 45.5 55.8 29.0 17.3',
    '65.2 50.0 62.5 55.0 33.3 26.0 38.5 16.0 8.8',
    '46.1 46.0 54.2 58.5 28.1 40.0 46.5 25.8 21.3',
    '73.0 61.5 70.8 65.5 44.7 51.3 58.5 33.0 22.3',
  ],
  [
    'Claude-4.5-Sonnet',
    '85.2 56.0 74.1 66.5 44.7 55.8 56.0 45.5 35.5',
    '76.5 52.0 71.1 63.0 29.0 50.8 59.8 30.0 27.0',
    '69.6 54.0 70.4 65.0 42.1 53.8 55.0 34.0 35.3',
    '86.1 54.0 77.2 72.0 45.6 59.0 64.0 48.8 38.0',
  ],
]

interface ReportLine {
  readonly model: string
  readonly framework: string
  readonly values: readonly string[]
}

export function paperTable(): Table {
  const lines = RESULTS.flatMap(([model, ...results]) =>
    results.map((values, at): ReportLine => ({
      model: at === 0 ? model : '',
      framework: FRAMEWORKS[at]!,
      values: values.split(' '),
    })),
  )
  const columns = [
    { title: 'model', text: ({ model }: ReportLine) => model },
    { title: 'framework', text: ({ framework }: ReportLine) => framework },
    ...COLUMNS.map((title, at) => number(title, ({ values }: ReportLine) => values[at]!)),
  ]
  return table(columns, lines, { opens: ({ model }) => model !== '' })
}

export const PAPER_NOTES = [
  "These are the paper's results, not ours, in percent: real models on tau-bench, tau2-bench and VitaBench. The order desk is another task. The paper has 25 differences between U-Fold and ReAct on tau and tau2; the largest is 8.0 points. None is more than two standard errors of one pass: 4.3 points for 114 tasks at 70 %, 7 for 50. Most cells are whole numbers of tasks of one pass. The paper reports no cost.",
  'With redundant fields in tool results (Qwen3-30B, VitaBench): in-store ReAct 43.5 to 11.0, U-Fold 44.0 to 27.0; cross-scenarios 15.0 to 4.0 and 19.5 to 12.0. With GPT-4.1 as folder of Qwen3-4B (ReAct, own folder, GPT-4.1): delivery 9.3, 10.0, 17.0; in-store 5.0, 8.0, 10.0; OTA 0, 0, 3.0; cross-scenarios 0, 2.0, 1.0.',
] as const
