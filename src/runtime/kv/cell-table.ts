/** Owns our books on cells: which are in use, at which position, by how many sequences, and what their values depend on. */
import { invariant } from '../core/errors.js'
import { type CellHashes, WORDS } from './cell-hash.js'

/**
 * One handle a cell, 0 .. total-1, lent out when its token was decoded and taken back with its last tag. Handles are ours: llama.cpp
 * keeps its own order, which we neither know nor need. A handle that is in use names one cell and hence one computed token.
 *
 * Counts and positions are flat arrays because a step may touch every cell of a 64K context several times.
 */
export class CellTable {
  readonly #references: Int32Array
  readonly #positions: Int32Array
  /** By handle: the cell's hash, which whoever takes the cell writes; meaningless when it is free. A live view. */
  readonly hashes: CellHashes
  /** Handles not in use; the last is lent next. */
  readonly #free: Int32Array
  #freeCount: number
  #reach = 0
  /** Whose keys are turned to their positions by the next decode, and not before. */
  readonly #turning = new Set<number>()

  /** `total`: n_ctx. */
  constructor(readonly total: number) {
    this.#references = new Int32Array(total)
    this.#positions = new Int32Array(total)
    this.hashes = new Int32Array(WORDS * total)
    this.#free = Int32Array.from({ length: total }, (_, index) => total - 1 - index)
    this.#freeCount = total
  }

  get free(): number {
    return this.#freeCount
  }

  get used(): number {
    return this.total - this.#freeCount
  }

  /** Attention runs over at most this many cells, free ones between others included: what was in use at once since all were free or moved together. */
  get reach(): number {
    return this.#reach
  }

  /** All cells in use stand next to each other. */
  gathered(): void {
    this.#reach = this.used
  }

  /** By handle: how many sequences tag the cell; 0 when it is free. A live view for the integrity check, not to be written. */
  get references(): Int32Array {
    return this.#references
  }

  /** By handle: where the cell's token stands; meaningless when it is free. A live view for the integrity check, not to be written. */
  get positions(): Int32Array {
    return this.#positions
  }

  /** A token was decoded at `position` for one sequence: takes a free cell into the books, without its hash. Throws when the books know of none. */
  take(position: number): number {
    invariant(this.#freeCount > 0, `a token was decoded although all ${this.total} cells are in use by the books`)
    const cell = this.#free[--this.#freeCount] ?? -1
    this.#references[cell] = 1
    this.#positions[cell] = position
    this.#reach = Math.max(this.#reach, this.used)
    return cell
  }

  /** The cells' positions change; their keys follow with the next decode. */
  shift(cells: Int32Array, delta: number): void {
    for (const cell of cells) {
      this.#positions[cell] = this.#positions[cell]! + delta
      this.#turning.add(cell)
    }
  }

  /** Something was decoded. */
  settle(): void {
    this.#turning.clear()
  }

  /** Whether the keys of these cells are what their positions say: until then nobody may save them. */
  areSettled(cells: Int32Array): boolean {
    return this.#turning.size === 0 || !cells.some((cell) => this.#turning.has(cell))
  }

  /** One more sequence tags the cells. */
  tag(cells: Int32Array): void {
    for (const cell of cells) this.#references[cell] = (this.#references[cell] ?? 0) + 1
  }

  /** One sequence fewer tags the cells; says how many that set free. */
  untag(cells: Int32Array): number {
    let freed = 0
    for (const cell of cells) {
      const left = (this.#references[cell] ?? 0) - 1
      this.#references[cell] = left
      if (left > 0) continue
      this.#free[this.#freeCount++] = cell
      this.#turning.delete(cell)
      freed++
    }
    if (this.used === 0) this.#reach = 0
    return freed
  }

  /** The handles not in use, for the integrity check. */
  freeHandles(): Int32Array {
    return this.#free.slice(0, this.#freeCount)
  }
}
