/** Owns the rows that tables of results share: a condition over all cells, or one cell of it. */
import type { Measures } from '../measures.js'
import { byAxes, type Cell, type ConditionResult, type Result, type Summary } from '../summary.js'
import { count, type Labels } from './labels.js'
import { NONE, type Column } from './table.js'

export interface Row {
  readonly condition: ConditionResult
  /** Empty for all cells together. */
  readonly cell: Cell
  readonly result: Result
}

export const wholeRows = ({ conditions }: Summary): Row[] =>
  conditions.map((condition) => ({ condition, cell: {}, result: condition }))

export const opensTask = (row: Row, before: Row): boolean => row.condition.task !== before.condition.task

/** By cell, so that the conditions of one stand together. */
export function cellRows({ conditions, tasks }: Summary, task: number): Row[] {
  const own = conditions.filter((condition) => condition.task === task)
  const rows = own.flatMap((condition) => condition.cells.map((result): Row => ({ condition, cell: result.cell, result })))
  const { axes } = tasks[task]!
  return rows
    .map((row, place) => ({ row, place }))
    .sort(
      (a, b) => byAxes(a.row.cell, b.row.cell, axes) || a.row.condition.variant - b.row.condition.variant || a.place - b.place,
    )
    .map(({ row }) => row)
}

export const opensCell =
  (axes: readonly string[]) =>
  (row: Row, before: Row): boolean =>
    byAxes(row.cell, before.cell, axes) !== 0

/** Which condition of which task. */
export const conditionColumns = (labels: Labels): Column<Row>[] => [
  { name: 'task', title: 'task', value: ({ condition }) => labels.task(condition.task) },
  ...labels.columns<Row>(({ condition }) => condition),
]

/** Which cell, and which condition. */
export const cellColumns = (axes: readonly string[], labels: Labels): Column<Row>[] => [
  ...axes.map((axis): Column<Row> => ({
    name: axis,
    title: axis,
    value: ({ cell }) => cell[axis] ?? null,
    text: ({ cell }) => (typeof cell[axis] === 'number' ? count(cell[axis]) : (cell[axis] ?? NONE)),
    align: 'right',
  })),
  ...labels.columns<Row>(({ condition }) => condition),
]

type Of<T> = (row: Row, measures: Measures) => T

/** A column of numbers that are there where something was answered. */
export const measured = (
  name: string,
  title: string | null,
  value: Of<number | string | null>,
  text?: Of<string>,
): Column<Row> => ({
  name,
  title,
  align: 'right',
  value: (row) => (row.result.measures === null ? null : value(row, row.result.measures)),
  ...(text === undefined ? {} : { text: (row) => (row.result.measures === null ? NONE : text(row, row.result.measures)) }),
})
