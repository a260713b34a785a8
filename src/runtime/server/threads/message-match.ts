/** Decides when two messages are the same to the server, and how many messages of a request a thread already has. */
import { createHash, type Hash, hash } from 'node:crypto'
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import { weightOf } from '../../core/json.js'
import { atOnce, inTurns, type Steps } from '../../core/turns.js'
import { comparable, writeJson, writtenEntries } from '../../core/written-json.js'

/**
 * Returns a text that is equal for messages that count as the same. It has the role, the content, calls by id, name and arguments, and the
 * id of the call that the message answers. Reasoning and sampled tokens do not count, because clients leave them out; nor does whitespace
 * around an answer. Ids of calls count, because results refer to calls by their ids.
 */
export const canonical = (message: ChatMessage): string => atOnce(canonicalParts(message)).join('')

/**
 * Makes the parts of the `canonical` text, each well-formed. It yields to the event loop after each call, because the arguments of a call
 * take milliseconds.
 */
function* canonicalParts({ role, content, toolCalls = [], toolCallId }: ChatMessage): Steps<readonly string[]> {
  const text = role === 'assistant' ? content.trim() : content
  const parts: string[] = []
  let part = `[${JSON.stringify(role)},${JSON.stringify(text)},[`
  for (const [at, call] of toolCalls.entries()) {
    if (at > 0) {
      yield
      part += ','
    }
    part += JSON.stringify(canonicalCall(call))
    if (part.length < PART) continue
    parts.push(part)
    part = ''
  }
  const answered = role === 'tool' ? (toolCallId ?? '') : ''
  parts.push(`${part}],${JSON.stringify(answered)}]`)
  return parts
}

/** Returns a key that is equal exactly for messages with the same `canonical` text. It is cached with the message, which never changes. */
export function messageKey(message: ChatMessage): string {
  const known = keys.get(message)
  if (known !== undefined) return known
  const key = hash('sha256', canonical(message), 'base64').slice(0, KEY)
  keys.set(message, key)
  return key
}

const keys = new WeakMap<ChatMessage, string>()

/** How many characters a key has. */
const KEY = 22

/** Returns the key of the message with this digest. */
const keyIn = (digest: Buffer): string => digest.toString('base64').slice(0, KEY)

const canonicalCall = ({ id, name, arguments: args, malformed }: ToolCall): unknown => [id, name, malformed ?? sorted(args)]

/** Returns the value with its keys in order at all levels. Numbers get a form in which they can be compared (`comparable`). */
function sorted(value: unknown, text?: string): unknown {
  if (typeof value !== 'object' || value === null) return comparable(value, text)
  const entries = writtenEntries(value).map((entry) => [entry.key, sorted(entry.value, entry.text)] as const)
  if (Array.isArray(value)) return entries.map(([, item]) => item)
  // An array of pairs, because an object would put keys that look like numbers first and drop `__proto__`.
  return { pairs: entries.sort(([a], [b]) => (a < b ? -1 : 1)) }
}

/** Returns whether two messages are literally the same. Then their keys are the same, too; to compute the keys would take far longer. */
export function isSame(a: ChatMessage, b: ChatMessage): boolean {
  if (a.role !== b.role || a.content !== b.content || a.toolCallId !== b.toolCallId) return false
  // Large integers that round to the same double differ in their text.
  return isSameData(a.toolCalls, b.toolCalls) && writeJson(a.toolCalls) === writeJson(b.toolCalls)
}

/** Compares data that JSON can express. May return false for equal data, for example with keys in another order. */
function isSameData(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null || Array.isArray(a) !== Array.isArray(b))
    return false
  const [keys, others] = [Object.keys(a), Object.keys(b)]
  return (
    keys.length === others.length &&
    keys.every((key, at) => key === others[at] && isSameData(a[key as keyof object], b[key as keyof object]))
  )
}

export function chainOf(messages: readonly ChatMessage[]): Chain {
  const chain = new Chain()
  for (const message of messages) chain.add(message)
  return chain
}

/**
 * Computes the keys and links of a request's messages in advance, yielding to the event loop when they are many or long. Later calls of
 * `messageKey` and `Chain.add` find them cached.
 */
export async function identified(messages: readonly ChatMessage[]): Promise<void> {
  let size = 100 * messages.length
  for (const { content, toolCalls = [] } of messages) if (size <= AT_ONCE) size += content.length + weightOf(toolCalls, AT_ONCE)
  if (size <= AT_ONCE) return
  await inTurns(identifying(messages))
}

function* identifying(messages: readonly ChatMessage[]): Steps<void> {
  const chain = new Chain()
  for (const message of messages) {
    // The key and the link need the same text. It is made once, because that takes longest.
    const parts = keys.has(message) ? undefined : yield* canonicalParts(message)
    yield* chain.adding(message, parts)
    if (parts !== undefined) keys.set(message, keyIn(yield* hashed(createHash('sha256'), parts)))
    yield
  }
}

/** How many characters are hashed between two yields to the event loop. */
const PART = 256 * 1024

/** Returns the digest of well-formed texts, one after the other. Yields to the event loop after each part. */
function* hashed(hash: Hash, texts: readonly string[]): Steps<Buffer> {
  for (const text of texts)
    for (let at = 0; at < text.length;) {
      // Both halves of a surrogate pair must be in one part.
      const end = isHighSurrogate(text.charCodeAt(at + PART - 1)) ? at + PART + 1 : at + PART
      hash.update(text.slice(at, end))
      if ((at = end) < text.length) yield
    }
  return hash.digest()
}

const isHighSurrogate = (code: number): boolean => code >= 0xd800 && code <= 0xdbff

/** Size up to which the keys of a request's messages are computed at once: their characters, plus a hundred for each message. */
const AT_ONCE = 64 * 1024

/**
 * Returns how many messages two chains have in common from the beginning. Compares only a handful of links, however long the chains are.
 */
export function common(a: Chain, b: Chain): number {
  let low = 0
  let high = Math.min(a.length, b.length)
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (a.agrees(b, middle)) low = middle
    else high = middle - 1
  }
  return low
}

export interface MatchCandidate {
  readonly chain: Chain
  /** When the thread was last used; a later use has a larger number. */
  readonly used: number
}

/** Explains to people how the thread's message and the request's differ. Undefined: it has no message at this place. */
export function difference(known: ChatMessage | undefined, given: ChatMessage | undefined): string {
  if (given === undefined) return 'it is left out'
  if (known === undefined) return 'it is new'
  if (known.role !== given.role) return `it is ${article(given.role)} message, and was ${article(known.role)} one`
  if (canonical({ ...known, toolCalls: [] }) === canonical({ ...given, toolCalls: [] })) return 'its tool calls differ'
  if (known.content === given.content) return 'it answers another call'
  let at = 0
  while (known.content[at] === given.content[at]) at++
  if (at === given.content.length) return `it ends at character ${at}, and went on`
  if (at === known.content.length) return `it goes on at character ${at}, and ended there`
  return `it differs from character ${at} on`
}

const article = (role: string): string => (role === 'assistant' ? 'an assistant' : `a ${role}`)

// Links compare the beginnings of conversations without their messages.

/** For each message that was added to a chain: the link before it there, and its own link. */
const links = new WeakMap<ChatMessage, { readonly before: Uint8Array; readonly link: Uint8Array }>()

/** Bytes of a link: enough that two different beginnings of one tenant never have the same link. */
const LINK = 16

/**
 * A list of hashes that find the common beginning of two conversations. Link i stands for messages 0 to i, so equal links mean equal
 * beginnings. Stores keep the bytes of chains in their cards of threads. A change of links needs a migration that deletes these cards.
 */
export class Chain {
  #bytes: Uint8Array
  #length: number

  /** @param bytes the links of another chain; both chains share them until this one grows, so they must not change */
  constructor(bytes: Uint8Array = new Uint8Array()) {
    this.#bytes = bytes
    this.#length = bytes.length / LINK
  }

  /** How many messages the chain has. */
  get length(): number {
    return this.#length
  }

  /** A copy of all links. */
  get bytes(): Uint8Array {
    return this.#bytes.slice(0, this.#length * LINK)
  }

  /** Returns the chain of the first `count` messages; `count` is at most the length. */
  beginning(count: number): Chain {
    return new Chain(this.#bytes.subarray(0, count * LINK))
  }

  /** Appends a message. Its link is cached with the message and reused after the same beginning. */
  add(message: ChatMessage): void {
    atOnce(this.adding(message))
  }

  /**
   * Appends a message as `add` does, but yields to the event loop while it hashes a long one. @param parts the parts of its `canonical`
   * text, if they are known
   */
  *adding(message: ChatMessage, parts?: readonly string[]): Steps<void> {
    const end = this.#length * LINK
    const before = this.#bytes.slice(Math.max(0, end - LINK), end)
    let known = links.get(message)
    if (known === undefined || Buffer.compare(known.before, before) !== 0) {
      const hash = createHash('sha256').update(before).update('\n')
      known = { before, link: (yield* hashed(hash, parts ?? (yield* canonicalParts(message)))).subarray(0, LINK) }
      links.set(message, known)
    }
    this.#put(known.link)
  }

  #put(link: Uint8Array): void {
    const end = this.#length * LINK
    if (end + LINK > this.#bytes.length) {
      const longer = new Uint8Array(2 * end + LINK)
      longer.set(this.#bytes)
      this.#bytes = longer
    }
    this.#bytes.set(link, end)
    this.#length++
  }

  /** Returns whether both chains begin with the same `count` messages. `count` is at least 1 and at most both lengths. */
  agrees(other: Chain, count: number): boolean {
    const [start, end] = [(count - 1) * LINK, count * LINK]
    for (let at = start; at < end; at++) if (this.#bytes[at] !== other.#bytes[at]) return false
    return true
  }

  isSameAs(other: Chain): boolean {
    return this.#length === other.#length && (this.#length === 0 || this.agrees(other, this.#length))
  }

  /**
   * Orders chains so that those with the same beginning are neighbours, the shorter first. Returns a negative number when this chain
   * comes first; 0 when they are equal.
   */
  compare(other: Chain): number {
    const shared = common(this, other)
    if (shared === Math.min(this.#length, other.#length)) return this.#length - other.#length
    const [start, end] = [shared * LINK, (shared + 1) * LINK]
    return Buffer.compare(this.#bytes.subarray(start, end), other.#bytes.subarray(start, end))
  }
}
