/** A conversation's prompt as its owner edits it: text that only grows, and spans of it that are replaced; for tests of src/runtime/kv. */
import type { Contract } from '../../../../src/runtime/core/contract.js'
import type { ReplacedSpan, Prompt } from '../../../../src/runtime/kv/prompt.js'

interface Fold {
  readonly start: number
  readonly end: number
  readonly marker: readonly number[]
  readonly contract?: Contract
}

export class PromptDraft {
  readonly #messages: (readonly number[])[]
  #folds: readonly Fold[] = []

  /** `opening`: the tokens that begin every answer. */
  constructor(
    messages: readonly (readonly number[])[],
    private readonly opening: readonly number[],
  ) {
    this.#messages = [...messages]
  }

  /** The unedited prompt. */
  get base(): readonly number[] {
    return [...this.#messages.flat(), ...this.opening]
  }

  /** The replaced spans, in order. */
  get folds(): readonly Fold[] {
    return this.#folds
  }

  /** Returns where message `index` begins in the unedited prompt. */
  startOf(index: number): number {
    return this.#messages.slice(0, index).flat().length
  }

  /** The messages without edits. */
  get messages(): readonly (readonly number[])[] {
    return this.#messages
  }

  add(...messages: readonly (readonly number[])[]): void {
    this.#messages.push(...messages)
  }

  /** Adds the answer to the last prompt, then other messages. */
  say(answer: readonly number[], ...messages: readonly (readonly number[])[]): void {
    this.add([...this.opening, ...answer], ...messages)
  }

  /**
   * Shows `marker` for [start, end) of the unedited prompt, which must lie in one message. The span must be free, or be one that is already
   * folded.
   */
  fold(start: number, end: number, marker: readonly number[], contract?: Contract): void {
    this.restore(start)
    const fold: Fold = { start, end, marker, ...(contract === undefined ? {} : { contract }) }
    this.#folds = [...this.#folds, fold].sort((a, b) => a.start - b.start)
  }

  /** Shows the span that was folded at `start` again. */
  restore(start: number): void {
    this.#folds = this.#folds.filter((fold) => fold.start !== start)
  }

  get shown(): Prompt {
    const tokens: number[] = []
    const messages: Prompt['messages'][number][] = []
    let place = 0
    for (const [index, message] of [...this.#messages, this.opening].entries()) {
      const start = tokens.length
      const end = place + message.length
      while (place < end) {
        const fold = this.#folds.find((each) => each.start === place)
        if (fold === undefined) tokens.push(this.base[place++]!)
        else {
          tokens.push(...fold.marker)
          place = fold.end
        }
      }
      messages.push({ index, role: 'user', span: { start, end: tokens.length } })
    }
    const holes = this.#folds.map(({ start, end, marker, contract }): ReplacedSpan => ({
      span: { start, end },
      marker: marker.length,
      ...(contract === undefined ? {} : { contract }),
    }))
    return { tokens: Int32Array.from(tokens), messages, origin: { base: Int32Array.from(this.base), holes } }
  }
}
