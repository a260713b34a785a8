/** Makes tables, and writes them for a terminal and as Markdown. */
import { stripVTControlCharacters } from 'node:util'

export interface Column<Row = readonly string[]> {
  readonly title: string
  /** The side at which the texts of the column stand; numbers stand at the right. */
  readonly align?: 'left' | 'right'
  /** Returns the column's text in a row. By default a row is a list of texts, and the column takes the text at its own place. */
  readonly text?: (row: Row) => string
}

export interface Table {
  readonly columns: readonly { readonly title: string; readonly align: 'left' | 'right' }[]
  readonly rows: readonly TableLine[]
}

export interface TableLine {
  readonly texts: readonly string[]
  /** True for a row with numbers of another program or paper. */
  readonly theirs: boolean
  /** True for a row that begins a new group of rows. */
  readonly opens: boolean
}

export interface Marks<Row> {
  readonly theirs?: (row: Row) => boolean
  readonly opens?: (row: Row, before: Row) => boolean
}

/** Whether a cell's text means that there is no value. */
const isNone = (text: string): boolean => text === '-' || text === '–'

/** Makes a table. Leaves out columns without a single value, and rows whose numbers are all missing, because they say nothing. */
export function table<Row = readonly string[]>(
  columns: readonly Column<Row>[],
  rows: readonly Row[],
  { theirs, opens }: Marks<Row> = {},
): Table {
  const all = rows.map((row) => ({
    row,
    texts: columns.map(({ text }, at) => (text === undefined ? ((row as readonly string[])[at] ?? '') : text(row))),
  }))
  const numbers = columns.flatMap(({ align }, at) => (align === 'right' ? [at] : []))
  const said = all.filter(({ texts }) => numbers.length < 2 || !numbers.every((at) => isNone(texts[at]!)))
  const used = columns.map((_, at) => said.length === 0 || !said.every(({ texts }) => isNone(texts[at]!)))
  return {
    columns: columns.filter((_, at) => used[at]!).map(({ title, align = 'left' }) => ({ title, align })),
    rows: said.map(({ row, texts }, index) => ({
      texts: texts.filter((_, at) => used[at]!),
      theirs: theirs?.(row) ?? false,
      opens: index > 0 && (opens?.(row, said[index - 1]!.row) ?? false),
    })),
  }
}

export const left = (title: string): Column => ({ title })
export const right = (title: string): Column => ({ title, align: 'right' })
/** A column of numbers at the right; `text` makes its text from a row. */
export const number = <Row>(title: string, text: (row: Row) => string): Column<Row> => ({ title, align: 'right', text })

/**
 * Returns the lines for a terminal: titles, a rule, and one line a row. Two spaces separate columns, and no line ends with a blank. A blank
 * line comes before a row that opens a group. A cell may hold colour codes.
 */
export function terminal({ columns, rows }: Table, rule = '─'): string[] {
  const widths = columns.map(({ title }, at) => Math.max(shown(title), ...rows.map(({ texts }) => shown(texts[at]!))))
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, at) => {
        const pad = ' '.repeat(widths[at]! - shown(cell))
        return columns[at]!.align === 'right' ? pad + cell : cell + pad
      })
      .join('  ')
      .trimEnd()
  return [
    line(columns.map(({ title }) => title)),
    rule.repeat(widths.reduce((sum, width) => sum + width, 0) + 2 * (columns.length - 1)),
    ...rows.flatMap(({ texts, opens }) => (opens ? ['', line(texts)] : [line(texts)])),
  ]
}

/** Counts the characters that a terminal shows of a text, colour codes left out. */
const shown = (text: string): number => Array.from(stripVTControlCharacters(text)).length

/** Writes the table as Markdown, in GitHub's form. */
export function markdown({ columns, rows }: Table): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
  return [
    line(columns.map(({ title }) => inMarkdown(title))),
    line(columns.map(({ align }) => (align === 'right' ? '--:' : ':--'))),
    ...rows.map(({ texts, theirs }) =>
      line(texts.map((text) => (theirs && text !== '' ? `*${inMarkdown(text)}*` : inMarkdown(text)))),
    ),
  ].join('\n')
}

/** Escapes text so that Markdown shows it as it is, on one line. */
export const inMarkdown = (text: string): string =>
  text
    // An interval such as `[1, 2]` is no link, so it stays as it is.
    .replace(/\[[+−\d., ]+\]|[\\`*[\]<>|~&]|(?<!\w)_|_(?!\w)/gu, (found) => (found.length > 1 ? found : `\\${found}`))
    .replace(/\s+/gu, ' ')
    .trim()
