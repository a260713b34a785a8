/** Search by meaning: cuts hidden text into passages and compares their embedding vectors with the query's. */
import type { ChatMessage } from '../chat/message.js'
import { span, type Span } from '../core/span.js'
import { cosine } from '../core/vectors.js'
import { type Fragment, isForgotten } from './fragment.js'
import type { TextPlace } from './search.js'
import { type Scope, searchable } from './stretch.js'

/** Makes a vector of length 1 for each text. @throws what the embedding model throws */
export type Embed = (texts: readonly string[], signal?: AbortSignal) => Promise<readonly Float32Array[]>

/** The longest passage, in characters. */
const LENGTH = 400
/** The most passages of one search. With more, those of the earliest messages are left out. */
const MOST = 1000
/** How many texts one call to the model embeds. Other requests get their turn between two calls. */
const BATCH = 64

/** The messages and fragments whose hidden text is searched. */
export interface HiddenText {
  readonly messages: readonly ChatMessage[]
  readonly fragments: readonly Fragment[]
}

/** The vectors of a conversation's hidden passages. The first search makes them; later searches reuse them. */
export class PassageVectors {
  #kept: ReadonlyMap<string, Float32Array> = new Map()
  #clearings = 0

  constructor(private readonly embed: Embed) {}

  /** Returns the hidden passages nearest to the query, nearest first. @throws what `Embed` throws */
  async nearest(
    { messages, fragments }: HiddenText,
    { query, scope, count }: { readonly query: string; readonly scope: Scope; readonly count: number },
    signal?: AbortSignal,
  ): Promise<readonly TextPlace[]> {
    const passages = fragments
      .filter(isSearched)
      .flatMap(({ message, span: hidden }) =>
        Array.from(passagesIn(messages[message]!.content, hidden), (piece) => ({ message, span: piece })),
      )
      .slice(-MOST)
      .map((place) => ({ place, text: messages[place.message]!.content.slice(place.span.start, place.span.end) }))
    if (passages.length === 0) return []
    const clearings = this.#clearings
    const vectors = new Map(this.#kept)
    const missing = [...new Set(passages.map(({ text }) => text))].filter((text) => !vectors.has(text))
    const asked = (await this.embed([query], signal))[0]!
    for (let from = 0; from < missing.length; from += BATCH) {
      const texts = missing.slice(from, from + BATCH)
      const made = await this.embed(texts, signal)
      for (const [at, text] of texts.entries()) vectors.set(text, made[at]!)
    }
    if (clearings === this.#clearings) this.#kept = new Map(passages.map(({ text }) => [text, vectors.get(text)!]))
    return passages
      .filter(({ place }) => searchable(messages[place.message]!, scope))
      .map(({ place, text }) => ({ place, nearness: cosine(asked, vectors.get(text)!) }))
      .sort((a, b) => b.nearness - a.nearness)
      .slice(0, count)
      .map(({ place }) => place)
  }

  /** Drops all vectors, because a vector reveals something of its text. A search that is running does not keep its vectors either. */
  clear(): void {
    this.#clearings++
    this.#kept = new Map()
  }
}

/** Whether a search reads the fragment: it is hidden, but not forgotten. */
const isSearched = (fragment: Fragment): boolean => fragment.state.kind !== 'open' && !isForgotten(fragment)

/** Preferred ends of a passage, best first: end of line, end of sentence, end of word. */
const ENDS = [['\n'], ['. ', '! ', '? '], [' ']] as const

/** Cuts a span of a text into passages of at most `LENGTH` characters, without white space around them. */
export function* passagesIn(text: string, { start, end }: Span): Generator<Span> {
  for (let at = start; at < end;) {
    const next = at + LENGTH >= end ? end : endIn(text, at + LENGTH / 2, at + LENGTH)
    const piece = text.slice(at, next)
    const from = at + piece.length - piece.trimStart().length
    if (piece.trim() !== '') yield span(from, from + piece.trim().length)
    at = next
  }
}

/** Returns the best end for a passage between the offsets `from` and `to`. */
function endIn(text: string, from: number, to: number): number {
  const half = text.slice(from, to)
  for (const kind of ENDS) {
    const ends = kind.map((mark) => half.lastIndexOf(mark)).filter((at) => at >= 0)
    if (ends.length > 0) return from + Math.max(...ends) + kind[0].length
  }
  const isSplit = (text.codePointAt(to - 1) ?? 0) > 0xffff
  return isSplit ? to - 1 : to
}
