/** The prompt of a step: the tokens shown to the model, the message of each, and the edits that led to them. */
import type { Contract } from '../core/contract.js'
import type { Span } from '../core/span.js'

/** One message of the prompt. Its token span includes the role header and the end-of-turn tokens. */
export interface PromptMessage {
  /** Index in the conversation, from 0. Messages never change in number or order. The last one is the answer being generated. */
  readonly index: number
  readonly role: string
  /** A half-open token span. The messages of one `Prompt` are in order and cover all its tokens. */
  readonly span: Span
}

/** A token span of the unedited prompt that an edit hides, and how many tokens are shown instead. */
export interface ReplacedSpan {
  /** Span of `EditMap.base`; never empty. */
  readonly span: Span
  /** Number of tokens shown instead: those of the marker or summary. */
  readonly marker: number
  /** The contract that this edit asks for while it is shown. Default: the step's. A step keeps the strictest contract of all its edits. */
  readonly contract?: Contract
}

/** How the shown tokens were made: the unedited prompt, and the edits. */
export interface EditMap {
  /** The unedited prompt. Tokens of text that is to be forgotten are replaced by FORGOTTEN. */
  readonly base: Int32Array
  /** The edits, in order of their spans, without overlaps. */
  readonly holes: readonly ReplacedSpan[]
}

export interface Prompt {
  readonly tokens: Int32Array
  readonly messages: readonly PromptMessage[]
  /** Default: the prompt was not edited. */
  readonly origin?: EditMap
}

/** Returns the prompt without its edits' contracts, for a step that must keep its own contract. */
export const withoutContracts = (prompt: Prompt): Prompt => {
  if (prompt.origin === undefined) return prompt
  const holes = prompt.origin.holes.map(({ span, marker }) => ({ span, marker }))
  return { ...prompt, origin: { base: prompt.origin.base, holes } }
}

/** Returns the tokens of the prompt before its edits. */
export const uneditedOf = ({ tokens, origin }: Prompt): Int32Array => origin?.base ?? tokens

/** Returns the source id (key) of the unedited prompt's token at index `place`. */
export const tokenSource = (place: number): number => 2 * place + 1

/** Returns the source id of all tokens of a marker. `place` is the index in the unedited prompt where the marker's hole begins. */
export const markerSource = (place: number): number => 2 * place

/** Returns the index in the unedited prompt that a source id (key) names. */
export const sourcePlace = (key: number): number => key >> 1

export const isMarker = (key: number): boolean => (key & 1) === 0

/**
 * Returns a source id (key) for every shown token. It says where the token comes from, and stays the same through edits elsewhere. Keys
 * ascend; those of one marker are equal. Callers must not write to the array, because unedited prompts share it.
 */
export function sourceIdsOf({ tokens, origin }: Prompt): Int32Array {
  if (origin === undefined || origin.holes.length === 0) return tokenSources(0, tokens.length)
  const keys = new Int32Array(tokens.length)
  let at = 0
  let place = 0
  const copy = (end: number) => {
    keys.set(tokenSources(place, end), at)
    at += end - place
  }
  for (const { span, marker } of origin.holes) {
    copy(span.start)
    keys.fill(markerSource(span.start), at, at + marker)
    at += marker
    place = span.end
  }
  copy(origin.base.length)
  return keys
}

/** The source ids of an unedited prompt: 1, 3, 5, ... All prompts share the array, which grows when a longer prompt needs more. */
let sources = new Int32Array()

function tokenSources(start: number, end: number): Int32Array {
  if (end > sources.length) sources = Int32Array.from({ length: 2 * end }, (_, place) => tokenSource(place))
  return sources.subarray(start, end)
}

// Common beginnings and endings of two lists of tokens.

/** Number of tokens compared at once. Comparing memory is about twenty times faster than comparing token by token in JavaScript. */
const BLOCK = 1024

const bytesOf = ({ buffer, byteOffset, byteLength }: Int32Array): Buffer => Buffer.from(buffer, byteOffset, byteLength)

/** Returns the length of the longest beginning that both lists have in common. */
export function commonPrefix(a: Int32Array, b: Int32Array): number {
  const end = Math.min(a.length, b.length)
  const width = Int32Array.BYTES_PER_ELEMENT
  let at = 0
  if (end > BLOCK) {
    const left = bytesOf(a)
    const right = bytesOf(b)
    const equal = (from: number, to: number) => left.compare(right, from, to, from, to) === 0
    while (at + BLOCK <= end && equal(at * width, (at + BLOCK) * width)) at += BLOCK
  }
  while (at < end && a[at] === b[at]) at++
  return at
}

/** Returns the length of the longest common ending of both lists, not counting their first `skip` elements. */
export function commonSuffix(a: Int32Array, b: Int32Array, skip: number): number {
  const end = Math.min(a.length, b.length) - skip
  let size = 0
  while (size < end && a[a.length - 1 - size] === b[b.length - 1 - size]) size++
  return size
}
