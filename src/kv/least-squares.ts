/** Owns fitting measured times to a sum of a few physical terms, none of which can cost less than nothing. */

/** What a fit came to: one rate a term, and how far off it is. */
export interface Fit<Term extends string> {
  readonly rates: Readonly<Record<Term, number>>
  /** Relative error of what was fitted: its median, and the largest. */
  readonly residual: { readonly median: number; readonly worst: number }
  /** Measurements that went in. */
  readonly samples: number
}

/** How much of each term a measurement had, and what was measured (more than 0). */
export interface Sample<Term extends string> {
  readonly amounts: Readonly<Record<Term, number>>
  readonly measured: number
}

/** Pivots below this share of their column count as nothing: the term cannot be told from others. */
const SINGULAR = 1e-9

/**
 * The rates, all at least 0, that make the sum of squared relative errors least; relative, so that short times count as much as long ones.
 * Exact, by trying every subset of the terms, of which there are few. A term that cannot be told from others gets 0.
 */
export function fitRates<Term extends string>(terms: readonly Term[], samples: readonly Sample<Term>[]): Fit<Term> {
  const rows = samples.map(({ amounts, measured }) => terms.map((term) => amounts[term] / measured))
  let best = terms.map(() => 0)
  let least = samples.length
  for (let subset = 1; subset < 2 ** terms.length; subset++) {
    const picked = terms.flatMap((_, index) => ((subset >> index) & 1 ? [index] : []))
    const solved = solveTo1(rows.map((row) => picked.map((index) => row[index]!)))
    if (solved === null || solved.some((rate) => rate < 0)) continue
    const rates = terms.map((_, index) => solved[picked.indexOf(index)] ?? 0)
    const error = rows.reduce((sum, row) => sum + (dot(row, rates) - 1) ** 2, 0)
    if (error < least) [best, least] = [rates, error]
  }
  const errors = rows.map((row) => Math.abs(dot(row, best) - 1)).sort((a, b) => a - b)
  const rates = Object.fromEntries(terms.map((term, index) => [term, best[index]!])) as Record<Term, number>
  return { rates, residual: { median: medianOf(errors), worst: errors.at(-1) ?? 0 }, samples: samples.length }
}

/** What something with these amounts comes to. */
export const priceOf = <Term extends string>(
  { rates }: Pick<Fit<Term>, 'rates'>,
  amounts: Readonly<Record<Term, number>>,
): number => (Object.keys(rates) as Term[]).reduce((sum, term) => sum + rates[term] * amounts[term], 0)

/** The middle value, or the mean of the two in the middle; 0 of none. */
export function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]]
  return low === undefined || high === undefined ? 0 : (low + high) / 2
}

const dot = (a: readonly number[], b: readonly number[]): number => a.reduce((sum, value, index) => sum + value * b[index]!, 0)

/** The x for which every row times x comes closest to 1, by normal equations over columns scaled to one length; null: not determined. */
function solveTo1(rows: readonly (readonly number[])[]): number[] | null {
  const size = rows[0]?.length ?? 0
  if (rows.length < size) return null
  const columns = Array.from({ length: size }, (_, column) => rows.map((row) => row[column]!))
  const lengths = columns.map((column) => Math.sqrt(dot(column, column)))
  if (lengths.some((length) => length === 0)) return null
  const scaled = columns.map((column, index) => column.map((value) => value / lengths[index]!))
  const ones = rows.map(() => 1)
  const matrix = scaled.map((column) => [...scaled.map((other) => dot(column, other)), dot(column, ones)])
  for (let step = 0; step < size; step++) {
    // The matrix is positive definite, so its diagonal will do for pivots.
    const pivot = matrix[step]![step]!
    if (pivot < SINGULAR) return null
    for (let row = 0; row < size; row++) {
      if (row === step) continue
      const factor = matrix[row]![step]! / pivot
      for (let column = step; column <= size; column++) matrix[row]![column]! -= factor * matrix[step]![column]!
    }
  }
  return matrix.map((row, index) => row[size]! / row[index]! / lengths[index]!)
}
