/** Makes the tables of reports, each in two versions: for people, and as CSV with all digits for programs. */
import { inMarkdown, markdown, type Marks, table, type Table } from '../../runtime/figures/table.js'

export type CellValue = string | number | boolean | null

/** A column of a table: its names, and functions that return its value and its text for a row. */
export interface DataColumn<Row> {
  /** The column's name in CSV: short, without blanks. */
  readonly name: string
  /** The title for people; null if only the CSV has the column. */
  readonly title: string | null
  /** Returns the value for the CSV, with all digits. */
  readonly value: (row: Row) => CellValue
  /** Returns the text for people. Default: the value. */
  readonly text?: (row: Row) => string
  readonly align?: 'left' | 'right'
  /** Null if only the table for people has the column. */
  readonly csv?: null
}

/** Makes a column of numbers, aligned right. */
export const amount = <Row>(
  name: string,
  title: string,
  value: (row: Row) => CellValue,
  text?: (row: Row) => string,
): DataColumn<Row> => ({ name, title, align: 'right', value, ...(text === undefined ? {} : { text }) })

export const inCsv = <Row>(name: string, value: (row: Row) => CellValue): DataColumn<Row> => ({ name, title: null, value })

/** Makes a column, aligned right, that only the table for people has. */
export const onPaper = <Row>(title: string, text: (row: Row) => string): DataColumn<Row> => ({
  ...{ name: '', title, align: 'right', csv: null, value: () => null, text },
})

/** A table of a report. The inherited fields are the version for people; `names` and `values` are the CSV. */
export interface DataTable extends Table {
  /** File name without extension. */
  readonly name: string
  readonly title: string
  /** What a reader must know to judge the numbers, one sentence each. */
  readonly notes: readonly string[]
  /** The notes for the page. They leave out what the notes of an earlier table on the page have said. */
  readonly brief: readonly string[]
  /** Whether the page shows the table. If not, the page only links to its files. */
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

/** Shown to people in place of a missing value. */
export const NONE = '–'

const plain = (value: CellValue): string => (value === null ? NONE : String(value))

/** Returns the table as CSV (RFC 4180), with lines that end in CRLF. Null becomes an empty field. */
export const csv = ({ names, values }: Pick<DataTable, 'names' | 'values'>): string =>
  [names, ...values].map((fields) => `${fields.map(field).join(',')}\r\n`).join('')

function field(value: CellValue): string {
  const text = value === null ? '' : String(value)
  return /[",\r\n]|^\s|\s$/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** Returns the table as Markdown, with its title and notes. */
export const markdownFile = (of: DataTable): string =>
  [`## ${inMarkdown(of.title)}`, '', markdown(of), '', ...of.notes.flatMap((note) => [inMarkdown(note), ''])].join('\n')
