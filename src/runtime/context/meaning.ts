/** Search by meaning: passages of the messages, and their nearness to a query as a model for embeddings sees it. */
import type { ChatMessage } from '../chat/message.js'
import { span, type Span } from '../core/span.js'
import type { TextPlace } from './search.js'
import { type Scope, searchable } from './stretch.js'

/** Makes a vector of length 1 of each text. @throws what the model for embeddings throws */
export type Embed = (texts: readonly string[], signal?: AbortSignal) => Promise<readonly Float32Array[]>

/** The most characters of a passage. In a conversation with more than MOST passages, passages are longer. */
const LENGTH = 400
const MOST = 500

/** The vectors of a conversation's passages. They are made at the first search and kept for the next ones. */
export class PassageVectors {
  #kept: ReadonlyMap<string, Float32Array> = new Map()

  constructor(private readonly embed: Embed) {}

  /** Returns the passages that are nearest to the query, nearest first. @throws what `Embed` throws */
  async nearest(
    messages: readonly ChatMessage[],
    { query, scope, count }: { readonly query: string; readonly scope: Scope; readonly count: number },
    signal?: AbortSignal,
  ): Promise<readonly TextPlace[]> {
    const passages = [...passagesOf(messages, scope)]
    if (passages.length === 0) return []
    const textOf = ({ message, span: { start, end } }: TextPlace) => messages[message]!.content.slice(start, end)
    const known = this.#kept
    const missing = [...new Set(passages.map(textOf))].filter((text) => !known.has(text))
    const [asked, ...made] = await this.embed([query, ...missing], signal)
    const fresh = new Map(missing.map((text, at) => [text, made[at]!]))
    this.#kept = new Map(passages.map(textOf).map((text) => [text, known.get(text) ?? fresh.get(text)!]))
    return passages
      .map((place) => ({ place, nearness: product(asked!, this.#kept.get(textOf(place))!) }))
      .sort((a, b) => b.nearness - a.nearness)
      .slice(0, count)
      .map(({ place }) => place)
  }

  /** Drops all vectors. They tell something of their texts. */
  clear(): void {
    this.#kept = new Map()
  }
}

const product = (one: Float32Array, other: Float32Array): number => one.reduce((sum, value, at) => sum + value * other[at]!, 0)

/** Yields the passages of all messages in scope, in order. */
function* passagesOf(messages: readonly ChatMessage[], scope: Scope): Generator<TextPlace> {
  const read = messages.map((original) => (searchable(original, scope) ? original.content : ''))
  const length = Math.max(LENGTH, Math.ceil(read.reduce((sum, text) => sum + text.length, 0) / MOST))
  for (const [message, text] of read.entries()) for (const passage of pieces(text, length)) yield { message, span: passage }
}

/** Where a passage may end, best first: at the end of a line, of a sentence, of a word. */
const ENDS = [['\n'], ['. ', '! ', '? '], [' ']] as const

/** Cuts a text into pieces of at most this length, without the white space around them. */
function* pieces(text: string, length: number): Generator<Span> {
  for (let at = 0; at < text.length;) {
    const end = Math.min(text.length, at + length)
    const next = end === text.length ? end : endIn(text, at + Math.ceil(length / 2), end)
    const piece = text.slice(at, next)
    const start = at + piece.length - piece.trimStart().length
    if (piece.trim() !== '') yield span(start, start + piece.trim().length)
    at = next
  }
}

/** Returns the best end of a passage between two places. */
function endIn(text: string, from: number, to: number): number {
  const half = text.slice(from, to)
  for (const kind of ENDS) {
    const ends = kind.map((mark) => half.lastIndexOf(mark)).filter((at) => at >= 0)
    if (ends.length > 0) return from + Math.max(...ends) + kind[0].length
  }
  const isSplit = (text.codePointAt(to - 1) ?? 0) > 0xffff
  return isSplit ? to - 1 : to
}
