/** Fragments: their ids, the marker text that stands for a hidden one, and the price of hiding one. */
import type { Edit, ChatMessage, OmittedPart } from '../chat/message.js'
import type { Contract } from '../core/contract.js'
import { type FragmentId, fragmentId, searchId, type SearchId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import { listed, type Refusal, refuse } from './refusal.js'
import { invariant } from '../core/errors.js'
import { mix } from '../core/random.js'

/**
 * What hiding one fragment costs: the tokens of all messages with the fragment open and with it hidden. Tool definitions are not counted.
 */
export interface Price {
  /** Tokens with the fragment's original text. */
  readonly open: number
  /** Tokens with the marker or summary in its place. */
  readonly hidden: number
  /** True when the numbers are estimates: the vocabulary is on another server. Absent when the tokens were counted. */
  readonly about?: true
}

/**
 * `open`: the model sees the original text. `folded`: the model sees a marker; `marker` overrides the default marker text. `summarised`:
 * the model sees a marker that contains the summary.
 */
export type FragmentState =
  | { readonly kind: 'open' }
  /** `forget`: the cache must forget the fragment's text. */
  | { readonly kind: 'folded'; readonly marker?: string; readonly forget?: true }
  | { readonly kind: 'summarised'; readonly summary: string; readonly focus: string }

/** A span of one message's content that has an id. The fragments of a conversation are disjoint. Only `rearrange` removes fragments. */
export interface Fragment {
  readonly id: FragmentId
  /** Index of the message, from 0. */
  readonly message: number
  /** In characters (UTF-16 units) of the message's original content. Both ends are token borders. Never empty. */
  readonly span: Span
  readonly state: FragmentState
  /** The cache contract for hiding the fragment. Absent: the contract of the step applies. */
  readonly contract?: Contract
  /**
   * The price when the fragment was hidden. Absent when the fragment is open, when the engine could not count, and for folds without a
   * price: `replace`, `rearrange`, and folds by the server's policies.
   */
  readonly price?: Price
}

/** Whether the fragment is folded with `forget`, so that the cache must drop its text. No other kind of fold may replace a forget fold. */
export const isForgotten = ({ state }: Pick<Fragment, 'state'>): boolean => state.kind === 'folded' && state.forget === true

/** Returns the marker that the model sees instead of the fragment's text, or null when the fragment is open. */
function markerOf({ id, span, state }: Fragment): string | null {
  switch (state.kind) {
    case 'open':
      return null
    case 'folded':
      return state.marker ?? `[folded ${id}: ${length(span)} characters, restore_fragment shows them]`
    case 'summarised':
      return `[summary of ${id}, ${length(span)} characters, restore_fragment shows them: ${state.summary}]`
  }
}

/** Returns the edit that hides the fragment, or null when it is open. */
export function editOf(fragment: Fragment): Edit | null {
  const replacement = markerOf(fragment)
  const { message, span, state, contract } = fragment
  if (replacement === null) return null
  const forgets = state.kind === 'folded' && state.forget === true
  return { message, span, replacement, ...(contract === undefined ? {} : { contract }), ...(forgets ? { forget: true } : {}) }
}

/**
 * Something hidden beside message content: a whole message, its reasoning, or inputs of its tool calls. `Conversation.readmit` shows it
 * again.
 */
export interface Omission {
  readonly id: FragmentId
  /** Index of the message, from 0. */
  readonly message: number
  readonly omits: OmittedPart
  /** The cache contract for this omission. Absent: the contract of the step applies. */
  readonly contract?: Contract
}

/** Returns the omission that hides the whole message; undefined when none does. */
export const wholeOmission = (omissions: readonly Omission[], message: number): Omission | undefined =>
  omissions.find((one) => one.message === message && one.omits.part === 'message')

/** Returns the edit that carries out an omission. */
export const omissionEdit = ({ message, omits, contract }: Omit<Omission, 'id'>): Edit => ({
  ...{ message, span: span(0, 0), replacement: '', omits },
  ...(contract === undefined ? {} : { contract }),
})

export interface FoldOptions {
  /** The cache contract for hiding the text. Default: the contract of the step. */
  readonly contract?: Contract
  /**
   * Whether the cache must forget the text. If so, the fold is `exact`, and no tier keeps a cell that holds the text or has attended to it.
   * The conversation itself keeps the text. Default false.
   */
  readonly forget?: boolean
  /** Whether to count the tokens before and after the fold. A fold without a price is never refused for its cost. Default true. */
  readonly priced?: boolean
}

/** Sorts fragments by message, then by start in the message. */
export const inOrder = (a: Fragment, b: Fragment): number => a.message - b.message || a.span.start - b.span.start

/** Groups items by their message index. Within a group they keep their order. */
export function byMessage<T extends { readonly message: number }>(things: readonly T[]): ReadonlyMap<number, readonly T[]> {
  const groups = new Map<number, T[]>()
  for (const thing of things) {
    const group = groups.get(thing.message)
    if (group === undefined) groups.set(thing.message, [thing])
    else group.push(thing)
  }
  return groups
}

/** A text for the model names at most this many fragments, then says how many more there are. */
const MOST = 40

/** Lists fragments in a text for the model, for example `f1a2b3 (folded) and f4c5d6 (open)`. */
export function several(fragments: readonly Fragment[]): string {
  const named = fragments
    .slice(0, MOST)
    .map(({ id, state }) => `${id} (${state.kind === 'summarised' ? 'summarized' : state.kind})`)
  const rest = fragments.length - named.length
  return listed(rest > 0 ? [...named, `${rest} more`] : named)
}

// The price of a fold: the tokens of the text against those of the marker that replaces it.

/**
 * What to do when a marker takes at least as many tokens as the text. `refuse`: the fold is refused. `allow`: the fold happens, and the
 * tool result says that it saves no tokens.
 */
export type CostlyFolds = 'refuse' | 'allow'

/** Returns the tokens that hiding saves; negative when hiding costs tokens. */
export const savedBy = ({ open, hidden }: Price): number => open - hidden

/** Returns a remark for the model when hiding the fragment saves no tokens. Returns null when it saves some or has no price. */
export function priceRemark({ state, price }: Pick<Fragment, 'state' | 'price'>): string | null {
  if (price === undefined || savedBy(price) > 0) return null
  const { open, hidden } = price
  const about = price.about === true ? 'about ' : ''
  const what = state.kind === 'summarised' ? 'summary' : 'marker'
  const more = hidden - open
  const by = more === 0 ? 'as many tokens as' : `${more} ${more === 1 ? 'token' : 'tokens'} more than`
  return `This does not pay: the ${what} takes ${about}${by} the text (${about}${open} tokens shown with the text, ${about}${hidden} with the ${what}).`
}

/** Makes the refusal of a fold or summary that saves no tokens. `remark` is the sentence of `priceRemark`. */
export const tooCostly = (id: string, remark: string): Refusal =>
  refuse(
    'tool/costs-more',
    `${id} stays as it is. ${remark} Hide a longer fragment, or several beside each other as one; the operator may allow it all the same.`,
  )

/** Makes the refusal of a `forget` fold under a contract other than `exact`. */
export const keepsTraces = (contract: Contract): Refusal =>
  refuse(
    'tool/bad-arguments',
    `forget needs contract exact: under ${contract} the text after the fold keeps traces of the hidden text. Leave contract out.`,
  )

// Ids: deterministic, easy to tell apart, unique in their conversation.

/** The number of different ids with one prefix: five hexadecimal digits. */
const ROOM = 16 ** 5

const DIGITS = Array.from({ length: 16 }, (_, digit) => digit.toString(16))

/**
 * How many candidates to try for one id. When few fitting ids are left, still one candidate in twenty shares no pair with an id in use.
 * With 512 tries one is found; with 64 tries it was sometimes missed.
 */
const TRIES = 512

/**
 * Makes ids. An id is a hash of the conversation's content so far and a counter: the same run gives the same ids, and a model cannot
 * guess the next id from the last (spec: acm-tools, ids).
 * Models copy an id in pieces, and mix up ids that share a piece. So two ids share no character pair as long as enough ids are left.
 */
export class IdMint {
  readonly #used = new Set<string>()
  /** All character pairs of ids in use. An id has three: its characters 1-2, 3-4 and 5-6. */
  readonly #pairs = new Set<string>()
  /** How many of the 256 pairs of hexadecimal digits are not in use. */
  #unused = DIGITS.length ** 2
  #content = 0x811c9dc5
  /** Messages that are not hashed yet. Most conversations never make an id, so hashing waits for the first one. */
  #waiting: ChatMessage[] = []
  #count = 0

  /** Adds a message to the content that the next ids depend on. */
  absorb(message: ChatMessage): void {
    this.#waiting.push(message)
  }

  fragment(): FragmentId {
    return fragmentId(this.#next('f'))
  }

  search(): SearchId {
    return searchId(this.#next('s'))
  }

  /** Continues after an earlier mint that had computed `count` candidates. `used` are the ids in use. */
  resume(count: number, used: readonly string[]): void {
    this.#count = count
    for (const id of used) this.#take(id)
  }

  /** How many candidates were computed so far, rejected ones included. */
  get count(): number {
    return this.#count
  }

  #hashed(): void {
    let hash = this.#content
    for (const { role, content } of this.#waiting)
      for (const text of [role, '\n', content, '\n'])
        for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193)
    this.#content = hash
    this.#waiting = []
  }

  #next(prefix: 'f' | 's'): string {
    this.#hashed()
    invariant(this.#used.size < ROOM, `All ${ROOM} ids of this conversation are used up.`)
    const least = this.#leastShared(prefix)
    let best: { readonly id: string; readonly shared: number } | null = null
    let tries = 0
    for (; best === null || (best.shared > least && tries < TRIES); tries++) {
      const id = prefix + (mix(this.#content ^ mix(this.#count++)) % ROOM).toString(16).padStart(5, '0')
      const shared = pairsOf(id).filter((pair) => this.#pairs.has(pair)).length
      if (!this.#used.has(id) && shared < (best?.shared ?? Infinity)) best = { id, shared }
    }
    // The loop stops early when no candidate can be better. The skipped tries still count, so later ids do not depend on the early stop.
    if (best.shared > 0) this.#count += Math.max(0, TRIES - tries)
    this.#take(best.id)
    return best.id
  }

  /** Returns the smallest number of pairs that a new id with this prefix must share with ids in use. */
  #leastShared(prefix: 'f' | 's'): number {
    const first = DIGITS.every((digit) => this.#pairs.has(prefix + digit)) ? 1 : 0
    return first + (this.#unused === 0 ? 2 : 0)
  }

  #take(id: string): void {
    this.#used.add(id)
    for (const pair of pairsOf(id)) {
      if (!this.#pairs.has(pair) && !pair.startsWith('s')) this.#unused--
      this.#pairs.add(pair)
    }
  }
}

const pairsOf = (id: string): string[] => [id.slice(0, 2), id.slice(2, 4), id.slice(4)]
