/** Owns what a table of a report is, for people and as CSV for programs, and how conditions and their numbers are called in tables and figures. */
import { count } from '../../../runtime/figures/numbers.js'
import { inMarkdown, markdown, type Marks, table, type Table } from '../../../runtime/figures/table.js'
import { edits } from '../../run/plan.js'
import type { Estimate } from '../estimates.js'
import type { ConditionResult, Summary } from '../summary.js'

/** What sets tasks, agents and logs of one summary apart, said only where there is something to set apart. */
export class Labels {
  readonly #contracts: boolean

  constructor(private readonly summary: Summary) {
    const contracts = summary.conditions
      .filter(({ agent }) => edits(summary.agents[agent]!.agent))
      .map(({ contract }) => contract)
    this.#contracts = new Set(contracts).size > 1
  }

  task(index: number): string {
    const { task, title, options } = this.summary.tasks[index]!
    const others = this.summary.tasks.filter((other) => other.task === task)
    return (
      title +
      apart(
        options[0] ?? {},
        others.map((other) => other.options[0] ?? {}),
      )
    )
  }

  /** The agent by its title; of several settings of one agent, with what differs. */
  agent(index: number): string {
    const { agent, title, options, embedder } = this.summary.agents[index]!
    const others = this.summary.agents.filter((other) => other.agent === agent)
    const all = (one: { readonly options: object; readonly embedder: string | null }) => ({
      ...one.options,
      embedder: one.embedder,
    })
    return title + apart(all({ options, embedder }), others.map(all))
  }

  variant(index: number): string {
    return this.summary.variants[index]!.name
  }

  /** Nothing for agents that edit nothing: contracts are about edits. */
  contract({ agent, contract }: ConditionResult): string {
    return edits(this.summary.agents[agent]!.agent) ? contract : NONE
  }

  /** Agent, and whatever else sets it apart within its task. */
  condition(condition: ConditionResult): string {
    const { variant, agent, trained } = condition
    return [
      this.agent(agent),
      ...(this.#contracts && this.contract(condition) !== NONE ? [this.contract(condition)] : []),
      ...(this.summary.variants.length > 1 ? [this.variant(variant)] : []),
      ...(trained === false ? ['untrained'] : []),
    ].join(', ')
  }

  /** The columns that say which condition a row is of. */
  columns<Row>(of: (row: Row) => ConditionResult | null, theirs: (row: Row) => string = () => NONE): DataColumn<Row>[] {
    const from = (row: Row, name: (condition: ConditionResult) => string): string => {
      const condition = of(row)
      return condition === null ? NONE : name(condition)
    }
    return [
      {
        name: 'log',
        title: this.summary.variants.length > 1 ? 'logs' : null,
        value: (row) => from(row, ({ variant }) => this.variant(variant)),
      },
      {
        name: 'agent',
        title: 'agent',
        value: (row) => from(row, ({ agent }) => this.agent(agent)),
        text: (row) => {
          const condition = of(row)
          if (condition === null) return theirs(row)
          return this.agent(condition.agent) + (condition.trained === false ? ' (untrained)' : '')
        },
      },
      {
        name: 'contract',
        title: this.#contracts ? 'contract' : null,
        value: (row) => from(row, (condition) => this.contract(condition)),
      },
      { name: 'trained', title: null, value: (row) => of(row)?.trained ?? null },
    ]
  }
}

/** In brackets, the options that not all of `others` have alike. */
function apart(own: Readonly<Record<string, unknown>>, others: readonly Readonly<Record<string, unknown>>[]): string {
  const names = [...new Set(others.flatMap((other) => Object.keys(other)))].filter((name) => !Array.isArray(own[name]))
  const different = names.filter((name) => new Set(others.map((other) => JSON.stringify(other[name]))).size > 1)
  const said = different.filter((name) => own[name] !== undefined && own[name] !== null)
  return said.length === 0 ? '' : ` (${said.map((name) => `${name} ${text(own[name])}`).join(', ')})`
}

const text = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** A share of 1 in percent, without the sign. */
export const percent = (share: number): string => (100 * share).toFixed(1)
/** Milliseconds in seconds. */
export const seconds = (milliseconds: number): string => {
  const value = milliseconds / 1000
  return value >= 100 ? count(value) : value.toFixed(value >= 10 ? 1 : 2)
}
/** A difference of shares in percentage points, with its sign. */
export const points = (share: number): string => {
  const value = (100 * share).toFixed(1)
  return Number(value) === 0 ? '0.0' : value.startsWith('-') ? `−${value.slice(1)}` : `+${value}`
}
export const withInterval = ({ value, interval }: Estimate): string =>
  `${percent(value)} [${percent(interval[0])}, ${percent(interval[1])}]`
/** As p values are usually written. */
export const probability = (p: number): string => (p < 0.0001 ? '< 0.0001' : p < 0.001 ? p.toFixed(4) : p.toFixed(3))

// What a table of a report is: for people, and with all digits for programs, as CSV.

export type CellValue = string | number | boolean | null

/** How a column is made from a row. */
export interface DataColumn<Row> {
  /** In CSV: short, without blanks. */
  readonly name: string
  /** For people; null: in CSV only. */
  readonly title: string | null
  /** In CSV, with all its digits. */
  readonly value: (row: Row) => CellValue
  /** For people; default: the value. */
  readonly text?: (row: Row) => string
  readonly align?: 'left' | 'right'
  /** Null: for people only. */
  readonly csv?: null
}

/** For people it is a table; `values` are for programs. */
export interface DataTable extends Table {
  /** File name without its ending. */
  readonly name: string
  readonly title: string
  /** What a reader must know to judge the numbers, one sentence each. */
  readonly notes: readonly string[]
  /** The same on the page, where a table above has said the rest. */
  readonly brief: readonly string[]
  /** Whether the page shows it, or only links to its files. */
  readonly onPage: boolean
  readonly names: readonly string[]
  readonly values: readonly (readonly CellValue[])[]
}

export function dataTable<Row>(
  about: Pick<DataTable, 'name' | 'title'> & Partial<Pick<DataTable, 'notes' | 'brief' | 'onPage'>>,
  columns: readonly DataColumn<Row>[],
  rows: readonly Row[],
  marks: Marks<Row> = {},
): DataTable {
  const human = columns.flatMap(({ title, align = 'left', value, text = (row) => plain(value(row)) }) =>
    title === null ? [] : [{ title, align, text }],
  )
  const machine = columns.filter(({ csv }) => csv !== null)
  const { notes = [], brief = notes, onPage = true } = about
  return {
    ...{ ...table(human, rows, marks), name: about.name, title: about.title, notes, brief, onPage },
    names: machine.map(({ name }) => name),
    values: rows.map((row) => machine.map(({ value }) => value(row))),
  }
}

/** What stands where there is no number. */
export const NONE = '–'

const plain = (value: CellValue): string => (value === null ? NONE : String(value))

/** RFC 4180: comma, CRLF, quotes where they are needed; nothing for null. */
export const csv = ({ names, values }: Pick<DataTable, 'names' | 'values'>): string =>
  [names, ...values].map((fields) => `${fields.map(field).join(',')}\r\n`).join('')

function field(value: CellValue): string {
  const text = value === null ? '' : String(value)
  return /[",\r\n]|^\s|\s$/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** With its title and notes. */
export const markdownFile = (of: DataTable): string =>
  [`## ${inMarkdown(of.title)}`, '', markdown(of), '', ...of.notes.flatMap((note) => [inMarkdown(note), ''])].join('\n')
