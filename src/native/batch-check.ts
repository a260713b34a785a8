/** Owns the check of a batch: everything that llama.cpp would assert on or misread is refused in a sentence. */
import { refuse } from './failure.js'
import type { Batch } from './types.js'

export interface BatchRules {
  /** Tokens one decode takes. */
  readonly batch: number
  readonly vocabulary: number
  readonly sequences: number
  /** Largest position a sequence holds, -1 when it is empty. */
  last(seq: number): number
}

/** Throws native/bad-argument unless every sequence of the batch goes on, gapless and in order, where it ends in the cache. */
export function checkBatch({ tokens, positions, sequences, outputs }: Batch, rules: BatchRules): void {
  const bad = (what: string): never => refuse(`The batch cannot be decoded: ${what}.`)
  const size = tokens.length
  if (size === 0) bad('it is empty')
  if (positions.length !== size || sequences.length !== size || outputs.length !== size) bad('its arrays differ in length')
  if (size > rules.batch) bad(`it has ${size} tokens, and the context takes ${rules.batch} at once`)
  const next = new Map<number, number>()
  for (let at = 0; at < size; at++) {
    const token = tokens[at] ?? -1
    const position = positions[at] ?? -1
    const seq = sequences[at] ?? -1
    if (token < 0 || token >= rules.vocabulary) bad(`token ${token} at ${at} is not in the vocabulary of ${rules.vocabulary}`)
    if (seq < 0 || seq >= rules.sequences) bad(`sequence ${seq} at ${at} does not exist, only 0 to ${rules.sequences - 1} do`)
    const expected = next.get(seq) ?? rules.last(seq) + 1
    if (position !== expected) bad(`sequence ${seq} goes on at position ${expected}, not ${position} (entry ${at})`)
    next.set(seq, expected + 1)
  }
}
