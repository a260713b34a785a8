/** Applies edits to a tokenized prompt: replaced ranges get new tokens, everything else keeps its own. */
import type { Contract } from '../core/contract.js'
import { invariant } from '../core/errors.js'
import type { Span } from '../core/span.js'
import type { Edit } from './message.js'
import type { OffsetMap } from './text/offsets.js'
import { borderAt, type Aligned } from './tokens/aligned.js'

/** A stretch of the unedited prompt and what stands in its place. */
export interface Change {
  readonly text: Span
  readonly tokens: Span
  readonly replacement: { readonly text: string; readonly tokens: Int32Array }
  readonly contract: Contract | null
}

/**
 * The edits as changes of the prompt, in order. Edits of text that is not shown are left out.
 * @throws KvfoldError internal/invariant for borders that are not token borders, or edits that overlap
 */
export function changesOf(
  edits: readonly Edit[],
  base: Aligned,
  map: (message: number) => OffsetMap | null,
  tokenize: (text: string) => Int32Array,
): Change[] {
  const changes: Change[] = []
  for (const { message, span, replacement, contract = null } of edits) {
    const text = map(message)?.toText(span) ?? 'hidden'
    if (text === 'hidden') continue
    invariant(text !== 'inside', `An edit of message ${message} ends inside a character that the template writes as several.`)
    const start = borderAt(base, text.start)
    const end = borderAt(base, text.end)
    invariant(
      start !== null && end !== null,
      `An edit of message ${message}, characters ${span.start} to ${span.end}, does not lie on token borders; snap it first.`,
    )
    changes.push({ text, tokens: { start, end }, replacement: { text: replacement, tokens: tokenize(replacement) }, contract })
  }
  changes.sort((a, b) => a.text.start - b.text.start || a.text.end - b.text.end)
  changes.forEach(({ text }, index) => {
    invariant(index === 0 || (changes[index - 1]?.text.end ?? 0) <= text.start, 'Two edits overlap.')
  })
  return changes
}

/** Carries places of the unedited prompt over to the edited one. */
export class Shifts {
  constructor(private readonly changes: readonly Change[]) {}

  text(at: number): number {
    return this.#shift(at, ({ text, replacement }) => [text, replacement.text.length])
  }

  token(at: number): number {
    return this.#shift(at, ({ tokens, replacement }) => [tokens, replacement.tokens.length])
  }

  /** A place inside a replaced stretch goes to its end. */
  #shift(at: number, of: (change: Change) => readonly [Span, number]): number {
    let shift = 0
    for (const change of this.changes) {
      const [{ start, end }, length] = of(change)
      if (at <= start) break
      shift += length - (Math.min(at, end) - start)
    }
    return at + shift
  }
}

export function applyToText(text: string, changes: readonly Change[]): string {
  const parts: string[] = []
  let at = 0
  for (const change of changes) {
    parts.push(text.slice(at, change.text.start), change.replacement.text)
    at = change.text.end
  }
  return parts.join('') + text.slice(at)
}

export function applyToTokens(tokens: Int32Array, changes: readonly Change[]): Int32Array {
  if (changes.length === 0) return tokens
  const grown = changes.reduce(
    (sum, change) => sum + change.replacement.tokens.length - (change.tokens.end - change.tokens.start),
    0,
  )
  const made = new Int32Array(tokens.length + grown)
  let from = 0
  let to = 0
  const put = (part: Int32Array) => {
    made.set(part, to)
    to += part.length
  }
  for (const change of changes) {
    put(tokens.subarray(from, change.tokens.start))
    put(change.replacement.tokens)
    from = change.tokens.end
  }
  put(tokens.subarray(from))
  return made
}
