/** Owns what a fragment is, its id, and the text that stands in the place of a hidden one. */
import type { Edit, ChatMessage } from '../chat/message.js'
import type { Contract } from '../core/contract.js'
import { type FragmentId, fragmentId, searchId, type SearchId } from '../core/ids.js'
import { length, type Span } from '../core/span.js'
import { listed, type Refusal, refuse } from './refusal.js'
import { invariant } from '../core/errors.js'
import { mix } from '../core/random.js'

/** Tokens that the conversation's messages take, all else as it is; definitions of tools are not among them. */
export interface Price {
  /** With the fragment's text. */
  readonly open: number
  /** With what stands in its place. */
  readonly hidden: number
  /** Left out: counted. True: estimated, because another server has the vocabulary. */
  readonly about?: true
}

/** `open`: shown as it was written. `folded`: one marker is shown, `marker` where it is not the usual one. `summarised`: a marker that holds the summary is shown. */
export type FragmentState =
  | { readonly kind: 'open' }
  /** `forget`: the cache is to keep nothing of it either. */
  | { readonly kind: 'folded'; readonly marker?: string; readonly forget?: true }
  | { readonly kind: 'summarised'; readonly summary: string; readonly focus: string }

/** A stretch of one message's content that has an id. Fragments of a conversation are disjoint; they go away only where `rearrange` says so. */
export interface Fragment {
  readonly id: FragmentId
  /** Index of the message. */
  readonly message: number
  /** Characters (UTF-16 units) of the message's original content; both ends are token borders. Never empty. */
  readonly span: Span
  readonly state: FragmentState
  /** What hiding it asks of the cache; left out: what the step does that shows it. */
  readonly contract?: Contract
  /** Of a hidden one: what it came to when it was hidden; left out where nobody could count. */
  readonly price?: Price
}

/** What is shown instead of the fragment's text, null when the text itself is. */
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

/** The edit that hides the fragment, null when it is open. */
export function editOf(fragment: Fragment): Edit | null {
  const replacement = markerOf(fragment)
  const { message, span, state, contract } = fragment
  if (replacement === null) return null
  const forgets = state.kind === 'folded' && state.forget === true
  return { message, span, replacement, ...(contract === undefined ? {} : { contract }), ...(forgets ? { forget: true } : {}) }
}

/** What a fold asks of the cache. */
export interface FoldOptions {
  /** Default: what steps do anyway. */
  readonly contract?: Contract
  /**
   * The cache forgets the text: nothing that holds it or has read it stays, on the device, in memory or on disk, and the fold is `exact`. The
   * conversation keeps the text itself. Default false.
   */
  readonly forget?: boolean
}

/** Order of the conversation: message, then place in it. */
export const inOrder = (a: Fragment, b: Fragment): number => a.message - b.message || a.span.start - b.span.start

/** Fragments a message names before it only counts the rest. */
const MOST = 40

/** `f1a2b3 (folded) and f4c5d6 (open)`, as messages name fragments. */
export function several(fragments: readonly Fragment[]): string {
  const named = fragments
    .slice(0, MOST)
    .map(({ id, state }) => `${id} (${state.kind === 'summarised' ? 'summarized' : state.kind})`)
  const rest = fragments.length - named.length
  return listed(rest > 0 ? [...named, `${rest} more`] : named)
}

// Whether hiding a fragment pays: the tokens that are shown with its text and with what would stand there instead.

/** What is done about hiding that takes at least as many tokens as the text: it is refused, or done and said. */
export type CostlyFolds = 'refuse' | 'allow'

/** Tokens that hiding saves; negative when it costs some. */
export const savedBy = ({ open, hidden }: Price): number => open - hidden

/** One sentence when hiding the fragment does not pay, null when it does or nobody counted. */
export function priceRemark({ state, price }: Pick<Fragment, 'state' | 'price'>): string | null {
  if (price === undefined || savedBy(price) > 0) return null
  const { open, hidden } = price
  const about = price.about === true ? 'about ' : ''
  const what = state.kind === 'summarised' ? 'summary' : 'marker'
  const more = hidden - open
  const by = more === 0 ? 'as many tokens as' : `${more} ${more === 1 ? 'token' : 'tokens'} more than`
  return `This does not pay: the ${what} takes ${about}${by} the text (${about}${open} tokens shown with the text, ${about}${hidden} with the ${what}).`
}

/** What is answered instead of hiding a fragment that does not pay. */
export const tooCostly = (id: string, remark: string): Refusal =>
  refuse(
    'tool/costs-more',
    `${id} stays as it is. ${remark} Hide a longer fragment, or several beside each other as one; whoever runs this may allow it all the same.`,
  )

/** What is answered to a fold that is to forget under a contract that does not. */
export const keepsTraces = (contract: Contract): Refusal =>
  refuse(
    'tool/bad-arguments',
    `forget asks for contract exact: under ${contract} text behind the fold keeps traces of what is hidden. Leave contract out.`,
  )

// The making of ids: deterministic, unlike each other, unique in their conversation.

/** Five hexadecimal digits. */
const ROOM = 16 ** 5

/** Candidates for one id: so many that the last one that is unlike all others is found (one in twenty; 64 missed it now and then). */
const TRIES = 512

/**
 * Ids are a hash of the conversation's content so far and of a counter, so that the same run gives the same ids and no model
 * can guess the next one from the last (spec: acm-tools, ids). Models copy ids piece by piece and go astray where two of them share a piece: as
 * long as there are some left, an id shares no pair of characters with another.
 */
export class IdMint {
  readonly #used = new Set<string>()
  /** Of the ids in use: their first two characters, the next two and the last two. */
  readonly #pairs = new Set<string>()
  #content = 0x811c9dc5
  /** Messages that are not in the hash yet: most conversations make no id. */
  #waiting: ChatMessage[] = []
  #count = 0

  /** The next id comes behind this message. */
  absorb(message: ChatMessage): void {
    this.#waiting.push(message)
  }

  fragment(): FragmentId {
    return fragmentId(this.#next('f'))
  }

  search(): SearchId {
    return searchId(this.#next('s'))
  }

  /** Goes on where another one stopped that had made `count` ids, `used` among them. */
  resume(count: number, used: readonly string[]): void {
    this.#count = count
    for (const id of used) this.#take(id)
  }

  /** Ids made so far, those that were not taken included. */
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
    let best: { readonly id: string; readonly shared: number } | null = null
    for (let tries = 0; best === null || (best.shared > 0 && tries < TRIES); tries++) {
      const id = prefix + (mix(this.#content ^ mix(this.#count++)) % ROOM).toString(16).padStart(5, '0')
      const shared = pairsOf(id).filter((pair) => this.#pairs.has(pair)).length
      if (!this.#used.has(id) && shared < (best?.shared ?? Infinity)) best = { id, shared }
    }
    this.#take(best.id)
    return best.id
  }

  #take(id: string): void {
    this.#used.add(id)
    for (const pair of pairsOf(id)) this.#pairs.add(pair)
  }
}

const pairsOf = (id: string): string[] => [id.slice(0, 2), id.slice(2, 4), id.slice(4)]
