/** Exact search through the original text, hidden text included. */
import type { ChatMessage } from '../chat/message.js'
import type { FragmentId, SearchId } from '../core/ids.js'
import { overlaps, span, type Span } from '../core/span.js'
import { type Fragment, type Omission, wholeOmission } from './fragment.js'
import { searchable, type Scope } from './stretch.js'

/**
 * Whether the model sees the text of a hit. A hit counts as hidden even if a fragment hides only some of it. `omitted`: the whole message
 * is hidden, and `fragment` is the id of its omission.
 */
export type Standing =
  { readonly kind: 'shown' } | { readonly kind: 'folded' | 'summarised' | 'omitted'; readonly fragment: FragmentId }

/** A span of one message's original content. */
export interface TextPlace {
  /** Index of the message, from 0. */
  readonly message: number
  readonly span: Span
}

/** A span that a search found, with its id. */
export interface FoundPlace extends TextPlace {
  readonly id: SearchId
}

/** One search hit, with the text around it. */
export interface Hit extends FoundPlace {
  readonly role: ChatMessage['role']
  readonly standing: Standing
  /**
   * The hit and the characters around it, as a span of the original content. It stops at forgotten text. If the hit itself is forgotten,
   * it has only text before the hit.
   */
  readonly excerpt: Span
}

/**
 * Returns the first `most` occurrences of `query` in order, and the number of all. Occurrences do not overlap. Precondition: `query` is
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

/** Counts the occurrences of `query`, ignoring upper and lower case. */
export function countIgnoringCase(messages: readonly ChatMessage[], query: string, scope: Scope): number {
  const lower = messages.map((message) => ({ ...message, content: message.content.toLowerCase() }))
  return found(lower, query.toLowerCase(), scope).total
}

/** Says whether the model sees a span of text. If any character is hidden, the span counts as hidden. */
export function standingOf(fragments: Iterable<Fragment>, omissions: readonly Omission[], place: TextPlace): Standing {
  const omission = wholeOmission(omissions, place.message)
  if (omission !== undefined) return { kind: 'omitted', fragment: omission.id }
  for (const { id, message, span: covered, state } of fragments)
    if (state.kind !== 'open' && message === place.message && overlaps(covered, place.span))
      return { kind: state.kind, fragment: id }
  return { kind: 'shown' }
}

/** Widens a span by up to `reach` characters on each side. Splits no surrogate pair. */
export function widened(text: string, { start, end }: Span, reach: number): Span {
  const from = Math.max(0, start - reach)
  const to = Math.min(text.length, end + reach)
  return span(splits(text, from) ? from + 1 : from, splits(text, to) ? to - 1 : to)
}

const splits = (text: string, at: number): boolean => at > 0 && at < text.length && (text.codePointAt(at - 1) ?? 0) > 0xffff

const keyOf = ({ message, span: { start, end } }: TextPlace): string => `${message}:${start}:${end}`

/** The hits of all searches in a conversation. Text that is found again keeps its first id. */
export class SearchLog {
  readonly #byPlace = new Map<string, FoundPlace>()
  readonly #byId = new Map<string, FoundPlace>()

  constructor(private readonly newId: () => SearchId) {}

  /** All hits so far, oldest first. */
  get found(): readonly FoundPlace[] {
    return [...this.#byId.values()]
  }

  /** Adds a hit that already has an id. */
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
  /** The most hits to return. Default 10. `total` counts the rest. */
  readonly maxResults?: number
  /** How many characters of text each excerpt has on each side of the hit. Default 200. */
  readonly contextSize?: number
}

export interface SearchResult {
  readonly hits: readonly Hit[]
  /** The number of all occurrences, also those beyond `maxResults`. */
  readonly total: number
  /** Occurrences when case is ignored. Counted only when `total` is 0; in all other cases 0. */
  readonly ignoringCase: number
  /** Occurrences in messages of any role. Counted only when `total` is 0 and the search had one role; in all other cases 0. */
  readonly elsewhere: number
}
