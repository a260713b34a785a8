/** Owns plain-text tables: columns as wide as their widest cell, numbers to the right. */
import { visibleLength } from './ansi.js'

export interface Column {
  readonly title: string
  readonly align?: 'left' | 'right'
}

/**
 * The table's lines: titles, a rule, one line a row; two spaces between columns, no blanks at line ends. A cell may hold colour codes.
 * Rows shorter than `columns` are filled with empty cells; where `breaks` says so, a blank line stands before the row.
 */
export function table(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  options: { readonly rule?: string; readonly breaks?: (row: number) => boolean } = {},
): string[] {
  const { rule = '─', breaks = () => false } = options
  const widths = columns.map(({ title }, index) =>
    Math.max(visibleLength(title), ...rows.map((row) => visibleLength(row[index] ?? ''))),
  )
  const line = (cells: readonly string[]): string =>
    columns
      .map(({ align = 'left' }, index) => {
        const cell = cells[index] ?? ''
        const pad = ' '.repeat(widths[index]! - visibleLength(cell))
        return align === 'right' ? pad + cell : cell + pad
      })
      .join('  ')
      .trimEnd()
  return [
    line(columns.map(({ title }) => title)),
    rule.repeat(widths.reduce((sum, width) => sum + width, 0) + 2 * (columns.length - 1)),
    ...rows.flatMap((row, index) => (breaks(index) ? ['', line(row)] : [line(row)])),
  ]
}
