/** Owns what a table of a report is: for people, and with all digits for programs, as CSV. */
import { markdown, type Marks, inMarkdown, table, type Table } from '../../../figures/table.js'

export type Value = string | number | boolean | null

/** How a column is made from a row. */
export interface DataColumn<Row> {
  /** In CSV: short, without blanks. */
  readonly name: string
  /** For people; null: in CSV only. */
  readonly title: string | null
  /** In CSV, with all its digits. */
  readonly value: (row: Row) => Value
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
  readonly values: readonly (readonly Value[])[]
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

const plain = (value: Value): string => (value === null ? NONE : String(value))

/** RFC 4180: comma, CRLF, quotes where they are needed; nothing for null. */
export const csv = ({ names, values }: Pick<DataTable, 'names' | 'values'>): string =>
  [names, ...values].map((fields) => `${fields.map(field).join(',')}\r\n`).join('')

function field(value: Value): string {
  const text = value === null ? '' : String(value)
  return /[",\r\n]|^\s|\s$/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** With its title and notes. */
export const markdownFile = (of: DataTable): string =>
  [`## ${inMarkdown(of.title)}`, '', markdown(of), '', ...of.notes.flatMap((note) => [inMarkdown(note), ''])].join('\n')
