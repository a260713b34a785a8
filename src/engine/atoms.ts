/** Owns the cutting of overlapping key sets into disjoint atoms, so that every place is summed up once, and the adding up afterwards. */
import type { KeySet } from './attention.js'

export class Atoms {
  /** The atom of every place up to the last one in a set; -1: in none. */
  readonly byPlace: Int32Array
  readonly count: number
  /** By set: its atoms. */
  readonly #of: readonly (readonly number[])[]

  constructor(sets: readonly KeySet[]) {
    const ends = sets.flatMap(({ tokens }) => tokens.map(({ end }) => end))
    this.byPlace = new Int32Array(ends.reduce((most, end) => Math.max(most, end), 0)).fill(-1)
    const borders = new Map<number, Set<number>>()
    const change = (place: number, set: number) => {
      const changed = borders.get(place) ?? new Set()
      borders.set(place, changed)
      // Spans that touch end and begin the set at once, which changes nothing.
      if (!changed.delete(set)) changed.add(set)
    }
    sets.forEach(({ tokens }, set) => {
      for (const { start, end } of tokens) {
        if (start === end) continue
        change(start, set)
        change(end, set)
      }
    })
    const known = new Map<string, number>()
    const of = sets.map((): number[] => [])
    const inside = new Set<number>()
    const places = [...borders.keys()].sort((a, b) => a - b)
    places.forEach((place, index) => {
      for (const set of borders.get(place)!) if (!inside.delete(set)) inside.add(set)
      if (inside.size === 0) return
      const name = [...inside].sort((a, b) => a - b).join()
      let atom = known.get(name)
      if (atom === undefined) {
        known.set(name, (atom = known.size))
        for (const set of inside) of[set]!.push(atom)
      }
      this.byPlace.fill(atom, place, places[index + 1])
    })
    this.count = known.size
    this.#of = of
  }

  /** Sums of the sets, row by row, from sums of the atoms of so many rows. */
  added(mass: Float32Array, rows: number): Float32Array {
    const { count } = this
    const sums = new Float32Array(rows * this.#of.length)
    for (let row = 0, at = 0; row < rows; row++)
      for (const atoms of this.#of) {
        let sum = 0
        for (const atom of atoms) sum += mass[row * count + atom]!
        sums[at++] = sum
      }
    return sums
  }
}
