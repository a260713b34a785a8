/** Owns one live conversation of the server: its messages, what clients know of them, what is folded, what it cost. */
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import { Conversation, type ConversationPorts } from '../../context/conversation.js'
import type { Fragment } from '../../context/fragment.js'
import type { ContractChoice } from '../../core/contract.js'
import { invariant } from '../../core/errors.js'
import { conversationId, type Tenant } from '../../core/ids.js'
import { writeJson } from '../../core/written-json.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { StoredMessage, ThreadCard, ThreadEvent, ThreadHead, ThreadRecord, ThreadStore } from '../../store/port.js'
import type { MatchCandidate, Chain } from './message-match.js'
import { RuntimeState, ShownSteps, View } from './thread-state.js'

/** How far the store is. */
interface StoredExtent {
  messages: number
  /** Whether the store has other messages behind those. */
  others: boolean
  entries: number
  events: number
  fragments: unknown
  ids: number
  head: string
}

/** Last messages that a thread is found by. */
const ENDS = 4
/** Characters of a title. */
const TITLE = 80
/** Bytes that a cost on the ledger, and what a thread has beside messages and costs take in memory, about. */
const SIZES = { cost: 100, other: 4000 }

/**
 * What clients know is `view`, in the order of the messages. Messages are added; only a client that sends others than before changes what there is
 * (`rewrite`). Changes are the thread's alone until `save`.
 */
export class Thread implements MatchCandidate {
  readonly tenant: Tenant
  readonly id: string
  readonly model: string
  readonly created: number
  readonly parent: string | null
  used: number
  contract: ContractChoice | null
  tools: readonly ToolDefinition[]
  /** True from the match until the answer is there: others fork meanwhile. */
  asked = false
  /** Why nobody may use it any more, and nothing of it is saved: it was deleted, or not saved. Null: it lives. */
  gone: Error | null = null
  #held: readonly ChatMessage[]
  #conversation: Conversation
  #view: View
  readonly #hidden: Set<string>
  readonly #ledger: LedgerEntry[]
  readonly #events: ThreadEvent[]
  readonly #saved: StoredExtent
  #forgets = false
  #line: Promise<unknown> = Promise.resolve()
  #users = 0
  #size = SIZES.other

  /**
   * @param record in the store already, or about to be put there
   * @param from the thread that it has messages of
   */
  constructor(
    record: ThreadRecord,
    private readonly portsOf: (thread: Thread) => ConversationPorts,
    readonly runtime = new RuntimeState(),
    from?: Thread,
  ) {
    const { tenant, id, model, created, used, parent, contract, tools, held, messages, edits, ledger, events } = record
    this.tenant = tenant
    this.id = id
    this.model = model
    this.created = created
    this.parent = parent
    this.used = used
    this.contract = contract
    this.tools = tools
    this.#held = held
    this.#ledger = []
    this.account(ledger)
    this.#events = [...events]
    this.#conversation = this.#conversationOf({ messages, edits })
    this.#view = View.of(messages, from === undefined ? undefined : from.#view)
    if (from !== undefined) this.runtime.toolOrder = from.runtime.toolOrder
    this.#hidden = new Set(events.flatMap(({ hidden = [] }) => hidden))
    const { fragments, ids } = this.conversation.state
    this.#saved = {
      messages: messages.length,
      others: false,
      entries: ledger.length,
      events: events.length,
      fragments,
      ids,
      head: writeJson(this.head),
    }
  }

  get conversation(): Conversation {
    return this.#conversation
  }

  /** Of the view's messages. */
  get keys(): readonly string[] {
    return this.#view.keys
  }

  /** Keys of the last messages: what the thread is found by when its client changes earlier ones. */
  get ends(): readonly string[] {
    return this.keys.slice(-ENDS)
  }

  /** What clients know, oldest first. */
  get view(): readonly ChatMessage[] {
    return this.#view.messages
  }

  /** Which messages of the view are answers that the server gave. */
  get given(): readonly boolean[] {
    return this.#view.given
  }

  get chain(): Chain {
    return this.#view.chain
  }

  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** What its client may have of the cut answer at its end; null when it ends otherwise. */
  get cut(): ChatMessage | null {
    return this.#view.cut
  }

  get events(): readonly ThreadEvent[] {
    return this.#events
  }

  /** Keys of messages that its client took out or replaced some time. */
  get hidden(): ReadonlySet<string> {
    return this.#hidden
  }

  /**
   * From now on it has these tools, in the order in which it first saw them: those it knows keep their places, others come behind them, so that a
   * client that sends them in another order loses nothing of the cache.
   */
  offer(tools: readonly ToolDefinition[]): void {
    const names = [...this.runtime.toolOrder, ...this.tools, ...tools].map((tool) =>
      typeof tool === 'string' ? tool : tool.name,
    )
    const places = new Map([...new Set(names)].map((name, place) => [name, place]))
    this.runtime.toolOrder = [...places.keys()]
    this.tools = tools.toSorted((one, other) => places.get(one.name)! - places.get(other.name)!)
  }

  /** What its answers were shown, as far as this process knows. */
  get shown(): ShownSteps {
    return this.runtime.shown
  }

  /** What the model was last shown: ours too, if it had them, before the client's. */
  get definitions(): readonly ToolDefinition[] {
    return [...this.runtime.own, ...(this.runtime.isCatalogue ? [] : this.tools)]
  }

  /** Nobody has it: it may be put away. */
  get idle(): boolean {
    return !this.asked && this.#users === 0
  }

  /** Bytes in memory, about. */
  get size(): number {
    return this.#size + this.#view.size + 2 * this.#saved.head.length
  }

  /** What clients know in the place of each message of the conversation. */
  get seen(): readonly StoredMessage['seen'][] {
    return this.#view.seen
  }

  get head(): ThreadHead {
    const { tenant, id, model, created, used, parent, contract, tools } = this
    return { tenant, id, model, created, used, parent, contract, tools, held: this.#held }
  }

  get record(): ThreadRecord {
    const { messages, fragments, searches, ids } = this.conversation.state
    return {
      ...this.head,
      messages: messages.map((message, at): StoredMessage => ({ message, seen: this.seen[at] ?? 'nothing' })),
      edits: { fragments, searches, ids },
      ledger: this.#ledger,
      events: this.#events,
    }
  }

  get card(): ThreadCard {
    const { messages, fragments } = this.conversation
    const first = messages.find(({ role }) => role === 'user')?.content ?? ''
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

  /** The index in the conversation of the view's message; the conversation's length for one that is not there yet. */
  placeOf(message: number): number {
    return this.#view.places[message] ?? this.conversation.messages.length
  }

  /** Its client sent other messages than before: from now on it consists of these. What was shown before is known no more. */
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
  }

  /**
   * Replaces the cut answer at its end by what its client has of it. An answer that came after several steps loses the same number of characters.
   * @param text Null: the client goes on with it in the answer to come, so it is removed.
   */
  takeCut(text: string | null): void {
    const { messages, edits, held } = this.record
    const { message, seen } = messages.at(-1)!
    invariant(this.cut !== null && typeof seen !== 'string', 'a thread without a cut answer was to take one')
    if (text === seen.content) return
    const missing = seen.content.trim().length - (text ?? '').trim().length
    const content = message.content.trimEnd().slice(0, -missing || undefined)
    const taken = text === null ? [] : [{ message: { ...message, content }, seen: { ...seen, content: text } }]
    const isBefore = (each: { readonly message: number }) => each.message < messages.length - 1
    const { fragments, searches, ids } = edits
    this.rewrite({
      messages: [...messages.slice(0, -1), ...taken],
      edits: { fragments: fragments.filter(isBefore), searches: searches.filter(isBefore), ids },
      held,
    })
  }

  /** Adds messages of the client's; results that were held back go where their calls stand. */
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
   * Takes in what a turn added to the conversation since it had `from` messages; its last assistant message is what clients know as `seen`.
   * Null: the turn came to no answer, so that clients know nothing of all this.
   *
   * @param held results that wait for those of the client's calls in it
   * @param isSearch calls that clients have as steps of their own, with their results
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

  /** Takes in what the server did to it by itself. */
  happened(event: Omit<ThreadEvent, 'at' | 'after'>): void {
    this.#events.push({ ...event, at: Date.now(), after: this.#ledger.length })
    for (const key of event.hidden ?? []) this.#hidden.add(key)
  }

  /** Text of it is to be forgotten by all that have computed something of it: they are told when this is saved. */
  noteForget(): void {
    this.#forgets = true
  }

  /** It could not be saved: nobody may use it any more, and this is why. */
  fail(cause: unknown): void {
    this.gone = cause instanceof Error ? cause : new Error(String(cause))
  }

  /** @throws what kept it from being saved; KvfoldError server/no-thread when it was deleted */
  refuseGone(): void {
    if (this.gone !== null) throw this.gone
  }

  /** Has `work` done when all that was asked for before is done, alone. */
  alone<T>(work: () => T | Promise<T>): Promise<T> {
    return this.held(() => {
      const done = this.#line.then(work)
      this.#line = done.catch(() => undefined)
      return done
    })
  }

  /** Has `work` done on this very thread: it is not put away meanwhile. */
  async held<T>(work: () => Promise<T>): Promise<T> {
    this.#users++
    try {
      return await work()
    } finally {
      this.#users--
    }
  }

  /** Writes what is new, all of it or nothing; afterwards it is the store's to keep. Says how it is listed now; null: nothing was new. */
  async save(store: ThreadStore): Promise<ThreadCard | null> {
    if (this.gone !== null) return null
    const { tenant, id } = this
    const saved = this.#saved
    const record = this.record
    const { fragments, ids } = record.edits
    const head = writeJson(this.head)
    const messages = record.messages.slice(saved.messages, this.seen.length)
    const ledger = record.ledger.slice(saved.entries)
    const events = record.events.slice(saved.events)
    const isEdited = saved.fragments !== fragments || saved.ids !== ids
    const isTouched = saved.head !== head
    const from = saved.others ? saved.messages : null
    if (!isEdited && !isTouched && from === null && messages.length + ledger.length + events.length === 0) return null
    // These move first: what is added while the store writes is the next call's.
    saved.messages += messages.length
    saved.others = false
    saved.entries += ledger.length
    saved.events += events.length
    Object.assign(saved, { fragments, ids, head })
    const forgets = this.#forgets
    this.#forgets = false
    const { card } = this
    await store.update(tenant, id, {
      ...(forgets ? { forgets } : {}),
      ...(isTouched ? { head: this.head } : {}),
      ...(isEdited ? { edits: record.edits } : {}),
      ...(from === null ? {} : { from }),
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

/** What a thread is stored as before anything is said in it. @param first of the parent, what the request still has */
export function beginning(
  { tenant, id, model, tools, now }: Pick<ThreadRecord, 'tenant' | 'id' | 'model' | 'tools'> & { readonly now: number },
  parent: Thread | null,
  first: Pick<ThreadRecord, 'messages' | 'edits' | 'held'> | null,
): ThreadRecord {
  const nothing = { messages: [], edits: { fragments: [], searches: [], ids: 0 }, held: [] }
  return {
    tenant,
    id,
    model,
    created: now,
    used: now,
    parent: parent?.id ?? null,
    contract: parent?.contract ?? null,
    tools: parent?.tools ?? tools,
    ...(first ?? nothing),
    ledger: [],
    events: [],
  }
}

/** Of a thread whose engine nobody has. */
export const cardOf = (record: ThreadRecord): ThreadCard => new Thread(record, () => ({})).card
