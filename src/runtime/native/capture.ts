/** A capture of attention. Checks what a decode should capture before the addon receives the request. */
import { KvfoldError } from '../core/errors.js'
import type { SeqId } from '../core/ids.js'
import { type Addon, type CaptureHandle, type RawWatched, calling, refuse } from './addon.js'
import type { Batch, CaptureOptions, Captured } from './values.js'

/** The most tokens that `CaptureOptions.top` may keep for one row. */
const MOST_TOP = 1024
const MOST_ATOMS = 2 ** 20

/** What to capture in one decode: which tokens of the batch are queries, and which tokens they can see. */
export interface Watched {
  readonly capture: NativeCapture
  /** The sequence of the query tokens. */
  readonly sequence: SeqId
  /** Batch indices of the query tokens, ascending. */
  readonly queries: Int32Array
  /** The position of every token that a query can see, ascending; the query tokens are among them. A token's *place* is its index here. */
  readonly positions: Int32Array
  /** The atom of every place, -1 for none. May be shorter than `positions`: the remaining places then have no atom. */
  readonly atoms: Int32Array
}

/** A capture of one context, for one step at a time. Its memory is freed with the object. */
export class NativeCapture {
  readonly #addon: Addon
  readonly #handle: CaptureHandle
  readonly #context: object
  readonly #atoms: number
  #full = false

  constructor(
    addon: Addon,
    context: { readonly attention: readonly number[] | null },
    { layers, heads, atoms, top = 0, rows = false }: CaptureOptions,
  ) {
    const { attention } = context
    if (attention === null)
      throw new KvfoldError('attention/unavailable', 'This context captures no attention; create it with `attention: true`.')
    checkAscending('layer', layers, attention.length)
    for (const layer of layers) {
      const has = attention[layer]!
      if (has === 0) refuse(`Layer ${layer} computes no softmax, so it has no attention to capture; leave it out.`)
      checkAscending(`layer ${layer}'s head`, heads, has)
    }
    if (layers.length === 0 || heads.length === 0) refuse('A capture needs at least one layer and one head.')
    within('atoms', atoms, MOST_ATOMS)
    within('top', top, MOST_TOP)
    this.#addon = addon
    this.#context = context
    this.#atoms = atoms
    const raw = { layers: Int32Array.from(layers), heads: Int32Array.from(heads), atoms, top, rows }
    this.#handle = calling(() => addon.captureCreate(raw))
  }

  /**
   * Checks the request for a decode of `context`, and returns it for the addon. `take` then throws until `filled` is called.
   * @throws KvfoldError native/bad-argument
   */
  static armed(context: object, batch: Batch, watched: Watched): RawWatched {
    const { capture, sequence, queries, positions, atoms } = watched
    if (!(capture instanceof NativeCapture) || capture.#context !== context)
      return refuse('The capture belongs to another context; create one for this context.')
    checkAscending('query', queries, batch.tokens.length)
    checkPositions(
      positions,
      batch.positions.reduce((most, position) => Math.max(most, position), 0),
    )
    const places = new Set(positions.subarray(-batch.tokens.length))
    for (const query of queries)
      if (batch.sequences[query] !== sequence || !places.has(batch.positions[query]!))
        refuse(`Query ${query} must be the batch index of a token of sequence ${sequence}, at one of the given positions.`)
    checkAtoms(atoms, capture.#atoms, positions.length)
    capture.#full = false
    return { capture: capture.#handle, sequence, queries, positions, atoms }
  }

  /** Records that the decode for which this capture was armed succeeded. */
  static filled({ capture }: Watched): void {
    if (capture instanceof NativeCapture) capture.#full = true
  }

  /**
   * Returns what the last decode captured. Can be called once for each decode.
   * @throws KvfoldError attention/unavailable when rows could not be read as expected; the decode itself is valid even then.
   */
  take(): Captured {
    if (!this.#full) refuse('The capture holds no result; decode with it first, and take each result once.')
    this.#full = false
    return calling(() => this.#addon.captureTake(this.#handle))
  }
}

function within(name: string, value: number, most: number): void {
  if (!Number.isInteger(value) || value < 0 || value > most) refuse(`${name} is ${value}; give a whole number from 0 to ${most}.`)
}

/**
 * Checks that the positions ascend and that the last one is at most `most`. It runs over thousands of positions for every token, so it is a
 * plain loop over a typed array, which compiles to fast code.
 */
function checkPositions(positions: Int32Array, most: number): void {
  for (let place = 0, last = -1; place < positions.length; place++) {
    const position = positions[place]!
    if (position <= last)
      refuse(`The positions of a capture must ascend from 0; at index ${place}, position ${position} follows ${last}.`)
    last = position
  }
  if ((positions.at(-1) ?? 0) > most)
    refuse(`The last position of a capture is ${positions.at(-1)}, after the last position of the batch, ${most}.`)
}

function checkAtoms(atoms: Int32Array, end: number, places: number): void {
  let bad = atoms.length > places
  for (let place = 0; place < atoms.length; place++) bad ||= atoms[place]! < -1 || atoms[place]! >= end
  if (bad) refuse(`Give at most one atom for each position: -1, or a number from 0 to ${end - 1}.`)
}

function checkAscending(what: string, values: ArrayLike<number>, end: number): void {
  let last = -1
  for (let at = 0; at < values.length; at++) {
    const value = values[at]!
    if (!Number.isInteger(value) || value <= last || value >= end)
      refuse(`${value} is not a valid ${what}; give whole numbers from 0 to ${end - 1} in ascending order.`)
    last = value
  }
}
