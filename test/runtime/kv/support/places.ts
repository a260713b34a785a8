/** Records for which place of a conversation's unedited prompt each cell was computed, independently of the cache. */
import type { Prompt } from '../../../../src/runtime/kv/prompt.js'
import type { HeldCell } from './naive-memory.js'

export class Places {
  readonly #known = new Map<string, Set<string>>()
  readonly #latest = new Map<string, string>()
  /** A number for every beginning of a prompt. */
  readonly #beginnings = new Map<string, number>()

  /**
   * Returns a name for each shown token, then for each generated one: its place in the unedited prompt and all of the prompt up to there.
   * For a token of a marker it is the name of the replaced span and, after a colon, the marker up to there.
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

  /** Whether the cell was last shown at that place. A text that repeats itself may have shown it at others. */
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
