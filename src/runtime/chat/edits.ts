/** Applies edits to a tokenized prompt. Only tokens that show replaced text are exchanged; all other tokens stay. */
import { type Contract, FORGOTTEN } from '../core/contract.js'
import { invariant } from '../core/errors.js'
import { overlaps, type Span } from '../core/span.js'
import type { Edit } from './message.js'
import type { OffsetMap } from './tracked.js'
import { concatenate, cover, part, type Aligned } from './tokens/aligned.js'

/** A character span of the unedited prompt's text, and the text that replaces it. */
export interface TextChange {
  readonly text: Span
  readonly replacement: string
  readonly contract: Contract | null
  readonly forget: boolean
}

/**
 * Whole tokens of the unedited prompt, and the text and tokens that replace them. If the first or last old token also showed text beside
 * the edit, the new text repeats that text.
 */
export interface Replaced {
  readonly text: Span
  readonly tokens: Span
  readonly by: { readonly text: string; readonly aligned: Aligned }
  readonly contract: Contract | null
  /** Whether the cache must forget the hidden text. */
  readonly forget: boolean
}

/**
 * Converts edits of messages to changes of the prompt's text, in order. An edit is dropped if the prompt does not show its text, or if no
 * token covers it.
 * @param omitted for each message that omissions touch: the changes of the prompt's text
 * @throws KvfoldError internal/invariant for edits that overlap
 */
export function changesOf(
  edits: readonly Edit[],
  base: Aligned,
  map: (message: number) => OffsetMap | null,
  omitted: ReadonlyMap<number, OmittedText> = new Map<number, OmittedText>(),
): TextChange[] {
  const changes = omissionsIn(edits, base, omitted)
  const isHere = ({ message, omits }: Edit) => omits === undefined && omitted.get(message)?.isWhole !== true
  const sorted = edits.filter(isHere).sort((a, b) => a.message - b.message || a.span.start - b.span.start)
  sorted.forEach(({ message, span, replacement, contract = null, forget = false }, index) => {
    const next = sorted[index + 1]
    invariant(next === undefined || next.message !== message || !overlaps(span, next.span), 'two edits overlap')
    const text = map(message)?.toText(span) ?? 'hidden'
    if (text === 'hidden') return
    const tokens = cover(base, text)
    if (tokens.start < tokens.end) changes.push({ text, replacement, contract: forget ? 'exact' : contract, forget })
  })
  return changes.sort((a, b) => a.text.start - b.text.start || a.text.end - b.text.end)
}

/** The changes of the unedited prompt's text when edits omit parts of one message, such as its reasoning. */
export interface OmittedText {
  /** Whether the whole message is omitted. Its other edits then have no effect. */
  readonly isWhole: boolean
  readonly changes: readonly Pick<TextChange, 'text' | 'replacement'>[]
}

/**
 * Returns the changes of all omissions. If several edits omit parts of one message, they share one set of changes; unless their contracts
 * agree, it is `exact`. A wholly omitted message is forgotten if any edit forgets some of it.
 */
function omissionsIn(edits: readonly Edit[], base: Aligned, omitted: ReadonlyMap<number, OmittedText>): TextChange[] {
  return [...omitted].flatMap(([message, { changes, isWhole }]) => {
    const all = edits.filter((edit) => edit.message === message)
    const forget = isWhole && all.some((edit) => edit.forget === true)
    const own = all.filter((edit) => edit.omits !== undefined)
    const contract = forget ? 'exact' : strictest(own.map((edit) => ({ contract: edit.contract ?? null })))
    return changes.flatMap((change) => {
      const { start, end } = cover(base, change.text)
      return start < end ? [{ ...change, contract, forget }] : []
    })
  })
}

/**
 * Compares the prompt text of a message with its text after an omission. Returns at most two changes, one before the content and one after
 * it, so that they never overlap edits of the content.
 * @param at offset in the prompt where the message's text begins
 * @param contents the span of the content in each of the two texts; null when one of them does not show it
 */
export function omissionOf(
  [whole, rest]: readonly [string, string],
  at: number,
  contents: readonly [Span, Span] | null,
): OmittedText {
  const [old, now] = contents ?? [
    { start: whole.length, end: whole.length },
    { start: rest.length, end: rest.length },
  ]
  const changes = [
    differenceOf(whole.slice(0, old.start), rest.slice(0, now.start), at),
    differenceOf(whole.slice(old.end), rest.slice(now.end), at + old.end),
  ]
  return { isWhole: false, changes: changes.filter((change) => change !== null) }
}

/** Returns what lies between the common beginning and the common end of two texts; null when they are equal. */
function differenceOf(old: string, now: string, at: number): Pick<TextChange, 'text' | 'replacement'> | null {
  if (old === now) return null
  const most = Math.min(old.length, now.length)
  let head = 0
  while (head < most && old[head] === now[head]) head++
  let tail = 0
  while (tail < most - head && old.at(-1 - tail) === now.at(-1 - tail)) tail++
  return { text: { start: at + head, end: at + old.length - tail }, replacement: now.slice(head, now.length - tail) }
}

/** Converts changes of the text to replacements of whole tokens, in order and disjoint. Changes that touch the same token become one. */
export function replacedBy(
  changes: readonly TextChange[],
  text: string,
  base: Aligned,
  tokenize: (text: string) => Aligned,
): Replaced[] {
  const groups: { tokens: Span; changes: TextChange[] }[] = []
  for (const change of changes) {
    const tokens = cover(base, change.text)
    const last = groups.at(-1)
    if (last === undefined || last.tokens.end <= tokens.start) groups.push({ tokens, changes: [change] })
    else {
      last.tokens = { start: last.tokens.start, end: Math.max(last.tokens.end, tokens.end) }
      last.changes.push(change)
    }
  }
  return groups.map(({ tokens, changes: together }) => {
    const first = together[0]!.text.start
    const last = together.at(-1)!.text.end
    const start = Math.min(first, base.starts[tokens.start]!)
    const end = Math.max(last, base.ends[tokens.end - 1]!)
    const own = together.map((change) => ({ ...change, text: moved(change.text, -first) }))
    const made = text.slice(start, first) + applyToText(text.slice(first, last), own) + text.slice(last, end)
    const by = { text: made, aligned: tokenize(made) }
    const forget = together.some((change) => change.forget)
    return { text: { start, end }, tokens, by, contract: strictest(together), forget }
  })
}

const moved = ({ start, end }: Span, by: number): Span => ({ start: start + by, end: end + by })

/** Returns the contract if all changes have the same, else `exact`, which is always correct. */
function strictest([first, ...others]: readonly Pick<TextChange, 'contract'>[]): Contract | null {
  const contract = first?.contract ?? null
  return others.every((other) => other.contract === contract) ? contract : 'exact'
}

/** Converts an offset in the unedited text to one in the edited text. An offset inside replaced text becomes the end of the replacement. */
export function shifted(at: number, changes: readonly TextChange[]): number {
  let shift = 0
  for (const { text, replacement } of changes) {
    if (at <= text.start) break
    shift += replacement.length - (Math.min(at, text.end) - text.start)
  }
  return at + shift
}

export function applyToText(text: string, changes: readonly TextChange[]): string {
  const parts: string[] = []
  let at = 0
  for (const change of changes) {
    parts.push(text.slice(at, change.text.start), change.replacement)
    at = change.text.end
  }
  return parts.join('') + text.slice(at)
}

/** Returns the tokens of the edited prompt. `length`: the characters of its text. */
export function applyToTokens(base: Aligned, replaced: readonly Replaced[], length: number): Aligned {
  if (replaced.length === 0) return base
  const parts: { at: number; aligned: Aligned }[] = []
  let [token, from, at] = [0, 0, 0]
  const keep = (end: number, to: number) => {
    parts.push({ at, aligned: part(base, { start: token, end }, from, to) })
    at += to - from
  }
  for (const { text, tokens, by } of replaced) {
    keep(tokens.start, text.start)
    parts.push({ at, aligned: by.aligned })
    at += by.text.length
    token = tokens.end
    from = text.end
  }
  keep(base.tokens.length, base.length)
  return concatenate(parts, length)
}

/** Returns the tokens of the unedited prompt, with FORGOTTEN for each token that the cache must forget. */
export function remembered({ tokens }: Aligned, replaced: readonly Replaced[]): Int32Array {
  const forgotten = replaced.filter(({ forget }) => forget)
  if (forgotten.length === 0) return tokens
  const rest = tokens.slice()
  for (const { tokens: hidden } of forgotten) rest.fill(FORGOTTEN, hidden.start, hidden.end)
  return rest
}
