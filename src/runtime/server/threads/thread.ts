/** One conversation that the server keeps: its messages, which of them clients know, its folds, and its costs. */
import type { UFoldState } from '../../agents/u-fold/u-fold.js'
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import { Conversation, type ConversationPorts } from '../../context/conversation.js'
import type { Fragment } from '../../context/fragment.js'
import type { ContractChoice } from '../../core/contract.js'
import { invariant } from '../../core/errors.js'
import { definedFields } from '../../core/json.js'
import { conversationId, type Tenant } from '../../core/ids.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { movedEdits } from '../../store/port.js'
import type { StoredMessage, ThreadCard, ThreadEvent, ThreadHead, ThreadRecord, ThreadStore } from '../../store/port.js'
import { engineTenant } from './cache-salt.js'
import type { MatchCandidate, Chain } from './message-match.js'
import { dataSize, type PromptHead, RuntimeState, ShownSteps, View } from './thread-state.js'

/** State of a thread that is not in the store, as it was before a request. */
export type UnsavedState = Pick<RuntimeState, 'head' | 'toolOrder'> & Pick<Thread, 'looked'>

/** How much of the thread the store has. The next save writes the rest. */
interface StoredExtent {
  messages: number
  /** True: the store has outdated messages after the first `messages`; the next save replaces them. */
  others: boolean
  entries: number
  events: number
  /** True: the store has outdated events after the first `events`. */
  otherEvents: boolean
  fragments: unknown
  omissions: unknown
  ids: number
  head: ThreadHead
}

const NO_VARIABLES: PromptHead['variables'] = {}

/** By how many of its last messages a thread can be found. */
const ENDS = 4
/** The most characters of a title in lists. */
const TITLE = 80
/** Approximate bytes in memory: for each message of a ledger entry, and for the thread without its messages. */
const SIZES = { cost: 100, other: 4000 }

/**
 * A conversation that the server keeps. `view` has the messages that clients know, oldest first. Messages are only appended, except by
 * `rewrite`, when a client sends different ones. Changes stay in memory until `save`.
 */
export class Thread implements MatchCandidate {
  readonly tenant: Tenant
  /** Digest of the cache salt of its requests; undefined when they have none. */
  readonly salt: string | undefined
  readonly id: string
  readonly model: string
  readonly created: number
  readonly parent: string | null
  used: number
  contract: ContractChoice | null
  tools: readonly ToolDefinition[]
  /** True while a request owns the thread, until its answer is complete. Other requests for the thread then get a fork. */
  asked = false
  /** The helper state of `u-fold` and `resum`: the notes and folds chosen last. Null before the helper's first run in this process. */
  looked: UFoldState | null = null
  /** The error that makes the thread unusable: it was deleted, or a save failed. Null while it is usable. */
  gone: Error | null = null
  #held: readonly ChatMessage[]
  #conversation: Conversation
  #view: View
  #hidden: ReadonlySet<string>
  /** The title from `rename`; else null. */
  #name: string | null
  readonly #ledger: LedgerEntry[]
  #events: readonly ThreadEvent[]
  readonly #saved: StoredExtent
  #forgets = false
  #line: Promise<unknown> = Promise.resolve()
  #users = 0
  #size = SIZES.other
  /** Approximate bytes of the client's tool definitions. */
  #headSize = 0

  /**
   * @param record the thread as stored, or as it is about to be stored
   * @param from the thread that it was forked from; equal messages reuse its keys
   */
  constructor(
    record: ThreadRecord,
    private readonly portsOf: (thread: Thread) => ConversationPorts,
    readonly runtime = new RuntimeState(),
    from?: Thread,
  ) {
    const { tenant, salt, id, model, created, used, parent, contract, tools, held, messages, edits, ledger, events } = record
    this.tenant = tenant
    this.salt = salt
    this.id = id
    this.model = model
    this.created = created
    this.parent = parent
    this.used = used
    this.contract = contract
    this.tools = tools
    this.#headSize = dataSize(tools)
    this.#held = held
    this.#ledger = []
    this.account(ledger)
    this.#events = events
    this.#conversation = this.#conversationOf({ messages, edits })
    this.#view = View.of(messages, from === undefined ? undefined : from.#view)
    if (from !== undefined) this.runtime.toolOrder = from.runtime.toolOrder
    this.runtime.load(tools)
    this.#hidden = hiddenIn(events)
    this.#name = events.findLast(({ what }) => what === 'named')?.name ?? null
    const { fragments, omissions, ids } = this.conversation.state
    this.#saved = {
      messages: messages.length,
      others: false,
      entries: ledger.length,
      events: events.length,
      otherEvents: false,
      fragments,
      omissions,
      ids,
      head: this.head,
    }
  }

  /** The tenant name for the engine: with a client's `cache_salt` a digest of tenant and salt, otherwise the tenant (cache-salt.ts). */
  get engineTenant(): string {
    return engineTenant(this.tenant, this.salt)
  }

  get conversation(): Conversation {
    return this.#conversation
  }

  /** Keys of the messages that clients know (`messageKey`), oldest first. */
  get keys(): readonly string[] {
    return this.#view.keys
  }

  /** Keys of the last known messages. They find the thread when its client changed earlier messages. */
  get ends(): readonly string[] {
    return this.keys.slice(-ENDS)
  }

  /** The messages that clients know, oldest first. */
  get view(): readonly ChatMessage[] {
    return this.#view.messages
  }

  /** For each message that clients know: whether this server generated it. */
  get given(): readonly boolean[] {
    return this.#view.given
  }

  get chain(): Chain {
    return this.#view.chain
  }

  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** The last message that clients know, if it is a cut answer; else null. */
  get cut(): ChatMessage | null {
    return this.#view.cut
  }

  get events(): readonly ThreadEvent[] {
    return this.#events
  }

  /** Keys of all messages that the client ever removed or replaced. */
  get hidden(): ReadonlySet<string> {
    return this.#hidden
  }

  /**
   * Sets the client's tools. Tools keep the order in which the thread first saw them, and new ones come last. So a client that reorders its
   * tools keeps its cached prompt.
   */
  offer(tools: readonly ToolDefinition[]): void {
    const names = [...this.runtime.toolOrder, ...this.tools, ...tools].map((tool) =>
      typeof tool === 'string' ? tool : tool.name,
    )
    const places = new Map([...new Set(names)].map((name, place) => [name, place]))
    this.runtime.toolOrder = [...places.keys()]
    this.tools = tools.toSorted((one, other) => places.get(one.name)! - places.get(other.name)!)
    this.#headSize = dataSize(this.tools)
  }

  /** The prompts of the thread's latest answers, as far as this process knows them. */
  get shown(): ShownSteps {
    return this.runtime.shown
  }

  /**
   * Tools, template variables and adapters of the latest prompt. Before the first prompt in this process: the client's tools and no
   * variables.
   */
  get prompted(): PromptHead {
    return this.runtime.head ?? { tools: this.tools, variables: NO_VARIABLES }
  }

  set prompted(head: PromptHead) {
    this.runtime.head = head
  }

  /** True when no request or operation uses the thread, so it may be unloaded. */
  get idle(): boolean {
    return !this.asked && this.#users === 0
  }

  /** Approximate bytes in memory. */
  get size(): number {
    return this.#size + this.#view.size + this.#headSize
  }

  /** For each message of the conversation: whether clients know it, and in which form. */
  get seen(): readonly StoredMessage['seen'][] {
    return this.#view.seen
  }

  get head(): ThreadHead {
    const { tenant, salt, id, model, created, used, parent, contract, tools } = this
    return { tenant, ...definedFields({ salt }), id, model, created, used, parent, contract, tools, held: this.#held }
  }

  /** A snapshot of the thread; later changes do not alter it. */
  get record(): ThreadRecord {
    const { messages, fragments, searches, ids, omissions } = this.conversation.state
    return {
      ...this.head,
      messages: messages.map((message, at): StoredMessage => ({ message, seen: this.seen[at] ?? 'nothing' })),
      edits: { fragments, searches, ids, ...(omissions === undefined ? {} : { omissions }) },
      ledger: [...this.#ledger],
      events: this.#events,
    }
  }

  get card(): ThreadCard {
    const { messages, fragments } = this.conversation
    const first = this.#name ?? messages.find(({ role }) => role === 'user')?.content ?? ''
    const count = (kind: Fragment['state']['kind']) => fragments.filter(({ state }) => state.kind === kind).length
    const last = this.#ledger.findLast(({ kind }) => kind === 'answer')
    return {
      chain: this.chain.bytes,
      ends: this.ends,
      title: first
        .trimStart()
        .slice(0, 10 * TITLE)
        .replace(/\s+/gu, ' ')
        .trim()
        .slice(0, TITLE),
      messages: messages.length,
      fragments: { open: count('open'), folded: count('folded'), summarised: count('summarised') },
      last: last === undefined ? null : { shown: last.shown, reused: last.reused },
    }
  }

  /**
   * Returns the conversation index of a message that clients know. For an index past the last known message, returns the conversation's
   * length.
   * @param message index among the messages that clients know
   */
  placeOf(message: number): number {
    return this.#view.places[message] ?? this.conversation.messages.length
  }

  /**
   * Replaces the messages because the client sent different ones. Also forgets the earlier prompts and the helper state, which refer to
   * messages by index.
   */
  rewrite({ messages, edits, held }: Pick<ThreadRecord, 'messages' | 'edits' | 'held'>): void {
    const before = this.conversation.messages
    const isSame = ({ message, seen }: StoredMessage, at: number) => message === before[at] && seen === this.seen[at]
    const other = messages.findIndex((each, at) => !isSame(each, at))
    const from = other === -1 ? messages.length : other
    const saved = this.#saved
    if (from < saved.messages) Object.assign(saved, { messages: from, others: true })
    this.#conversation = this.#conversationOf({ messages, edits })
    this.#held = held
    this.#view = View.of(messages, this.#view)
    this.runtime.shown = new ShownSteps()
    this.looked = null
  }

  /** The state that a request may change and that no store has. */
  get unsaved(): UnsavedState {
    const { head, toolOrder } = this.runtime
    return { head, toolOrder, looked: this.looked }
  }

  /**
   * Restores messages, edits, events and tools of an earlier record.
   * @param unsaved the unsaved state of the same moment
   */
  revert(before: ThreadRecord, { head, toolOrder, looked } = this.unsaved): void {
    this.rewrite(before)
    this.tools = before.tools
    this.#headSize = dataSize(this.tools)
    Object.assign(this.runtime, { head, toolOrder })
    this.looked = looked
    const saved = this.#saved
    if (before.events.length < saved.events) Object.assign(saved, { events: before.events.length, otherEvents: true })
    this.#events = before.events
    this.#hidden = hiddenIn(this.#events)
  }

  /**
   * Shortens the cut answer at the thread's end to the text that its client has. If the answer took several steps, the last step's message
   * loses the same number of characters.
   * @param text null removes the cut answer, because the client sent its text as the beginning of the next answer
   */
  takeCut(text: string | null): void {
    const { messages, edits, held } = this.record
    const { message, seen } = messages.at(-1)!
    invariant(this.cut !== null && typeof seen !== 'string', 'a thread without a cut answer was to take one')
    if (text === seen.content) return
    const missing = seen.content.trim().length - (text ?? '').trim().length
    const content = message.content.trimEnd().slice(0, -missing || undefined)
    const taken = text === null ? [] : [{ message: { ...message, content }, seen: { ...seen, content: text } }]
    this.rewrite({
      messages: [...messages.slice(0, -1), ...taken],
      edits: movedEdits(edits, (at) => (at < messages.length - 1 ? at : undefined)),
      held,
    })
  }

  /** Hides these messages from clients. `summary` becomes the thread's last message, and clients know it in their place. */
  compact(hidden: ReadonlySet<number>, summary: ChatMessage): void {
    const { messages, edits } = this.record
    const left = messages.map((each, at): StoredMessage => (hidden.has(at) ? { ...each, seen: 'nothing' } : each))
    this.rewrite({ messages: [...left, { message: summary, seen: 'same' }], edits, held: [] })
  }

  /** Appends messages from the client. Held results of the server's own tools are inserted among them in the order of their calls. */
  extend(messages: readonly ChatMessage[]): void {
    const results = messages.findIndex(({ role }) => role !== 'tool')
    const split = results === -1 ? messages.length : results
    const waiting = [...this.#held]
    if (messages.length > 0) this.#held = []
    const calls = this.conversation.messages.findLast(({ role }) => role === 'assistant')?.toolCalls ?? []
    const rank = ({ toolCallId }: ChatMessage) => calls.findIndex(({ id }) => id === toolCallId)
    messages.forEach((message, at) => {
      while (waiting[0] !== undefined && (at >= split || rank(waiting[0]) < rank(message))) this.#add(waiting.shift()!, 'nothing')
      this.#add(message, 'same')
    })
    if (messages.length > 0) for (const held of waiting) this.#add(held, 'nothing')
  }

  /**
   * Records which messages of a turn clients know.
   * @param from how many messages the conversation had before the turn
   * @param seen the last assistant message as clients know it; null when the turn gave no answer, and clients know only its searches
   * @param held results of the server's own tools, which wait until the client sends the results of its own calls
   * @param isSearch whether clients see this call, and its result, as messages
   */
  answered(
    from: number,
    seen: ChatMessage | null,
    {
      held = this.#held,
      isSearch = () => false,
    }: { held?: readonly ChatMessage[]; isSearch?: (of: { name: string }) => boolean } = {},
  ): void {
    const { messages } = this.conversation
    const last = seen === null ? -1 : messages.findLastIndex(({ role }) => role === 'assistant')
    invariant(seen === null || last >= from, 'an answer was given that is not in the conversation')
    for (let at = this.seen.length; at < messages.length; at++) {
      const message = messages[at]!
      const calls = message.role === 'tool' ? [{ name: message.name ?? '' }] : (message.toolCalls ?? [])
      const isTold = calls.length > 0 && calls.every(isSearch)
      this.#view.note(message, at === last ? seen! : isTold ? 'same' : 'nothing')
    }
    this.#held = held
  }

  account(entries: readonly LedgerEntry[]): void {
    for (const entry of entries) {
      this.#ledger.push(entry)
      this.#size += SIZES.cost * (entry.messages.length + 5)
    }
  }

  /** Records an event that is not a step, such as a fold by a policy or an edit by a client. */
  happened(event: Omit<ThreadEvent, 'at' | 'after'>): void {
    this.#events = [...this.#events, { ...event, at: Date.now(), after: this.#ledger.length }]
    if (event.hidden !== undefined) this.#hidden = hiddenIn(this.#events)
    if (event.what === 'named') this.#name = event.name ?? null
  }

  /** Records that text must be forgotten wherever cells of it were computed. The next save tells the other servers. */
  noteForget(): void {
    this.#forgets = true
  }

  /** Makes the thread unusable after a failed save. */
  fail(cause: unknown): void {
    this.gone = cause instanceof Error ? cause : new Error(String(cause))
  }

  /** @throws the error of a failed save; KvfoldError server/no-thread when the thread was deleted */
  refuseGone(): void {
    if (this.gone !== null) throw this.gone
  }

  /** Runs `work` after all work queued before it, and before all queued later. */
  alone<T>(work: () => T | Promise<T>): Promise<T> {
    return this.held(() => {
      const done = this.#line.then(work)
      this.#line = done.catch(() => undefined)
      return done
    })
  }

  /** Runs `work`, and keeps the thread loaded meanwhile. */
  async held<T>(work: () => Promise<T>): Promise<T> {
    this.#users++
    try {
      return await work()
    } finally {
      this.#users--
    }
  }

  /**
   * Writes all changes since the last save, or none of them; they are durable when the promise resolves. Returns the thread's new card;
   * null when nothing changed or the thread is unusable.
   */
  async save(store: ThreadStore): Promise<ThreadCard | null> {
    if (this.gone !== null) return null
    const { tenant, id } = this
    const saved = this.#saved
    const record = this.record
    const { fragments, omissions, ids } = record.edits
    const { head } = this
    const messages = record.messages.slice(saved.messages, this.seen.length)
    const ledger = record.ledger.slice(saved.entries)
    const events = record.events.slice(saved.events)
    const isEdited = saved.fragments !== fragments || saved.omissions !== omissions || saved.ids !== ids
    const isTouched = !isSameHead(saved.head, head)
    const from = saved.others ? saved.messages : null
    const eventsFrom = saved.otherEvents ? saved.events : null
    if (!isEdited && !isTouched && from === null && eventsFrom === null && messages.length + ledger.length + events.length === 0)
      return null
    // Advance the counters before the write: changes made while it runs belong to the next save.
    saved.messages += messages.length
    saved.others = false
    saved.otherEvents = false
    saved.entries += ledger.length
    saved.events += events.length
    Object.assign(saved, { fragments, omissions, ids, head })
    const forgets = this.#forgets
    this.#forgets = false
    const { card } = this
    await store.update(tenant, id, {
      ...(forgets ? { forgets } : {}),
      ...(isTouched ? { head } : {}),
      ...(isEdited ? { edits: record.edits } : {}),
      ...(from === null ? {} : { from }),
      ...(eventsFrom === null ? {} : { eventsFrom }),
      ...{ messages, ledger, events, card },
    })
    return card
  }

  #conversationOf({ messages, edits }: Pick<ThreadRecord, 'messages' | 'edits'>): Conversation {
    const state = { id: conversationId(this.id), messages: messages.map(({ message }) => message), ...edits }
    return Conversation.of(state, this.portsOf(this))
  }

  #add(message: ChatMessage, seen: StoredMessage['seen']): void {
    this.conversation.add(message)
    this.#view.note(message, seen)
  }
}

const hiddenIn = (events: readonly ThreadEvent[]): ReadonlySet<string> => new Set(events.flatMap(({ hidden = [] }) => hidden))

/**
 * Compares the fields of a head that can change. Tools and held messages are compared by object identity, because they are never changed in
 * place and comparing their texts is slow.
 */
const isSameHead = (a: ThreadHead, b: ThreadHead): boolean =>
  a.used === b.used && a.contract === b.contract && isSameList(a.tools, b.tools) && isSameList(a.held, b.held)

const isSameList = (a: readonly unknown[], b: readonly unknown[]): boolean =>
  a.length === b.length && a.every((item, at) => item === b[at])

/**
 * Makes the record of a new thread. It inherits the policy events of the fragments that it takes over, so that policies still treat these
 * as their own.
 * @param first the parent's messages that the request still has; null: none
 */
export function beginning(
  { now, ...given }: Pick<ThreadRecord, 'tenant' | 'salt' | 'id' | 'model' | 'tools'> & { readonly now: number },
  parent: Thread | null,
  first: Pick<ThreadRecord, 'messages' | 'edits' | 'held'> | null,
): ThreadRecord {
  const nothing = { messages: [], edits: { fragments: [], searches: [], ids: 0 }, held: [] }
  const inherited = new Set(first?.edits.fragments.map(({ id }) => id))
  const folds = parent?.events.filter(({ kind, folded }) => kind === 'policy' && folded.some((of) => inherited.has(of))) ?? []
  return {
    ...given,
    created: now,
    used: now,
    parent: parent?.id ?? null,
    contract: parent?.contract ?? null,
    tools: parent?.tools ?? given.tools,
    ...(first ?? nothing),
    ledger: [],
    events: folds.map((event) => ({ ...event, after: 0 })),
  }
}

/** Makes the card of a stored thread. Needs no engine. */
export const cardOf = (record: ThreadRecord): ThreadCard => new Thread(record, () => ({})).card
