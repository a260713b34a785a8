/** Makes the report of a run at the order desk: a page with tables, and figures of tokens per framework and of the context per turn. */
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
  /** `command`: the command of the run. `about`: a text that names the model, and says whether a script or the model answered. */
  readonly command: string
  readonly about: string
}

/** Writes `report.html` and its figures into the folder, which is created if missing. Returns the page's path. */
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
    parts: [{ says: [command], look: 'code' }, ...[serviceTable(all), crossings(all), titles(all)], ...drawn],
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

/** Makes a table of the dialogues (turns and fields) in which a framework needs less than ReAct, for each framework and measure. */
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
