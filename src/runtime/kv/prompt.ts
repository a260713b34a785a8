/** What a sequence is asked to hold: the tokens a step shows the model, divided among the messages they belong to, and how they came about. */
import type { Contract } from '../core/contract.js'
import type { Span } from '../core/span.js'

/** The stretch of tokens that belongs to one message, its role header and end-of-turn included. */
export interface PromptMessage {
  /** Place in the conversation, from 0; messages never change in number or order, so it names the message. The answer being generated is the last. */
  readonly index: number
  readonly role: string
  /** Tokens, half-open; the messages of one `Prompt` are in order and cover all its tokens. */
  readonly span: Span
}

/** A stretch of the unedited prompt and how many tokens are shown in its place. */
export interface ReplacedSpan {
  /** Tokens of `Origin.base`; never empty. */
  readonly span: Span
  /** Tokens of the marker or summary. */
  readonly marker: number
  /** What this edit asks for as long as it is shown; default: what the step does. The strictest of all counts. */
  readonly contract?: Contract
}

/** Where shown tokens come from: the prompt before its edits, and the edits. */
export interface EditMap {
  /** FORGOTTEN in the place of every token of a text that is to be forgotten. */
  readonly base: Int32Array
  /** In order, disjoint. */
  readonly holes: readonly ReplacedSpan[]
}

export interface Prompt {
  readonly tokens: Int32Array
  readonly messages: readonly PromptMessage[]
  /** Default: nothing was edited. */
  readonly origin?: EditMap
}

/** The same, but that the edits ask for nothing themselves: for a step that must keep to its own contract. */
export const withoutContracts = (prompt: Prompt): Prompt => {
  if (prompt.origin === undefined) return prompt
  const holes = prompt.origin.holes.map(({ span, marker }) => ({ span, marker }))
  return { ...prompt, origin: { base: prompt.origin.base, holes } }
}

/** The prompt before its edits. */
export const uneditedOf = ({ tokens, origin }: Prompt): Int32Array => origin?.base ?? tokens

/** The key of the unedited prompt's token at `place`. */
export const tokenSource = (place: number): number => 2 * place + 1

/** The key of every token of the marker that stands in the place of a hole which begins at `place`. */
export const markerSource = (place: number): number => 2 * place

/** The place of the unedited prompt that a key stands at. */
export const sourcePlace = (key: number): number => key >> 1

export const isMarker = (key: number): boolean => (key & 1) === 0

/**
 * A key for every shown token, which says where it comes from and stays the same through edits elsewhere. Keys ascend, those of one marker
 * are equal. Nobody's to write to: unedited prompts share them.
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

/** The keys of the first tokens of any prompt; longer ones are made as they are asked for. */
let sources = new Int32Array()

function tokenSources(start: number, end: number): Int32Array {
  if (end > sources.length) sources = Int32Array.from({ length: 2 * end }, (_, place) => tokenSource(place))
  return sources.subarray(start, end)
}

// How much two lists of tokens have in common.

/** Tokens compared at once: memory is compared some twenty times faster in blocks than token by token in JavaScript. */
const BLOCK = 1024

const bytesOf = ({ buffer, byteOffset, byteLength }: Int32Array): Buffer => Buffer.from(buffer, byteOffset, byteLength)

/** Length of the longest common beginning. */
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

/** Length of the longest common ending that leaves the first `skip` elements of both alone. */
export function commonSuffix(a: Int32Array, b: Int32Array, skip: number): number {
  const end = Math.min(a.length, b.length) - skip
  let size = 0
  while (size < end && a[a.length - 1 - size] === b[b.length - 1 - size]) size++
  return size
}
