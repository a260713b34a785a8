/** Knows for which place of which conversation's unedited prompt a cell was computed, told by nobody but the tests. */
import type { Prompt } from '../../../../src/runtime/kv/prompt.js'
import type { HeldCell } from './naive-memory.js'

export class Places {
  readonly #known = new Map<string, Set<string>>()
  readonly #latest = new Map<string, string>()
  /** A number for every beginning of a prompt. */
  readonly #beginnings = new Map<string, number>()

  /**
   * A name for each shown token, then for each generated one: its place in the unedited prompt and all of the prompt up to there; or that of the
   * hole and, after a colon, all of the marker up to there.
   */
  of({ tokens, origin = { base: tokens, holes: [] } }: Prompt, generated: readonly number[]): string[] {
    const base = [...origin.base, ...generated]
    const upTo: number[] = []
    for (const token of base) upTo.push(this.#number(`${upTo.at(-1) ?? ''},${token}`))
    const names: string[] = []
    for (let place = 0; place <= base.length; place++) {
      for (const { span, marker } of origin.holes)
        if (span.start === place)
          for (let size = 1; size <= marker; size++)
            names.push(`hole after ${upTo[place - 1] ?? ''}:${tokens.slice(names.length - size + 1, names.length + 1).join()}`)
      if (place < base.length && !origin.holes.some(({ span }) => span.start <= place && place < span.end))
        names.push(`text ${upTo[place] ?? ''}`)
    }
    return names
  }

  note(conversation: string, { id }: HeldCell, place: string): void {
    const known = this.#known.get(conversation) ?? new Set()
    this.#known.set(conversation, known.add(`${id} ${place}`))
    this.#latest.set(`${id} ${conversation}`, place)
  }

  has(conversation: string, { id }: HeldCell, place: string): boolean {
    return this.#known.get(conversation)?.has(`${id} ${place}`) === true
  }

  /** Whether that is the place the cell was last shown at; a text that repeats itself may have had it at others. */
  isAt(conversation: string, { id }: HeldCell, place: string): boolean {
    return this.#latest.get(`${id} ${conversation}`) === place
  }

  forget(conversation: string): void {
    this.#known.delete(conversation)
  }

  #number(beginning: string): number {
    const known = this.#beginnings.get(beginning) ?? this.#beginnings.size
    this.#beginnings.set(beginning, known)
    return known
  }
}
