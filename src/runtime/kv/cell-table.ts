/** kvfold's record of the cells: whether a cell is in use, its position, the number of sequences that tag it, and its hash. */
import { invariant } from '../core/errors.js'
import { type CellHashes, WORDS } from './cell-hash.js'

/**
 * The table of all cells, with one handle per cell, from 0 to total - 1. A handle is lent out when a token is decoded, and taken back with
 * the last tag of its cell. Handles are kvfold's own: llama.cpp keeps its own order of cells, which kvfold neither knows nor needs. A
 * handle in use names one cell, and so one computed token.
 *
 * Counts and positions are flat arrays because a step may touch every cell of a 64K context several times.
 */
export class CellTable {
  readonly #references: Int32Array
  readonly #positions: Int32Array
  /** The cell hashes, by handle. The caller of `take` writes the hash of the new cell. The hash of a free handle means nothing. */
  readonly hashes: CellHashes
  /** Handles not in use. The last one is lent next. */
  readonly #free: Int32Array
  #freeCount: number
  #reach = 0
  /** Cells whose position changed since the last decode. Their keys are still rotated to the old position; the next decode rotates them. */
  readonly #turning = new Set<number>()

  /** @param total number of cells of the context (llama.cpp's n_ctx) */
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

  /**
   * Upper bound of the cells that attention runs over: it goes up to the highest cell in use, free cells in between included. It is the
   * peak of `used` since the cache was last empty or its cells were moved next to each other.
   */
  get reach(): number {
    return this.#reach
  }

  /** Notes that no free cell lies between the cells in use. */
  gathered(): void {
    this.#reach = this.used
  }

  /** By handle: how many sequences tag the cell; 0 when it is free. A live view for the integrity check; callers must not write to it. */
  get references(): Int32Array {
    return this.#references
  }

  /** By handle: the cell's position; meaningless when it is free. A live view for the integrity check; callers must not write to it. */
  get positions(): Int32Array {
    return this.#positions
  }

  /**
   * Records the cell of a token decoded at `position`, which one sequence sees so far. Returns the cell's handle. The caller writes its
   * hash.
   * @throws KvfoldError internal/invariant when the table has no free cell
   */
  take(position: number): number {
    invariant(this.#freeCount > 0, `a token was decoded although the cell table counts all ${this.total} cells as used`)
    const cell = this.#free[--this.#freeCount] ?? -1
    this.#references[cell] = 1
    this.#positions[cell] = position
    this.#reach = Math.max(this.#reach, this.used)
    return cell
  }

  /** Adds `delta` to the cells' positions. Their keys stay rotated to the old positions until the next decode. */
  shift(cells: Int32Array, delta: number): void {
    for (const cell of cells) {
      this.#positions[cell] = this.#positions[cell]! + delta
      this.#turning.add(cell)
    }
  }

  /** Records that a decode has run, which rotated the keys of all shifted cells. */
  settle(): void {
    this.#turning.clear()
  }

  /**
   * Returns how many of these cells come before the first one whose key the next decode must still rotate. The cells from that one on must
   * not be saved (KvMemory.shift).
   */
  settledOf(cells: Int32Array): number {
    const first = this.#turning.size === 0 ? -1 : cells.findIndex((cell) => this.#turning.has(cell))
    return first < 0 ? cells.length : first
  }

  /** Adds one tag to each of the cells. */
  tag(cells: Int32Array): void {
    for (const cell of cells) this.#references[cell] = (this.#references[cell] ?? 0) + 1
  }

  /** Removes one tag from each of the cells. Returns how many cells that freed. */
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
