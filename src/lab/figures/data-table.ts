/** Makes the tables of reports, each in two forms: for people, and as CSV with all digits for programs. */
import { inMarkdown, markdown, type Marks, table, type Table } from '../../runtime/figures/table.js'

export type CellValue = string | number | boolean | null

/** A column of a table: its names, and the functions that make its value and its text from a row. */
export interface DataColumn<Row> {
  /** The name in CSV: short, without blanks. */
  readonly name: string
  /** The title for people; null when the column is in CSV only. */
  readonly title: string | null
  /** Returns the value in CSV, with all its digits. */
  readonly value: (row: Row) => CellValue
  /** Returns the text for people. Default: the value. */
  readonly text?: (row: Row) => string
  readonly align?: 'left' | 'right'
  /** Null when the CSV leaves the column out, because it is only for people. */
  readonly csv?: null
}

/** Makes a column of numbers, aligned right. */
export const amount = <Row>(
  name: string,
  title: string,
  value: (row: Row) => CellValue,
  text?: (row: Row) => string,
): DataColumn<Row> => ({ name, title, align: 'right', value, ...(text === undefined ? {} : { text }) })

/** Makes a column that only the CSV has. */
export const inCsv = <Row>(name: string, value: (row: Row) => CellValue): DataColumn<Row> => ({ name, title: null, value })

/** Makes a column that only the table for people has, aligned right. */
export const onPaper = <Row>(title: string, text: (row: Row) => string): DataColumn<Row> => ({
  ...{ name: '', title, align: 'right', csv: null, value: () => null, text },
})

/** A table of a report. The inherited fields are the form for people; `names` and `values` are the CSV for programs. */
export interface DataTable extends Table {
  /** File name without extension. */
  readonly name: string
  readonly title: string
  /** The facts that a reader needs to judge the numbers, one sentence each. */
  readonly notes: readonly string[]
  /** The notes that the page shows, without the notes that another table above has already given. */
  readonly brief: readonly string[]
  /** Whether the page shows the table; otherwise the page only links to its files. */
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

/** The text that tables for people show in place of a missing value. */
export const NONE = '–'

const plain = (value: CellValue): string => (value === null ? NONE : String(value))

/** Returns the table as CSV (RFC 4180), with CRLF at the end of lines. Null becomes an empty field. */
export const csv = ({ names, values }: Pick<DataTable, 'names' | 'values'>): string =>
  [names, ...values].map((fields) => `${fields.map(field).join(',')}\r\n`).join('')

function field(value: CellValue): string {
  const text = value === null ? '' : String(value)
  return /[",\r\n]|^\s|\s$/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** Returns the table as Markdown, with its title and notes. */
export const markdownFile = (of: DataTable): string =>
  [`## ${inMarkdown(of.title)}`, '', markdown(of), '', ...of.notes.flatMap((note) => [inMarkdown(note), ''])].join('\n')
