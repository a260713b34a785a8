/** Predicts the time of computations with one model on one machine, from a few measured rates. */

/** The version of this format. Raise it when the meaning of a field changes. Cost models of other versions are not read. */
export const COST_VERSION = 1

/** The model, settings and machine that a cost model was measured on. */
export interface MeasuredOn {
  readonly model: string
  readonly architecture: string
  readonly parameters: number
  /** Bytes of all tensors. */
  readonly size: number
  /** Number of threads; null: llama.cpp's default for a context. */
  readonly threads: number | null
  readonly ubatch: number
  /** Whether flash attention was in use. */
  readonly flashAttention: boolean
  readonly keyType: string
  readonly valueType: string
  readonly gpu: string
  readonly devices: readonly string[]
  readonly cpu: string
  /** The release of llama.cpp. */
  readonly release: string
  /** The time of the measurement, in ISO 8601. */
  readonly date: string
}

/**
 * The units of work that the computation of prompt tokens consists of. `call`: one graph run, which reads all weights. `token`: one token
 * passes the layers. `read`: one graph run reads one cell that its tokens see. `attended`: one token attends to one such cell. `scanned`:
 * one token passes over one cell in use, of any sequence (docs/kv-cache.md: attention runs up to the highest one).
 */
export type PrefillTerm = 'call' | 'token' | 'read' | 'attended' | 'scanned'
/**
 * The units of work of a token that is generated alone (see PrefillTerm). `token` includes the graph run, and `attended` includes reading
 * the cell.
 */
export type DecodeTerm = 'token' | 'attended' | 'scanned'
/**
 * The units of work of planning and tagging. `step`: the fixed cost of a step. `shown`: one token shown. `moved`: one cell that is parked,
 * brought back or dropped.
 */
export type BooksTerm = 'step' | 'shown' | 'moved'

/** The measured cost of each unit of work, in milliseconds. */
export interface CostModel {
  readonly version: typeof COST_VERSION
  readonly on: MeasuredOn
  /** The most cells that were in use in a measurement. For more cells the model extrapolates. */
  readonly deepest: number
  readonly prefill: Fit<PrefillTerm>
  readonly decode: Fit<DecodeTerm>
  readonly books: Fit<BooksTerm>
  /** How fast sequences are saved to host memory and loaded back. */
  readonly host: { readonly saveBytesPerSecond: number; readonly loadBytesPerSecond: number; readonly bytesPerCell: number }
}

/** The rates that decide whether cells leave the device. All are measured on the device. */
export interface TierRates extends Pick<CostModel, 'host'> {
  /**
   * Milliseconds that one cell in use adds to each token whose attention runs over it. `prefill`: a prompt token. `decode`: a token
   * generated alone.
   */
  readonly scanned: { readonly prefill: number; readonly decode: number }
}

/** Returns the rates that a cost model contains. */
export const tierRatesOf = ({ host, prefill, decode }: Pick<CostModel, 'host' | 'prefill' | 'decode'>): TierRates => ({
  host,
  scanned: { prefill: prefill.rates.scanned, decode: decode.rates.scanned },
})

/** Consecutive tokens that are computed. */
export interface ComputedRun {
  readonly tokens: number
  /** Number of tokens before the run that its tokens see. If nothing is hidden, this is also the position where it begins. */
  readonly attended: number
  /** Number of cells that all sequences use before the run is computed. */
  readonly cells: number
}

/** A run and the milliseconds it took. */
export interface Timed extends ComputedRun {
  readonly milliseconds: number
}

/** The bookkeeping of a step (BooksTerm explains the fields), and the milliseconds that it took. */
export interface TimedBooks {
  readonly shown: number
  readonly moved: number
  readonly milliseconds: number
}

const PREFILL: readonly PrefillTerm[] = ['call', 'token', 'read', 'attended', 'scanned']
const DECODE: readonly DecodeTerm[] = ['token', 'attended', 'scanned']
const BOOKS: readonly BooksTerm[] = ['step', 'shown', 'moved']

/** Fits the rates of prefill, decode and bookkeeping to measured times. */
export function fitCosts(
  prefill: readonly Timed[],
  decode: readonly Timed[],
  books: readonly TimedBooks[],
  ubatch: number,
): Pick<CostModel, 'prefill' | 'decode' | 'books'> {
  const samples = <T extends Timed | TimedBooks, A>(all: readonly T[], amounts: (of: T) => A) =>
    all.map((of) => ({ amounts: amounts(of), measured: of.milliseconds }))
  return {
    prefill: fitRates(
      PREFILL,
      samples(prefill, (run) => prefillAmounts(run, ubatch)),
    ),
    decode: fitRates(DECODE, samples(decode, decodeAmounts)),
    books: fitRates(BOOKS, samples(books, booksAmounts)),
  }
}

/** Returns the milliseconds to compute the run's tokens in as few calls as possible. */
export const prefillTime = ({ prefill, on }: Pick<CostModel, 'prefill' | 'on'>, run: ComputedRun): number =>
  priceOf(prefill, prefillAmounts(run, on.ubatch))

/** Returns the fixed time of one decode, expressed as the number of prompt tokens that can be computed in that time. */
export const decodeInTokens = ({ prefill: { rates } }: Pick<CostModel, 'prefill'>): number =>
  rates.token === 0 ? 0 : Math.round(rates.call / rates.token)

/** Returns the milliseconds to generate one token that sees `attended` tokens before it, while `cells` cells are in use. */
export const decodeTime = ({ decode }: Pick<CostModel, 'decode'>, run: Omit<ComputedRun, 'tokens'>): number =>
  priceOf(decode, decodeAmounts(run))

/** Returns the milliseconds to plan a step and to tag its cells. */
export const booksTime = ({ books }: Pick<CostModel, 'books'>, of: Omit<TimedBooks, 'milliseconds'>): number =>
  priceOf(books, booksAmounts(of))

/** Returns the bytes of this many cells, and the milliseconds to save them to host memory and to load them back. */
export function hostTime({ host }: Pick<CostModel, 'host'>, cells: number): { bytes: number; save: number; load: number } {
  const bytes = cells * host.bytesPerCell
  return { bytes, save: (1000 * bytes) / host.saveBytesPerSecond, load: (1000 * bytes) / host.loadBytesPerSecond }
}

/**
 * Returns the run's amount of each unit of work (PrefillTerm). Every token sees the tokens before it and itself. A ubatch passes over all
 * cells in use, its own included.
 */
function prefillAmounts({ tokens, attended, cells }: ComputedRun, ubatch: number): Record<PrefillTerm, number> {
  let read = 0
  let scanned = 0
  for (let done = 0; done < tokens; done += ubatch) {
    const count = Math.min(ubatch, tokens - done)
    read += attended + done + count
    scanned += count * (cells + done + count)
  }
  const seen = tokens * attended + (tokens * (tokens + 1)) / 2
  return { call: Math.ceil(tokens / ubatch), token: tokens, read, attended: seen, scanned }
}

const decodeAmounts = ({ attended, cells }: Omit<ComputedRun, 'tokens'>): Record<DecodeTerm, number> => ({
  token: 1,
  attended: attended + 1,
  scanned: cells + 1,
})

const booksAmounts = ({ shown, moved }: Omit<TimedBooks, 'milliseconds'>): Record<BooksTerm, number> => ({
  step: 1,
  shown,
  moved,
})

// Fits measured times to a sum of a few physical terms. No rate may be negative.

/** The result of a fit: one rate per term, and the fit's error. */
export interface Fit<Term extends string> {
  readonly rates: Readonly<Record<Term, number>>
  /** Relative errors on the fitted samples: the median, and the largest. */
  readonly residual: { readonly median: number; readonly worst: number }
  /** Number of samples. */
  readonly samples: number
}

/** A measurement: the amount of each unit of work, and the time it took (more than 0). */
export interface CostSample<Term extends string> {
  readonly amounts: Readonly<Record<Term, number>>
  readonly measured: number
}

/** A pivot below this counts as 0: the samples cannot separate its term from the others. Columns are scaled to length 1. */
const SINGULAR = 1e-9

/**
 * Returns the rates, all at least 0, that minimise the sum of squared relative errors. The errors are relative, so that short times count
 * as much as long ones. The result is exact, because the function tries every subset of the few terms. A term that the samples cannot
 * separate from the others gets 0.
 */
export function fitRates<Term extends string>(terms: readonly Term[], samples: readonly CostSample<Term>[]): Fit<Term> {
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

/** Returns the sum of rate times amount over all terms. */
export const priceOf = <Term extends string>(
  { rates }: Pick<Fit<Term>, 'rates'>,
  amounts: Readonly<Record<Term, number>>,
): number => (Object.keys(rates) as Term[]).reduce((sum, term) => sum + rates[term] * amounts[term], 0)

/** Returns the middle value, or the mean of the two in the middle; 0 for an empty list. */
export function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]]
  return low === undefined || high === undefined ? 0 : (low + high) / 2
}

const dot = (a: readonly number[], b: readonly number[]): number => a.reduce((sum, value, index) => sum + value * b[index]!, 0)

/**
 * Returns the x for which every row times x comes closest to 1. Solves the normal equations, over columns scaled to equal length. Null: the
 * rows do not determine x.
 */
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
    // The matrix is positive definite, so its diagonal serves as pivots.
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
