/** Makes tables, and formats them for a terminal and as Markdown. */
import { stripVTControlCharacters } from 'node:util'

export interface Column<Row = readonly string[]> {
  readonly title: string
  /** The side to which the column's texts are aligned. Default: left; numbers go right. */
  readonly align?: 'left' | 'right'
  /** Returns the column's text for a row. Default: the row is a list of texts, and the column takes the one at its own index. */
  readonly text?: (row: Row) => string
}

export interface Table {
  readonly columns: readonly { readonly title: string; readonly align: 'left' | 'right' }[]
  readonly rows: readonly TableLine[]
}

export interface TableLine {
  readonly texts: readonly string[]
  /** Whether the row has numbers of another program or paper. Markdown shows it in italics. */
  readonly theirs: boolean
  /** Whether the row begins a new group of rows. */
  readonly opens: boolean
}

export interface Marks<Row> {
  readonly theirs?: (row: Row) => boolean
  readonly opens?: (row: Row, before: Row) => boolean
}

/** Whether a cell's text is a dash, which stands for a missing value. */
const isNone = (text: string): boolean => text === '-' || text === '–'

/** Makes a table. Leaves out columns that have no value in any row, and rows in which all of several numbers are missing. */
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
/** A column of numbers, aligned right. `text` returns its text for a row. */
export const number = <Row>(title: string, text: (row: Row) => string): Column<Row> => ({ title, align: 'right', text })

/**
 * Returns the lines for a terminal: titles, a rule, and one line per row. Columns are two spaces apart, and no line ends with a space. A
 * blank line comes before a row that begins a group. Cells may contain colour codes.
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

/** Counts the characters that a terminal shows of a text, without colour codes. */
const shown = (text: string): number => Array.from(stripVTControlCharacters(text)).length

/** Formats the table as Markdown, in GitHub's dialect. */
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
    // An interval such as `[1, 2]` is not a link, so it needs no escapes.
    .replace(/\[[+−\d., ]+\]|[\\`*[\]<>|~&]|(?<!\w)_|_(?!\w)/gu, (found) => (found.length > 1 ? found : `\\${found}`))
    .replace(/\s+/gu, ' ')
    .trim()
