/** Decides when two messages count as the same, and how many leading messages a request and a thread have in common. */
import { createHash, type Hash, hash } from 'node:crypto'
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import { weightOf } from '../../core/json.js'
import { atOnce, inTurns, type Steps } from '../../core/turns.js'
import { comparable, writeJson, writtenEntries } from '../../core/written-json.js'

/**
 * Returns a string that is equal for messages that count as the same: role, content, tool calls, and the id of the call that a tool result
 * answers. It ignores reasoning and sampled tokens, because clients leave them out, and whitespace around an answer. It includes call ids,
 * because tool results refer to them.
 */
export const canonical = (message: ChatMessage): string => atOnce(canonicalParts(message)).join('')

/**
 * Makes the `canonical` string in pieces that split no surrogate pair. Yields to the event loop between calls, because writing large
 * arguments takes milliseconds.
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

/** Returns a hash of the message's `canonical` string. It is cached, because messages never change. */
export function messageKey(message: ChatMessage): string {
  const known = keys.get(message)
  if (known !== undefined) return known
  const key = hash('sha256', canonical(message), 'base64').slice(0, KEY)
  keys.set(message, key)
  return key
}

const keys = new WeakMap<ChatMessage, string>()

/** Base64 characters of a key: 132 bits. */
const KEY = 22

const keyIn = (digest: Buffer): string => digest.toString('base64').slice(0, KEY)

const canonicalCall = ({ id, name, arguments: args, malformed }: ToolCall): unknown => [id, name, malformed ?? sorted(args)]

/** Sorts the keys of objects at all levels and makes numbers comparable, so that equal data gets equal text. */
function sorted(value: unknown, text?: string): unknown {
  if (typeof value !== 'object' || value === null) return comparable(value, text)
  const entries = writtenEntries(value).map((entry) => [entry.key, sorted(entry.value, entry.text)] as const)
  if (Array.isArray(value)) return entries.map(([, item]) => item)
  // An array of pairs, because an object would put keys that look like numbers first and drop `__proto__`.
  return { pairs: entries.sort(([a], [b]) => (a < b ? -1 : 1)) }
}

/**
 * Returns whether two messages are identical in all that `messageKey` covers. Much faster than hashing. May return false for messages with
 * equal keys, such as ones whose argument keys have another order.
 */
export function isSame(a: ChatMessage, b: ChatMessage): boolean {
  if (a.role !== b.role || a.content !== b.content || a.toolCallId !== b.toolCallId) return false
  // Large integers that round to the same double differ in their text.
  return isSameData(a.toolCalls, b.toolCalls) && writeJson(a.toolCalls) === writeJson(b.toolCalls)
}

/** Compares JSON data without sorting keys, so it may return false for equal data. */
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
 * Computes the keys and chain links of a long request's messages in advance, yielding to the event loop. `messageKey` and `Chain.add` then
 * find them cached.
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
    // The key and the link hash the same string, which is made once because that takes longest.
    const parts = keys.has(message) ? undefined : yield* canonicalParts(message)
    yield* chain.adding(message, parts)
    if (parts !== undefined) keys.set(message, keyIn(yield* hashed(createHash('sha256'), parts)))
    yield
  }
}

/** Characters hashed between two yields to the event loop. */
const PART = 256 * 1024

/** Returns the digest of these strings in order. Yields to the event loop after every `PART` characters. */
function* hashed(hash: Hash, texts: readonly string[]): Steps<Buffer> {
  for (const text of texts)
    for (let at = 0; at < text.length;) {
      // Hashing encodes UTF-8, so both halves of a surrogate pair must be in one chunk.
      const end = isHighSurrogate(text.charCodeAt(at + PART - 1)) ? at + PART + 1 : at + PART
      hash.update(text.slice(at, end))
      if ((at = end) < text.length) yield
    }
  return hash.digest()
}

const isHighSurrogate = (code: number): boolean => code >= 0xd800 && code <= 0xdbff

/** Requests up to this size are hashed without yielding. The size is their characters, plus 100 for each message. */
const AT_ONCE = 64 * 1024

/** Returns how many leading messages two chains have in common, by binary search over their links. */
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
  /** Time of the last use in Unix milliseconds; later uses have larger numbers. */
  readonly used: number
}

/**
 * Says for people how a message of the request differs from the thread's message at the same index. Undefined: there is no such message.
 */
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

// Chains of hashes, which compare the beginnings of conversations without reading their messages.

/** A message's link is cached together with the link before it, because it is valid only after the same beginning. */
const links = new WeakMap<ChatMessage, { readonly before: Uint8Array; readonly link: Uint8Array }>()

/** Bytes of a link. 128 bits make collisions within a tenant practically impossible. */
const LINK = 16

/**
 * A hash for every beginning of a conversation: link i covers messages 0 to i, so equal links mean equal beginnings. Stores keep these
 * bytes in their thread cards; if links are computed differently, a migration must delete the cards.
 */
export class Chain {
  #bytes: Uint8Array
  #length: number

  /** @param bytes links of another chain, shared without a copy; the caller must not change them. Adding a message copies them first */
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

  /** Appends a message. Its link is cached and reused after the same beginning. */
  add(message: ChatMessage): void {
    atOnce(this.adding(message))
  }

  /**
   * Appends a message as `add` does, but yields to the event loop while it hashes a long one.
   * @param parts pieces of the message's `canonical` string, if already made
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

  /** Returns whether the first `count` messages of both chains are equal. `count` is at least 1 and at most either length. */
  agrees(other: Chain, count: number): boolean {
    const [start, end] = [(count - 1) * LINK, count * LINK]
    for (let at = start; at < end; at++) if (this.#bytes[at] !== other.#bytes[at]) return false
    return true
  }

  isSameAs(other: Chain): boolean {
    return this.#length === other.#length && (this.#length === 0 || this.agrees(other, this.#length))
  }

  /**
   * Sorts chains so that those with a common beginning are neighbours, the shorter first. Negative: this chain comes first; 0: both are
   * equal.
   */
  compare(other: Chain): number {
    const shared = common(this, other)
    if (shared === Math.min(this.#length, other.#length)) return this.#length - other.#length
    const [start, end] = [shared * LINK, (shared + 1) * LINK]
    return Buffer.compare(this.#bytes.subarray(start, end), other.#bytes.subarray(start, end))
  }
}
