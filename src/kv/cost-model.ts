/** Owns what computing costs with one model on one machine: a few rates that were measured once, and what follows from them. */
import { fitRates, priceOf, type Fit } from './least-squares.js'

/** Raise it when the meaning of a field changes; models of other versions are not read. */
export const COST_VERSION = 1

/** What a cost model was measured on. */
export interface MeasuredOn {
  readonly model: string
  readonly architecture: string
  readonly parameters: number
  /** Bytes of all tensors. */
  readonly size: number
  /** Null: what llama.cpp's context defaults to. */
  readonly threads: number | null
  readonly ubatch: number
  /** As in force. */
  readonly flashAttention: boolean
  readonly keyType: string
  readonly valueType: string
  readonly gpu: string
  readonly devices: readonly string[]
  readonly cpu: string
  /** Of llama.cpp. */
  readonly release: string
  /** ISO 8601. */
  readonly date: string
}

/**
 * `call`: one graph run, which reads all weights. `token`: one token's way through the layers. `read`: one graph run reads one cell that its
 * tokens see. `attended`: one token looks at one such cell. `scanned`: one token passes over one cell in use, whoever holds it (docs/kv-cache.md: attention runs up to the highest one).
 */
export type PrefillTerm = 'call' | 'token' | 'read' | 'attended' | 'scanned'
/** As above, for a token generated alone: `token` is its call, too, `attended` reads the cell, too. */
export type DecodeTerm = 'token' | 'attended' | 'scanned'
/** Planning and tagging: `step`, whatever it does; `shown`, one token shown; `moved`, one cell that is parked, brought back or given up. */
export type BooksTerm = 'step' | 'shown' | 'moved'

/** Rates in milliseconds. */
export interface CostModel {
  readonly version: typeof COST_VERSION
  readonly on: MeasuredOn
  /** Cells in use up to which it was measured; beyond them it extrapolates. */
  readonly deepest: number
  readonly prefill: Fit<PrefillTerm>
  readonly decode: Fit<DecodeTerm>
  readonly books: Fit<BooksTerm>
  /** Saving sequences to host memory and loading them. */
  readonly host: { readonly saveBytesPerSecond: number; readonly loadBytesPerSecond: number; readonly bytesPerCell: number }
}

/** Tokens that are computed one after the other. */
export interface Run {
  readonly tokens: number
  /** Tokens before them that they see; where nothing is hidden, the position they start at. */
  readonly attended: number
  /** Cells in use before them, by whomever. */
  readonly cells: number
}

/** A run and the milliseconds it took. */
export interface Timed extends Run {
  readonly milliseconds: number
}

/** A step's books and the milliseconds they took. */
export interface TimedBooks {
  readonly shown: number
  readonly moved: number
  readonly milliseconds: number
}

const PREFILL: readonly PrefillTerm[] = ['call', 'token', 'read', 'attended', 'scanned']
const DECODE: readonly DecodeTerm[] = ['token', 'attended', 'scanned']
const BOOKS: readonly BooksTerm[] = ['step', 'shown', 'moved']

/** Fits the three rates to what was measured. */
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

/** Milliseconds to compute the run's tokens in as few calls as possible. */
export const prefillTime = ({ prefill, on }: Pick<CostModel, 'prefill' | 'on'>, run: Run): number =>
  priceOf(prefill, prefillAmounts(run, on.ubatch))

/** Milliseconds to generate one token after `attended` others while `cells` are in use. */
export const decodeTime = ({ decode }: Pick<CostModel, 'decode'>, run: Omit<Run, 'tokens'>): number =>
  priceOf(decode, decodeAmounts(run))

/** Milliseconds to plan a step and to tag its cells. */
export const booksTime = ({ books }: Pick<CostModel, 'books'>, of: Omit<TimedBooks, 'milliseconds'>): number =>
  priceOf(books, booksAmounts(of))

/** Bytes and milliseconds to move so many cells to host memory and to bring them back. */
export function hostTime({ host }: Pick<CostModel, 'host'>, cells: number): { bytes: number; save: number; load: number } {
  const bytes = cells * host.bytesPerCell
  return { bytes, save: (1000 * bytes) / host.saveBytesPerSecond, load: (1000 * bytes) / host.loadBytesPerSecond }
}

/** Every token sees those before it and itself; a ubatch passes over all cells in use, its own included. */
function prefillAmounts({ tokens, attended, cells }: Run, ubatch: number): Record<PrefillTerm, number> {
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

const decodeAmounts = ({ attended, cells }: Omit<Run, 'tokens'>): Record<DecodeTerm, number> => ({
  token: 1,
  attended: attended + 1,
  scanned: cells + 1,
})

const booksAmounts = ({ shown, moved }: Omit<TimedBooks, 'milliseconds'>): Record<BooksTerm, number> => ({
  step: 1,
  shown,
  moved,
})
