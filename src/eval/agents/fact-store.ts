/** Owns the facts that an agent has stored of one sample, found by likeness. */
import { likeness } from './vectors.js'

export interface StoredFact {
  readonly id: number
  readonly text: string
}

interface Kept extends StoredFact {
  readonly vector: Float32Array
}

export class FactStore {
  readonly #facts = new Map<number, Kept>()
  #ids = 0

  get size(): number {
    return this.#facts.size
  }

  add(text: string, vector: Float32Array): void {
    const id = this.#ids++
    this.#facts.set(id, { id, text, vector })
  }

  /** Puts a new text in the place of a fact's; false when there is no such fact. */
  update(id: number, text: string, vector: Float32Array): boolean {
    if (!this.#facts.has(id)) return false
    this.#facts.set(id, { id, text, vector })
    return true
  }

  /** False when there is no such fact. */
  delete(id: number): boolean {
    return this.#facts.delete(id)
  }

  /** At most `most` facts, the likest first; the older of two that are equally like. */
  nearest(vector: Float32Array, most: number): StoredFact[] {
    return [...this.#facts.values()]
      .map(({ id, text, vector: own }) => ({ id, text, likeness: likeness(vector, own) }))
      .sort((one, other) => other.likeness - one.likeness || one.id - other.id)
      .slice(0, most)
      .map(({ id, text }) => ({ id, text }))
  }
}
