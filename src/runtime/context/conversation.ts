/** A conversation: its original messages, its fragments, and the text that the model sees in place of each hidden fragment. */
import type { ChatMessage, Edit } from '../chat/message.js'
import type { Contract } from '../core/contract.js'
import { invariant, KvfoldError } from '../core/errors.js'
import type { ConversationId, FragmentId } from '../core/ids.js'
import { contains, length, lowerBound, overlaps, span, type Span } from '../core/span.js'
import { atOnce, type Steps } from '../core/turns.js'
import { cloned } from '../core/written-json.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { apportion, piecesOf, type Hidden, type Scope, between, type Stretch } from './stretch.js'
import {
  byMessage,
  editOf,
  inOrder,
  isForgotten,
  keepsTraces,
  omissionEdit,
  priceRemark,
  several,
  tooCostly,
  wholeOmission,
  IdMint,
} from './fragment.js'
import type { CostlyFolds, FoldOptions, Fragment, FragmentState, Omission, Price } from './fragment.js'
import { type Embed, PassageVectors } from './meaning.js'
import { listed, quoted, refuse, type Refusal, type Result } from './refusal.js'
import { countIgnoringCase, found, SearchLog, standingOf, widened } from './search.js'
import type { FoundPlace, Hit, SearchOptions, SearchResult } from './search.js'
import type { Summarize } from './summary.js'

/**
 * Widens a character span of a message's original content, so that both ends lie on token borders. Same as `Engine.snap`, without its
 * `tools` argument.
 */
export type Snap = (messages: readonly ChatMessage[], message: number, chars: Span) => Span

/** The functions of an engine that a conversation uses. `portsOf` makes them from an engine. */
export interface ConversationPorts {
  /** Widens fragments to token borders. Default: fragments may begin and end at any character. */
  readonly snap?: Snap
  /** Lets the model write a summary. Default: `summarize` is refused. */
  readonly summarize?: Summarize
  /**
   * Counts the tokens of the messages under the edits. The count covers at least the messages up to index `message`. It may leave out a
   * last step that still waits for tool results. Returns null when the engine cannot count them now. Default: folds have no price.
   */
  readonly count?: (messages: readonly ChatMessage[], message: number, edits: readonly Edit[]) => number | null
  /** Whether `count` only estimates. Default false. */
  readonly estimates?: boolean
  /** Makes embedding vectors for searches by meaning. Default: searches find only exact text. */
  readonly embed?: Embed
  /**
   * Whether a fold that saves no tokens is refused. An operation's own `costly` argument overrides this; a fold with `forget` ignores it.
   * Default `allow`.
   */
  readonly costlyFolds?: CostlyFolds
}

export interface FragmentOptions {
  readonly startMarker: string
  readonly endMarker: string
  /** How many fragments to make. At least 1. Default 5. */
  readonly numFragments?: number
  /** Only messages of this role are searched for the markers. Default `user`. */
  readonly role?: Scope
}

/** The whole conversation as plain data, for saving and for `Conversation.of`. */
export interface ConversationState {
  readonly id: ConversationId
  readonly messages: readonly ChatMessage[]
  readonly fragments: readonly Fragment[]
  readonly searches: readonly FoundPlace[]
  /** How many candidate ids the conversation has computed (`IdMint.count`). A restored conversation continues from there. */
  readonly ids: number
  /** What is hidden beside message contents: whole messages, reasoning, inputs of tool calls. Default: none. */
  readonly omissions?: readonly Omission[]
}

const byPlace = (a: Edit, b: Edit): number => a.message - b.message || a.span.start - b.span.start || a.span.end - b.span.end

/**
 * A conversation that only grows: messages are added, never removed or changed. Operations only change the text that the model sees in
 * place of a span, so `restore` can undo a fold or a summary. A refused operation leaves the conversation unchanged.
 * Ids and edits are deterministic: the same messages and operations give the same ones.
 */
export class Conversation {
  readonly #messages: ChatMessage[] = []
  /** The fragments, sorted by message, then by start in the message. */
  #fragments: readonly Fragment[] = []
  /** The omissions, sorted by message. */
  #omissions: readonly Omission[] = []
  readonly #mint = new IdMint()
  readonly #searches = new SearchLog(() => this.#mint.search())

  readonly #vectors: PassageVectors | null

  constructor(
    readonly id: ConversationId,
    private readonly ports: ConversationPorts = {},
  ) {
    this.#vectors = ports.embed === undefined ? null : new PassageVectors(ports.embed)
  }

  /** Makes a conversation from a saved state. The messages are not copied. */
  static of(
    { id, messages, fragments, searches, ids, omissions = [] }: ConversationState,
    ports: ConversationPorts = {},
  ): Conversation {
    const conversation = new Conversation(id, ports)
    for (const message of messages) conversation.add(message)
    conversation.#fragments = fragments
    conversation.#omissions = omissions
    for (const found of searches) conversation.#searches.put(found)
    conversation.#mint.resume(
      ids,
      [...fragments, ...searches, ...omissions].map((each) => each.id),
    )
    return conversation
  }

  /** All messages, with their original contents. */
  get messages(): readonly ChatMessage[] {
    return this.#messages
  }

  /** The fragments, sorted by message, then by start in the message. */
  get fragments(): readonly Fragment[] {
    return this.#fragments
  }

  /** What is hidden beside message contents (whole messages, reasoning, inputs of tool calls), sorted by message. */
  get omissions(): readonly Omission[] {
    return this.#omissions
  }

  /** Indexes of the messages that are not shown at all. */
  get omitted(): ReadonlySet<number> {
    return new Set(this.#omissions.flatMap(({ message, omits }) => (omits.part === 'message' ? [message] : [])))
  }

  /**
   * Returns one edit for each hidden fragment and each omission. The edits are disjoint, sorted by message, then by start in the message.
   */
  edits(): readonly Edit[] {
    const hidden = this.#fragments.map(editOf).filter((edit) => edit !== null)
    if (this.#omissions.length === 0) return hidden
    return [...hidden, ...this.#omissions.map(omissionEdit)].sort(byPlace)
  }

  /** Adds a message at the end and returns its index. */
  add(message: ChatMessage): number {
    this.#mint.absorb(message)
    return this.#messages.push(message) - 1
  }

  /**
   * Returns the message's content as the model sees it, edits applied. @throws KvfoldError engine/bad-request when there is no such
   * message
   */
  shown(message: number): string {
    return shownIn(
      this.#message(message).content,
      this.edits().filter((edit) => edit.message === message),
    )
  }

  /**
   * Returns the message's content with only the text of forget folds hidden. @throws KvfoldError engine/bad-request when there is no such
   * message
   */
  remembered(message: number): string {
    return shownIn(
      this.#message(message).content,
      this.edits().filter((edit) => edit.message === message && edit.forget === true),
    )
  }

  /** Returns the contents of all messages as the model sees them, edits applied. */
  shownAll(): readonly string[] {
    const edits = byMessage(this.edits())
    return this.#messages.map(({ content }, index) => shownIn(content, edits.get(index) ?? []))
  }

  /** Returns the fragment's original text, whatever its state. */
  text({ message, span: { start, end } }: Pick<Fragment, 'message' | 'span'>): string {
    return this.#message(message).content.slice(start, end)
  }

  /** Returns how many tokens the fragment's text takes in the prompt; null when the engine cannot count now. */
  tokensOf(fragment: Fragment): number | null {
    const { message, span: chars, id } = fragment
    const rest = this.edits().filter((edit) => edit.message !== message || !overlaps(edit.span, chars))
    const shown = this.ports.count?.(this.#messages, message, rest) ?? null
    const nothing = editOf({ id, message, span: chars, state: { kind: 'folded', marker: '' } })!
    const hidden = shown === null ? null : this.ports.count?.(this.#messages, message, [...rest, nothing].sort(byPlace))
    return shown === null || hidden == null ? null : Math.max(0, shown - hidden)
  }

  /**
   * Cuts the text from `startMarker` to `endMarker`, both included, into fragments. The prompt does not change. If the markers are in
   * different messages, the fragments are divided among the messages by length; each message gets at least one. Refuses when the text
   * overlaps an existing fragment.
   */
  fragment(options: FragmentOptions): Result<{ fragments: readonly Fragment[] }> {
    return atOnce(this.fragmenting(options))
  }

  /** Like `fragment`, but a generator that yields to the event loop. Other operations may run in between. */
  *fragmenting({
    startMarker,
    endMarker,
    numFragments = 5,
    role = 'user',
  }: FragmentOptions): Steps<Result<{ fragments: readonly Fragment[] }>> {
    const found = between(this.#messages, { startMarker, endMarker, scope: role }, this.omitted)
    return found.ok ? yield* this.#cutting(found.stretches, numFragments) : found
  }

  /**
   * Cuts spans of original text into `pieces` fragments of about equal length. The spans must be in order and disjoint. Each span gives
   * at least one fragment.
   */
  cut(stretches: readonly Stretch[], pieces: number): Result<{ fragments: readonly Fragment[] }> {
    return atOnce(this.#cutting(stretches, pieces))
  }

  *#cutting(stretches: readonly Stretch[], pieces: number): Steps<Result<{ fragments: readonly Fragment[] }>> {
    if (!isCount(pieces)) return refuse('tool/bad-arguments', 'The number of fragments must be a whole number from 1.')
    if (stretches.length === 0) return refuse('tool/bad-arguments', 'There is nothing to cut.')
    for (const { message, span: chars } of stretches)
      if (chars.start >= chars.end || !contains(span(0, this.#message(message).content.length), chars))
        return refuse(
          'tool/bad-arguments',
          `[${chars.start}, ${chars.end}) is not a span of characters in message ${message + 1}.`,
        )
    const taken = this.#taken(stretches)
    if (taken !== null) return taken
    const shares = yield* apportion(
      pieces,
      stretches.map((stretch) => length(stretch.span)),
    )
    const cut: Stretch[] = []
    for (const [index, { message, span: chars }] of stretches.entries()) {
      yield
      const snap = (inner: Span) => this.ports.snap?.(this.#messages, message, inner) ?? inner
      const spans = yield* piecesOf(this.#message(message).content, chars, shares[index] ?? 1, snap)
      cut.push(...spans.map((piece) => ({ message, span: piece })))
    }
    const takenAtBorders = this.#taken(cut)
    if (takenAtBorders !== null) return takenAtBorders
    if (cut.some((piece, index) => isAfter(cut[index - 1], piece)))
      return refuse('tool/bad-arguments', 'The stretches are out of order, or share a token.')
    const fragments = cut.map(({ message, span: chars }): Fragment => ({
      id: this.#mint.fragment(),
      message,
      span: chars,
      state: { kind: 'open' },
    }))
    this.#fragments = [...this.#fragments, ...fragments].sort(inOrder)
    return { ok: true, fragments }
  }

  /**
   * Hides an open or summarised fragment behind a marker. The fragment's `price` then has the tokens before and after the fold; with
   * `priced: false` there is none.
   * With `forget`, a folded fragment is accepted too, and the cache forgets its text. A forget fold that saves no tokens is refused only
   * if the caller passes `costly: 'refuse'`.
   */
  fold(id: string, how: Contract | FoldOptions = {}, costly?: CostlyFolds): Result<{ fragment: Fragment }> {
    const { contract, forget = false, priced = true } = typeof how === 'string' ? { contract: how } : how
    const fragment = this.#find(id)
    if (!('state' in fragment)) return fragment
    if (forget && contract !== undefined && contract !== 'exact') return keepsTraces(contract)
    if (fragment.state.kind === 'folded' && (!forget || fragment.state.forget === true))
      return refuse('tool/refused', `${id} is already folded. restore_fragment shows it again.`)
    if (forget) this.#vectors?.clear()
    const state = { kind: 'folded', ...(forget ? { forget } : {}) } as const
    const kept = forget ? 'exact' : contract
    if (!priced) return { ok: true, fragment: this.#set(fragment.id, state, kept) }
    // The purpose of a forget is privacy, not saving tokens. So the conversation's default for costly folds does not apply.
    return this.#hide(fragment, state, kept, forget ? (costly ?? 'allow') : costly)
  }

  /**
   * Hides each given span behind its own marker and makes the span a fragment. If the span already is a fragment, that fragment gets the
   * new marker. No price is computed. Refuses when a span overlaps another fragment, or a forgotten one.
   */
  replace(
    places: readonly (Stretch & { readonly marker: string })[],
    contract?: Contract,
  ): Result<{ fragments: readonly Fragment[] }> {
    const known = places.map(({ message, span: chars }) => {
      const wide = this.ports.snap?.(this.#messages, message, chars) ?? chars
      return this.#fragments.find(
        (one) => one.message === message && one.span.start === wide.start && one.span.end === wide.end && !isForgotten(one),
      )
    })
    const fresh = places.filter((_, at) => known[at] === undefined)
    const cut = fresh.length === 0 ? { ok: true as const, fragments: [] } : this.cut(fresh, fresh.length)
    if (!cut.ok) return cut
    const made = [...cut.fragments]
    const fragments = places.map(({ marker }, at) => {
      const { id, message, span: chars } = known[at] ?? made.shift()!
      const ends = this.#message(message).content.slice(chars.start, chars.end).endsWith('\n') ? '\n' : ''
      return this.#set(id, { kind: 'folded', marker: marker + ends }, contract)
    })
    return { ok: true, fragments }
  }

  /**
   * Hides what lies beside message contents: whole messages, reasoning, or inputs of tool calls. What is hidden already is skipped. Returns
   * the omissions that this call made.
   */
  omit(places: readonly Pick<Omission, 'message' | 'omits'>[], contract?: Contract): readonly Omission[] {
    const made: Omission[] = []
    for (const { message, omits } of places) {
      this.#message(message)
      const known = [...this.#omissions, ...made].filter((one) => one.message === message && one.omits.part === omits.part)
      const emptied = new Set(known.flatMap((one) => (one.omits.part === 'inputs' ? one.omits.calls : [])))
      const rest = omits.part === 'inputs' ? { ...omits, calls: omits.calls.filter((call) => !emptied.has(call)) } : omits
      if (rest.part === 'inputs' ? rest.calls.length === 0 : known.length > 0) continue
      made.push({ id: this.#mint.fragment(), message, omits: rest, ...(contract === undefined ? {} : { contract }) })
    }
    if (made.length > 0) this.#omissions = [...this.#omissions, ...made].sort((a, b) => a.message - b.message)
    return made
  }

  /** Removes an omission, so that the model sees its target again. Returns false when there is no omission with this id. */
  readmit(id: string): boolean {
    const left = this.#omissions.filter((one) => one.id !== id)
    if (left.length === this.#omissions.length) return false
    this.#omissions = left
    return true
  }

  /** Shows the original text of a folded or summarised fragment again. Refuses when an omission hides its whole message. */
  restore(id: string): Result<{ fragment: Fragment }> {
    const fragment = this.#find(id)
    if (!('state' in fragment)) return fragment
    const { message } = fragment
    const omission = wholeOmission(this.#omissions, message)
    if (omission !== undefined)
      return refuse(
        'tool/refused',
        `${id} is in message ${message + 1}, which is hidden as a whole (${omission.id}). search_context and get_search_detail show its text.`,
      )
    if (fragment.state.kind === 'open')
      return refuse('tool/refused', `${id} is open: its text is already shown. There is nothing to restore.`)
    return { ok: true, fragment: this.#set(fragment.id, { kind: 'open' }) }
  }

  /**
   * Lets the model write a summary of the fragment's original text. The summary then stands in the text's place. The fragment may be
   * open, folded or summarised. `ledger` has the cost. Other operations may run while the model writes.
   */
  async summarize(
    id: string,
    focus: string,
    signal?: AbortSignal,
    costly?: CostlyFolds,
  ): Promise<Result<{ fragment: Fragment; ledger: readonly LedgerEntry[] }>> {
    const fragment = this.#find(id)
    if (!('state' in fragment)) return fragment
    if (isForgotten(fragment))
      return refuse('tool/refused', `${id} was forgotten, so no model reads it. restore_fragment shows it again.`)
    if (focus.trim() === '') return refuse('tool/bad-arguments', 'focus is empty. Say in a few words what the summary must keep.')
    if (this.ports.summarize === undefined)
      return refuse('tool/refused', 'No model is here to write summaries. Use fold_fragment instead.')
    const written = await this.ports.summarize(this.text(fragment), focus.trim(), signal)
    if (!written.ok) return written
    const state: FragmentState = { kind: 'summarised', summary: written.summary, focus: focus.trim() }
    const { ledger } = written
    const now = this.#fragments.find((one) => one.id === fragment.id)
    if (now === undefined || isForgotten(now))
      return {
        ...refuse('tool/refused', `${id} was ${now === undefined ? 'removed' : 'forgotten'} while the summary was written.`),
        ledger,
      }
    return { ...this.#hide(now, state, undefined, costly), ledger }
  }

  /**
   * Replaces the spans that one caller hides: `own` names the fragments of that caller's last call, `hidden` the spans to hide from here
   * on. A span that an own fragment hides already keeps that fragment's id. Other own fragments are removed, and their text is shown
   * again. Forgotten fragments stay.
   * `hidden` must be in order and disjoint. A span that overlaps a fragment not in `own` is skipped. Fragments made here have no price:
   * the caller compares the tokens of all spans together.
   */
  rearrange(own: readonly FragmentId[], hidden: readonly Hidden[]): readonly Fragment[] {
    const isMine = (one: Fragment) => own.includes(one.id) && !isForgotten(one)
    const others = this.#fragments.filter((one) => !isMine(one))
    const mine = this.#fragments.filter(isMine)
    const free = hidden.filter(
      ({ message, span: chars }) => !others.some((one) => one.message === message && overlaps(one.span, chars)),
    )
    const made = free.map(({ message, span: chars, summary }): Fragment => {
      invariant(contains(span(0, this.#message(message).content.length), chars), `The span is not inside message ${message}.`)
      const same = (one: Fragment) =>
        one.message === message && one.span.start === chars.start && one.span.end === chars.end && one.state.kind !== 'open'
      const state: FragmentState = summary === undefined ? { kind: 'folded' } : { kind: 'summarised', summary, focus: '' }
      return { id: mine.find(same)?.id ?? this.#mint.fragment(), message, span: chars, state }
    })
    this.#fragments = [...others, ...made].sort(inOrder)
    return made
  }

  /** Finds exact text in the original messages, hidden text included. Does not change the prompt. Each hit gets an id that stays valid. */
  search({ query, role = 'user', maxResults = 10, contextSize = 200 }: SearchOptions): Result<SearchResult> {
    if (query === '') return refuse('tool/bad-arguments', 'query is empty. Give the exact text to look for.')
    if (!isCount(maxResults) || !isCount(contextSize))
      return refuse('tool/bad-arguments', 'max_results and context_size must be whole numbers from 1.')
    const { places, total } = found(this.#messages, query, role, maxResults)
    const hits = places.map((place) => this.#hit({ id: this.#searches.idOf(place), ...place }, contextSize))
    const isNone = total === 0
    return {
      ok: true,
      hits,
      total,
      ignoringCase: isNone ? countIgnoringCase(this.#messages, query, role) : 0,
      elsewhere: isNone && role !== 'all' ? found(this.#messages, query, 'all').total : 0,
    }
  }

  /**
   * Searches folded and summarised text by meaning: returns the passages nearest to the query, nearest first. A passage has at most 400
   * characters. Each hit gets an id that stays valid; the prompt does not change.
   * The first search embeds all hidden passages, later searches only newly hidden ones. Forgotten text is never found. Returns none
   * without an embedding model (`ConversationPorts.embed`).
   * @param options `maxResults`: default 3
   * @throws what the embedding model throws
   */
  async nearest(
    { query, role = 'user', maxResults = 3 }: Omit<SearchOptions, 'contextSize'>,
    signal?: AbortSignal,
  ): Promise<readonly Hit[]> {
    if (this.#vectors === null || query.trim() === '' || !isCount(maxResults)) return []
    const hidden = { messages: this.#messages, fragments: this.#fragments }
    const places = await this.#vectors.nearest(hidden, { query, scope: role, count: maxResults }, signal)
    return places.map((place) => this.#hit({ id: this.#searches.idOf(place), ...place }, 0))
  }

  /** Returns an earlier search hit with up to `extendedContext` characters (default 500) on each side. */
  detail(id: string, extendedContext = 500): Result<{ hit: Hit }> {
    if (!isCount(extendedContext)) return refuse('tool/bad-arguments', 'extended_context must be a whole number from 1.')
    const found = this.#searches.get(id)
    if (found !== null) return { ok: true, hit: this.#hit(found, extendedContext) }
    if (this.#fragments.some((fragment) => fragment.id === id))
      return refuse('tool/unknown-id', `${id} is a fragment, not a search result. restore_fragment shows its text.`)
    const recent = this.#searches.found.slice(-10).map((one) => one.id)
    const known = recent.length === 0 ? 'There is none yet: call search_context first.' : `The latest are ${listed(recent)}.`
    return refuse('tool/unknown-id', `There is no search result ${quoted(id, 20)}. ${known}`)
  }

  /** The current state. Not a copy: valid only until the conversation next changes. */
  get state(): ConversationState {
    const { id, messages, fragments, omissions } = this
    const omitted = omissions.length === 0 ? {} : { omissions }
    return { id, messages, fragments, searches: this.#searches.found, ids: this.#mint.count, ...omitted }
  }

  /** Returns a copy of the state. */
  snapshot(): ConversationState {
    return cloned(this.state)
  }

  /** Returns a refusal when a fragment overlaps one of the given spans, else null. */
  #taken(stretches: readonly Stretch[]): Refusal | null {
    const there = [...new Set(stretches.flatMap((stretch) => this.#within(stretch)))]
    if (there.length === 0) return null
    const what = there.length === 1 ? 'there is a fragment' : 'there are fragments'
    return refuse(
      'tool/refused',
      `Between these markers ${what} already: ${several(there)}. Use fold_fragment, summarize_fragment or restore_fragment on them, or choose markers outside them.`,
    )
  }

  /** Returns the fragments that overlap the span, in order. */
  #within({ message, span: chars }: Stretch): readonly Fragment[] {
    const all = this.#fragments
    const endsBefore = (one: Fragment) => one.message < message || (one.message === message && one.span.end <= chars.start)
    const first = lowerBound(all.length, (at) => endsBefore(all[at]!))
    const beginsBefore = (one: Fragment) => one.message < message || (one.message === message && one.span.start < chars.end)
    const end = lowerBound(all.length, (at) => beginsBefore(all[at]!))
    return all.slice(first, end).filter((one) => overlaps(chars, one.span))
  }

  #find(id: string): Fragment | Refusal {
    const fragment = this.#fragments.find((one) => one.id === id)
    if (fragment !== undefined) return fragment
    const known =
      this.#fragments.length === 0
        ? 'There are no fragments yet: call fragment_context first.'
        : `Fragments: ${several(this.#fragments)}.`
    return this.#searches.get(id) !== null
      ? refuse('tool/unknown-id', `${id} is a search result, not a fragment: get_search_detail shows more of it. ${known}`)
      : refuse('tool/unknown-id', `There is no fragment ${quoted(id, 20)}. ${known}`)
  }

  #hide(
    old: Fragment,
    state: FragmentState,
    contract?: Contract,
    costly = this.ports.costlyFolds ?? 'allow',
  ): Result<{ fragment: Fragment }> {
    const price = this.#price(old, { ...unpriced(old), state })
    const remark = priceRemark({ state, ...(price === null ? {} : { price }) })
    if (remark !== null && costly === 'refuse') {
      // The fragment is hidden already, perhaps behind an even longer marker. A marker that is longer than the text may still replace
      // that one.
      const now = old.state.kind === 'open' ? null : this.#count(old, old)
      if (now === null || price === null || price.hidden >= now) return tooCostly(old.id, remark)
    }
    return { ok: true, fragment: this.#set(old.id, state, contract, price) }
  }

  #price(old: Fragment, hidden: Fragment): Price | null {
    const open = this.#count(old, { ...old, state: { kind: 'open' } })
    const shown = open === null ? null : this.#count(old, hidden)
    return open === null || shown === null
      ? null
      : { open, hidden: shown, ...(this.ports.estimates === true ? { about: true } : {}) }
  }

  /** Counts the conversation's tokens with the fragment `of` replaced by `one`. Returns null when the engine cannot count. */
  #count(of: Fragment, one: Fragment): number | null {
    const edits = this.#fragments.map((other) => editOf(other.id === of.id ? one : other)).filter((edit) => edit !== null)
    return this.ports.count?.(this.#messages, of.message, [...edits, ...this.#omissions.map(omissionEdit)]) ?? null
  }

  #set(id: FragmentId, state: FragmentState, contract?: Contract, price: Price | null = null): Fragment {
    const old = this.#fragments.find((fragment) => fragment.id === id)
    invariant(old !== undefined, `Fragment ${id} is gone.`)
    const { message, span: chars } = old
    const fragment: Fragment = {
      id,
      message,
      span: chars,
      state,
      ...(contract === undefined ? {} : { contract }),
      ...(price === null ? {} : { price }),
    }
    this.#fragments = this.#fragments.map((other) => (other.id === id ? fragment : other))
    return fragment
  }

  #hit(found: FoundPlace, reach: number): Hit {
    const { role, content } = this.#message(found.message)
    const forgotten = this.#fragments.filter((one) => one.message === found.message && isForgotten(one))
    const excerpt = forgotten.reduce((around, one) => beside(around, found.span, one.span), widened(content, found.span, reach))
    return { ...found, role, standing: standingOf(this.#fragments, this.#omissions, found), excerpt }
  }

  #message(index: number): ChatMessage {
    const message = this.#messages[index]
    if (message === undefined)
      throw new KvfoldError('engine/bad-request', `There is no message ${index}; the conversation has ${this.#messages.length}.`)
    return message
  }
}

/** Returns a message's content with its edits applied. The edits must be in order. */
function shownIn(content: string, edits: readonly Edit[]): string {
  if (edits.some(({ omits }) => omits?.part === 'message')) return ''
  let [text, at] = ['', 0]
  for (const { span: hidden, replacement } of edits) {
    text += content.slice(at, hidden.start) + replacement
    at = hidden.end
  }
  return text + content.slice(at)
}

/**
 * Cuts the excerpt span `around` at the forgotten span, and returns the side that has the hit. If the hit itself is forgotten, returns
 * the text before it.
 */
function beside({ start, end }: Span, hit: Span, forgotten: Span): Span {
  if (forgotten.end <= hit.start) return span(Math.max(start, forgotten.end), end)
  return span(start, Math.min(end, Math.max(start, forgotten.start)))
}

/** Whether `before` ends after `stretch` begins, that is: the two are out of order or overlap. */
const isAfter = (before: Stretch | undefined, stretch: Stretch): boolean =>
  before !== undefined &&
  (before.message > stretch.message || (before.message === stretch.message && before.span.end > stretch.span.start))

const isCount = (value: number): boolean => Number.isSafeInteger(value) && value >= 1

const unpriced = ({ price: _, ...fragment }: Fragment): Fragment => fragment
