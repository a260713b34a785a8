/** Owns tables: what one is, and how it is written for a terminal, as Markdown and as HTML. */
import { stripVTControlCharacters } from 'node:util'

export interface Column<Row = readonly string[]> {
  readonly title: string
  /** Numbers stand at the right. */
  readonly align?: 'left' | 'right'
  /** Of a row; default: the row is texts, and this is the one at the column's place, or nothing. */
  readonly text?: (row: Row) => string
}

export interface Table {
  readonly columns: readonly { readonly title: string; readonly align: 'left' | 'right' }[]
  readonly rows: readonly TableLine[]
}

export interface TableLine {
  readonly texts: readonly string[]
  /** Numbers that are not ours. */
  readonly theirs: boolean
  /** Begins another group than the row before. */
  readonly opens: boolean
}

export interface Marks<Row> {
  readonly theirs?: (row: Row) => boolean
  readonly opens?: (row: Row, before: Row) => boolean
}

/** What a cell says that has no value. */
const isNone = (text: string): boolean => text === '-' || text === '–'

/**
 * Makes a table. A column without a single value is left out, and so is a row whose numbers are all missing: neither says anything.
 */
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
/** A column at the right whose text is made from a row. */
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

/** Characters a terminal shows of a text. */
const shown = (text: string): number => Array.from(stripVTControlCharacters(text)).length

/** As GitHub has it. */
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

/** Text that Markdown takes for nothing else, in one line. */
export const inMarkdown = (text: string): string =>
  text
    // An interval is no link.
    .replace(/\[[+−\d., ]+\]|[\\`*[\]<>|~&]|(?<!\w)_|_(?!\w)/gu, (found) => (found.length > 1 ? found : `\\${found}`))
    .replace(/\s+/gu, ' ')
    .trim()
