/** Owns what clients know of a thread's messages, and what finds the thread by them: keys, chain and places. */
import type { ChatMessage } from '../../chat/message.js'
import type { StoredMessage } from '../../store/port.js'
import { canonical, Chain, keyOfText } from './prefix-match.js'

/** Bytes that a message takes in memory, about, without its texts and tokens. */
const MESSAGE = 500

/** Messages are only added; what another thread, or this one before, worked out for the same messages is taken over. */
export class View {
  readonly #seen: StoredMessage['seen'][] = []
  readonly #messages: ChatMessage[] = []
  readonly #keys: string[] = []
  /** By message of the view: the index of the message in the conversation. */
  readonly #places: number[] = []
  #chain = new Chain()
  #size = 0

  static of(stored: readonly StoredMessage[], before: View = new View()): View {
    const view = new View()
    const known = stored.flatMap((each) => knownOf(each) ?? [])
    const other = known.findIndex((message, at) => message !== before.#messages[at])
    const same = other === -1 ? known.length : other
    const places = new Map(same === known.length ? [] : before.#messages.map((message, at) => [message, at]))
    view.#chain = before.#chain.beginning(same)
    for (const { message, seen } of stored)
      view.note(message, seen, (of, at) => before.#keys[at < same ? at : (places.get(of) ?? -1)])
    return view
  }

  /** What they know in the place of each message of the conversation. */
  get seen(): readonly StoredMessage['seen'][] {
    return this.#seen
  }

  /** Oldest first. */
  get messages(): readonly ChatMessage[] {
    return this.#messages
  }

  /** Of these messages (`messageKey`). */
  get keys(): readonly string[] {
    return this.#keys
  }

  get places(): readonly number[] {
    return this.#places
  }

  get chain(): Chain {
    return this.#chain
  }

  /** Bytes in memory, about. */
  get size(): number {
    return this.#size
  }

  /** @param keyOf the key of a message of the view, where it is known */
  note(
    message: ChatMessage,
    seen: StoredMessage['seen'],
    keyOf?: (message: ChatMessage, at: number) => string | undefined,
  ): void {
    const place = this.#seen.push(seen) - 1
    this.#size += sizeOf(message) + (typeof seen === 'string' ? 0 : sizeOf(seen))
    const known = knownOf({ message, seen })
    if (known === null) return
    const at = this.#messages.push(known) - 1
    this.#places.push(place)
    const key = keyOf?.(known, at)
    const isChained = at < this.#chain.length
    const says = key === undefined || !isChained ? canonical(known) : ''
    this.#keys.push(key ?? keyOfText(says))
    if (!isChained) this.#chain.push(says)
  }
}

const knownOf = ({ message, seen }: StoredMessage): ChatMessage | null =>
  seen === 'nothing' ? null : seen === 'same' ? message : seen

/** Texts at two bytes a character, though most take one. */
const sizeOf = ({ content, reasoning = '', sampled, toolCalls = [] }: ChatMessage): number =>
  MESSAGE +
  2 * (content.length + reasoning.length + (sampled?.text.length ?? 0)) +
  toolCalls.reduce((sum, call) => sum + dataSize(call), 0) +
  4 * (sampled?.tokens.length ?? 0)

/** Of data that JSON can have. */
function dataSize(value: unknown): number {
  if (typeof value === 'string') return 2 * value.length
  if (typeof value !== 'object' || value === null) return 8
  return Object.values(value).reduce((sum: number, each) => sum + 16 + dataSize(each), 0)
}
