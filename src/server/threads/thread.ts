/** Owns one live conversation of the server: its messages, what clients know of them, what is folded, what it cost. */
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import { Conversation, type ConversationPorts } from '../../context/conversation.js'
import type { ContractChoice } from '../../core/contract.js'
import { invariant } from '../../core/errors.js'
import { conversationId } from '../../core/ids.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { link, type Candidate, type Chain } from './match.js'
import type { StoredMessage, ThreadHead, ThreadRecord, ThreadStore } from '../../store/port.js'
import { ShownSteps } from './shown-steps.js'
import type { Tenant } from './tenant.js'

/** How far the store is. */
interface Saved {
  messages: number
  entries: number
  fragments: unknown
  ids: number
  head: string
}

/** Messages are added and never changed; what clients know is `view`, in the same order. Changes are the thread's alone until `save`. */
export class Thread implements Candidate {
  readonly conversation: Conversation
  readonly tenant: Tenant
  readonly id: string
  readonly model: string
  readonly created: number
  readonly parent: string | null
  used: number
  contract: ContractChoice | null
  tools: readonly ToolDefinition[]
  /** What the model was last shown: ours too, if it had them. */
  definitions: readonly ToolDefinition[]
  /** True from the match until the answer is there: others fork meanwhile. */
  asked = false
  /** Deleted, or not saved for `failure`: nobody may use it any more, and nothing of it is saved. */
  gone = false
  failure: Error | null = null
  /** What its answers were shown, as far as this process knows. */
  readonly shown = new ShownSteps()
  /** Whether an engine may hold cells of it. */
  warm = false
  #held: readonly ChatMessage[]
  readonly #seen: StoredMessage['seen'][] = []
  readonly #view: ChatMessage[] = []
  readonly #chain: string[] = []
  /** By message of the view: the index of the message in the conversation. */
  readonly #places: number[] = []
  readonly #ledger: LedgerEntry[]
  readonly #saved: Saved
  #line: Promise<unknown> = Promise.resolve()

  /** `record` is in the store already, or is about to be put there. */
  constructor(record: ThreadRecord, portsOf: (thread: Thread) => ConversationPorts) {
    const { tenant, id, model, created, used, parent, contract, tools, held, messages, edits, ledger } = record
    this.tenant = tenant
    this.id = id
    this.model = model
    this.created = created
    this.parent = parent
    this.used = used
    this.contract = contract
    this.tools = tools
    this.definitions = tools
    this.#held = held
    this.#ledger = [...ledger]
    this.conversation = Conversation.of(
      { id: conversationId(id), messages: messages.map(({ message }) => message), ...edits },
      portsOf(this),
    )
    for (const { message, seen } of messages) this.#note(message, seen)
    const { fragments, ids } = this.conversation.state
    this.#saved = {
      messages: messages.length,
      entries: ledger.length,
      fragments,
      ids,
      head: JSON.stringify(this.head),
    }
  }

  /** What clients know, oldest first. */
  get view(): readonly ChatMessage[] {
    return this.#view
  }

  get chain(): Chain {
    return this.#chain
  }

  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** What clients know in the place of each message of the conversation. */
  get seen(): readonly StoredMessage['seen'][] {
    return this.#seen
  }

  get head(): ThreadHead {
    const { tenant, id, model, created, used, parent, contract, tools } = this
    return { tenant, id, model, created, used, parent, contract, tools, held: this.#held }
  }

  get record(): ThreadRecord {
    const { messages, fragments, searches, ids } = this.conversation.state
    return {
      ...this.head,
      messages: messages.map((message, at): StoredMessage => ({ message, seen: this.#seen[at] ?? 'nothing' })),
      edits: { fragments, searches, ids },
      ledger: this.#ledger,
    }
  }

  /** The index in the conversation of the view's message; the conversation's length for one that is not there yet. */
  placeOf(message: number): number {
    return this.#places[message] ?? this.conversation.messages.length
  }

  /**
   * What a new thread starts with that has the first `count` messages of the view: the messages with what was carried out inside for them, the
   * fragments that lie in them in the state they are in, and ids that go on where these are.
   */
  beginning(count: number): Pick<ThreadRecord, 'messages' | 'edits' | 'held'> {
    const { messages, edits } = this.record
    const last = count === 0 ? -1 : this.placeOf(count - 1)
    let end = last + 1
    const isInner = (at: number) => messages[at]?.message.role === 'tool' && this.#seen[at] === 'nothing'
    while (count > 0 && isInner(end)) end++
    const held: ChatMessage[] = []
    for (let at = end; count > 0 && messages[at]?.message.role === 'tool'; at++) if (isInner(at)) held.push(messages[at]!.message)
    if (end === messages.length) held.push(...this.#held)
    const within = ({ message }: { readonly message: number }) => message < end
    return {
      messages: messages.slice(0, end),
      edits: { fragments: edits.fragments.filter(within), searches: edits.searches.filter(within), ids: edits.ids },
      held,
    }
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
   */
  answered(from: number, seen: ChatMessage | null, held: readonly ChatMessage[] = this.#held): void {
    const { messages } = this.conversation
    const last = seen === null ? -1 : messages.findLastIndex(({ role }) => role === 'assistant')
    invariant(seen === null || last >= from, 'an answer was given that is not in the conversation')
    for (let at = this.#seen.length; at < messages.length; at++) this.#note(messages[at]!, at === last ? seen! : 'nothing')
    this.#held = held
  }

  account(entries: readonly LedgerEntry[]): void {
    this.#ledger.push(...entries)
  }

  /** Has `work` done when all that was asked for before is done, alone. */
  alone<T>(work: () => T | Promise<T>): Promise<T> {
    const done = this.#line.then(work)
    this.#line = done.catch(() => undefined)
    return done
  }

  /** Writes what is new; afterwards it is the store's to keep. */
  async save(store: ThreadStore): Promise<void> {
    if (this.gone) return
    const { tenant, id } = this
    const saved = this.#saved
    const { messages, edits, ledger } = this.record
    const head = JSON.stringify(this.head)
    // The counters move first: what is added while the store writes is the next call's.
    const [fresh, entries] = [messages.slice(saved.messages, this.#seen.length), ledger.slice(saved.entries)]
    saved.messages += fresh.length
    saved.entries += entries.length
    if (fresh.length > 0) await store.append(tenant, id, fresh)
    if (saved.fragments !== edits.fragments || saved.ids !== edits.ids) {
      saved.fragments = edits.fragments
      saved.ids = edits.ids
      await store.edit(tenant, id, edits)
    }
    if (entries.length > 0) await store.account(tenant, id, entries)
    if (saved.head !== head) {
      saved.head = head
      await store.touch(this.head)
    }
  }

  #add(message: ChatMessage, seen: StoredMessage['seen']): void {
    this.conversation.add(message)
    this.#note(message, seen)
  }

  #note(message: ChatMessage, seen: StoredMessage['seen']): void {
    const place = this.#seen.push(seen) - 1
    if (seen === 'nothing') return
    const known = seen === 'same' ? message : seen
    this.#view.push(known)
    this.#places.push(place)
    this.#chain.push(link(this.#chain.at(-1), known))
  }
}
