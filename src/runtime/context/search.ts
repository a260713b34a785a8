/** Exact search through the original text, hidden parts included. */
import type { ChatMessage } from '../chat/message.js'
import type { FragmentId, SearchId } from '../core/ids.js'
import { overlaps, span, type Span } from '../core/span.js'
import { type Fragment, type Omission, wholeOmission } from './fragment.js'
import { searchable, type Scope } from './stretch.js'

/**
 * Whether the text of a hit is visible to the model now, or (in part) hidden by a fragment. `omitted`: the whole message is hidden, and
 * `fragment` is the id of its omission.
 */
export type Standing =
  { readonly kind: 'shown' } | { readonly kind: 'folded' | 'summarised' | 'omitted'; readonly fragment: FragmentId }

/** A stretch of a message's text. */
export interface TextPlace {
  /** Index of the message. */
  readonly message: number
  /** Characters of the message's original content. */
  readonly span: Span
}

/** A place in the text of a message, with an id. */
export interface FoundPlace extends TextPlace {
  readonly id: SearchId
}

/** One occurrence of the searched text, with the text around it. */
export interface Hit extends FoundPlace {
  readonly role: ChatMessage['role']
  readonly standing: Standing
  /**
   * Characters of the original content around the hit. It ends at forgotten text; for a hit in forgotten text it has only what stands before
   * that.
   */
  readonly excerpt: Span
}

/**
 * Returns the first `most` occurrences of `query` in order, and counts all of them. Occurrences do not overlap. Precondition: `query` is
 * not empty.
 */
export function found(
  messages: readonly ChatMessage[],
  query: string,
  scope: Scope,
  most = 0,
): { readonly places: readonly TextPlace[]; readonly total: number } {
  const places: TextPlace[] = []
  let total = 0
  for (const [message, original] of messages.entries()) {
    if (!searchable(original, scope)) continue
    for (let at = original.content.indexOf(query); at >= 0; at = original.content.indexOf(query, at + query.length)) {
      total++
      if (places.length < most) places.push({ message, span: span(at, at + query.length) })
    }
  }
  return { places, total }
}

/** Returns how often `query` occurs when upper and lower case are treated as equal. */
export function countIgnoringCase(messages: readonly ChatMessage[], query: string, scope: Scope): number {
  const lower = messages.map((message) => ({ ...message, content: message.content.toLowerCase() }))
  return found(lower, query.toLowerCase(), scope).total
}

/** Returns whether a place is visible. A place that is hidden in part counts as hidden. */
export function standingOf(fragments: Iterable<Fragment>, omissions: readonly Omission[], place: TextPlace): Standing {
  const omission = wholeOmission(omissions, place.message)
  if (omission !== undefined) return { kind: 'omitted', fragment: omission.id }
  for (const { id, message, span: covered, state } of fragments)
    if (state.kind !== 'open' && message === place.message && overlaps(covered, place.span))
      return { kind: state.kind, fragment: id }
  return { kind: 'shown' }
}

/** Returns the place with up to `reach` characters on each side. Splits no surrogate pair. */
export function widened(text: string, { start, end }: Span, reach: number): Span {
  const from = Math.max(0, start - reach)
  const to = Math.min(text.length, end + reach)
  return span(splits(text, from) ? from + 1 : from, splits(text, to) ? to - 1 : to)
}

const splits = (text: string, at: number): boolean => at > 0 && at < text.length && (text.codePointAt(at - 1) ?? 0) > 0xffff

const keyOf = ({ message, span: { start, end } }: TextPlace): string => `${message}:${start}:${end}`

/** The places that searches found. A place keeps its id when it is found again. */
export class SearchLog {
  readonly #byPlace = new Map<string, FoundPlace>()
  readonly #byId = new Map<string, FoundPlace>()

  constructor(private readonly newId: () => SearchId) {}

  /** The places found so far, oldest first. */
  get found(): readonly FoundPlace[] {
    return [...this.#byId.values()]
  }

  /** Adds a place that has an id to the log. */
  put(found: FoundPlace): void {
    this.#byPlace.set(keyOf(found), found)
    this.#byId.set(found.id, found)
  }

  idOf(place: TextPlace): SearchId {
    const known = this.#byPlace.get(keyOf(place))
    if (known !== undefined) return known.id
    const found = { id: this.newId(), ...place }
    this.put(found)
    return found.id
  }

  get(id: string): FoundPlace | null {
    return this.#byId.get(id) ?? null
  }
}

export interface SearchOptions {
  readonly query: string
  readonly role?: Scope
  /** How many hits are returned at most. Default 10. */
  readonly maxResults?: number
  /** Characters on each side of a hit. Default 200. */
  readonly contextSize?: number
}

export interface SearchResult {
  readonly hits: readonly Hit[]
  /** The number of all occurrences. It exceeds the number of `hits` when it exceeds `maxResults`. */
  readonly total: number
  /** Occurrences when upper and lower case are treated as equal. Counted only when `total` is 0; otherwise 0. */
  readonly ignoringCase: number
  /** Occurrences in messages of all roles. Counted only when `total` is 0 and the search had one role; otherwise 0. */
  readonly elsewhere: number
}
