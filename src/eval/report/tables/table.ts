/** Owns what a table of a report is, and how it is written as Markdown and CSV. */

export type Value = string | number | boolean | null

/** How a column is made from a row. */
export interface Column<Row> {
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

export interface TableRow {
  readonly values: readonly Value[]
  readonly texts: readonly string[]
  /** Numbers that are not ours. */
  readonly theirs: boolean
  /** Begins another task, cell or log than the row before. */
  readonly opens: boolean
}

export interface Table {
  /** File name without its ending. */
  readonly name: string
  readonly title: string
  /** What a reader must know to judge the numbers, one sentence each. */
  readonly notes: readonly string[]
  /** The same on the page, where a table above has said the rest. */
  readonly brief: readonly string[]
  /** Whether the page shows it, or only links to its files. */
  readonly onPage: boolean
  readonly values: readonly { readonly name: string }[]
  readonly texts: readonly { readonly title: string; readonly align: 'left' | 'right' }[]
  readonly rows: readonly TableRow[]
}

export function table<Row>(
  about: {
    readonly name: string
    readonly title: string
    readonly notes?: readonly string[]
    readonly brief?: readonly string[]
    readonly onPage?: boolean
  },
  columns: readonly Column<Row>[],
  rows: readonly Row[],
  marks: { readonly theirs?: (row: Row) => boolean; readonly opens?: (row: Row, before: Row) => boolean } = {},
): Table {
  const machine = columns.filter(({ csv }) => csv !== null)
  const human = columns.filter((column): column is Column<Row> & { title: string } => column.title !== null)
  return {
    name: about.name,
    title: about.title,
    notes: about.notes ?? [],
    brief: about.brief ?? about.notes ?? [],
    onPage: about.onPage ?? true,
    values: machine.map(({ name }) => ({ name })),
    texts: human.map(({ title, align = 'left' }) => ({ title, align })),
    rows: rows.map((row, index) => ({
      values: machine.map(({ value }) => value(row)),
      texts: human.map(({ value, text }) => (text === undefined ? plain(value(row)) : text(row))),
      theirs: marks.theirs?.(row) ?? false,
      opens: index > 0 && (marks.opens?.(row, rows[index - 1]!) ?? false),
    })),
  }
}

/** What stands where there is no number. */
export const NONE = '–'

const plain = (value: Value): string => (value === null ? NONE : String(value))

/** RFC 4180: comma, CRLF, quotes where they are needed; nothing for null. */
export function csv({ values, rows }: Pick<Table, 'values' | 'rows'>): string {
  const line = (fields: readonly Value[]): string => `${fields.map(field).join(',')}\r\n`
  return line(values.map(({ name }) => name)) + rows.map((row) => line(row.values)).join('')
}

function field(value: Value): string {
  const text = value === null ? '' : String(value)
  return /[",\r\n]|^\s|\s$/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** A GitHub-flavoured table with its title and notes. */
export function markdown({ title, notes, texts, rows }: Table): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
  return [
    `## ${inMarkdown(title)}`,
    '',
    line(texts.map((column) => inMarkdown(column.title))),
    line(texts.map(({ align }) => (align === 'right' ? '--:' : ':--'))),
    ...rows.map((row) => line(row.texts.map((text) => (row.theirs ? `*${inMarkdown(text)}*` : inMarkdown(text))))),
    '',
    ...notes.flatMap((note) => [inMarkdown(note), '']),
  ].join('\n')
}

/** Text that Markdown takes for nothing else, in one line. */
export const inMarkdown = (text: string): string =>
  text
    // An interval is no link.
    .replace(/\[[+−\d., ]+\]|[\\`*[\]<>|~&]|(?<!\w)_|_(?!\w)/gu, (found) => (found.length > 1 ? found : `\\${found}`))
    .replace(/\s+/gu, ' ')
    .trim()
