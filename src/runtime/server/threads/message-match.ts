/** Owns when two messages are the same to the server, and how much of a request a thread already has. */
import { createHash, type Hash, hash } from 'node:crypto'
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import { weightOf } from '../../core/json.js'
import { atOnce, inTurns, type Steps } from '../../core/turns.js'
import { comparable, writeJson, writtenEntries } from '../../core/written-json.js'

/**
 * What a message says, as one text: role, content, calls by id, name and arguments, the call it answers. Reasoning and what was sampled do not
 * count, because clients leave them out; neither does whitespace around an answer. Ids count, because results name them: of two answers that
 * make the same call the one with the client's id is meant.
 */
export function canonical({ role, content, toolCalls = [], toolCallId }: ChatMessage): string {
  const text = role === 'assistant' ? content.trim() : content
  return JSON.stringify([role, text, toolCalls.map(canonicalCall), role === 'tool' ? (toolCallId ?? '') : ''])
}

/** The same for messages that say the same (`canonical`), and for no others. They are kept with the message, which never changes. */
export function messageKey(message: ChatMessage): string {
  const known = keys.get(message)
  if (known !== undefined) return known
  const key = hash('sha256', canonical(message), 'base64').slice(0, KEY)
  keys.set(message, key)
  return key
}

const keys = new WeakMap<ChatMessage, string>()

/** Characters of a key. */
const KEY = 22

/** The key of a message that says what has this digest. */
const keyIn = (digest: Buffer): string => digest.toString('base64').slice(0, KEY)

const canonicalCall = ({ id, name, arguments: args, malformed }: ToolCall): unknown => [id, name, malformed ?? sorted(args)]

/** The same value with its keys in order, all the way down, and its numbers `comparable`. */
function sorted(value: unknown, text?: string): unknown {
  if (typeof value !== 'object' || value === null) return comparable(value, text)
  const entries = writtenEntries(value).map((entry) => [entry.key, sorted(entry.value, entry.text)] as const)
  if (Array.isArray(value)) return entries.map(([, item]) => item)
  // An array of pairs: an object would put keys that look like numbers first, and drop `__proto__`.
  return { pairs: entries.sort(([a], [b]) => (a < b ? -1 : 1)) }
}

/** Whether two messages say the same to the letter: then they have one key, which takes far longer to find out. */
export function isSame(a: ChatMessage, b: ChatMessage): boolean {
  if (a.role !== b.role || a.content !== b.content || a.toolCallId !== b.toolCallId) return false
  // Whole numbers that one double stands for are told apart by their text.
  return isSameData(a.toolCalls, b.toolCalls) && writeJson(a.toolCalls) === writeJson(b.toolCalls)
}

/** Of data that JSON can have; false for some that are the same, for example with their keys in another order. */
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

export const chainOf = (messages: readonly ChatMessage[]): Chain => atOnce(chainSteps(messages))

function* chainSteps(messages: readonly ChatMessage[]): Steps<Chain> {
  const chain = new Chain()
  for (const message of messages) {
    yield* chain.adding(message)
    yield
  }
  return chain
}

/** Works out the keys and links of a request's messages in turns of the event loop, where they are many or long. What asks for them next finds them. */
export async function identified(messages: readonly ChatMessage[]): Promise<void> {
  let size = 100 * messages.length
  for (const { content, toolCalls = [] } of messages) if (size <= AT_ONCE) size += content.length + weightOf(toolCalls, AT_ONCE)
  if (size <= AT_ONCE) return
  await inTurns(chainSteps(messages))
  await inTurns(keySteps(messages))
}

function* keySteps(messages: readonly ChatMessage[]): Steps<void> {
  for (const message of messages) {
    if (!keys.has(message)) keys.set(message, keyIn(yield* hashed(createHash('sha256'), canonical(message))))
    yield
  }
}

/** Characters that are hashed between two yields. */
const PART = 256 * 1024

/** What a text that is well-formed hashes to, in steps. */
function* hashed(hash: Hash, text: string): Steps<Buffer> {
  for (let at = 0; at < text.length;) {
    // Both halves of a surrogate pair go in together.
    const end = isHighSurrogate(text.charCodeAt(at + PART - 1)) ? at + PART + 1 : at + PART
    hash.update(text.slice(at, end))
    if ((at = end) < text.length) yield
  }
  return hash.digest()
}

const isHighSurrogate = (code: number): boolean => code >= 0xd800 && code <= 0xdbff

/** Characters of messages, and a hundred for each, whose keys are worked out at once. */
const AT_ONCE = 64 * 1024

/** How many messages two chains have in common from the beginning. Looks at a handful of links, however long they are. */
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
  /** When it was last used: the larger, the later. */
  readonly used: number
}

/** Why two messages, or a message and its absence, are not the same; for people. */
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

// The links by which beginnings of conversations are compared without their messages.

/** Of messages that are in a chain: the link behind the one before. */
const links = new WeakMap<ChatMessage, { readonly before: Uint8Array; readonly link: Uint8Array }>()

/** Bytes of a link: enough that two beginnings among one tenant's messages are never taken for each other. */
const LINK = 16

/**
 * Link i stands for messages 0 to i: equal links mean equal beginnings. Stores keep the bytes of chains, so whatever changes links needs a
 * migration that deletes their cards.
 */
export class Chain {
  #bytes: Uint8Array
  #length: number

  /** @param bytes of another chain, which nobody changes; they are shared until this one grows */
  constructor(bytes: Uint8Array = new Uint8Array()) {
    this.#bytes = bytes
    this.#length = bytes.length / LINK
  }

  /** Messages. */
  get length(): number {
    return this.#length
  }

  /** All links, copied. */
  get bytes(): Uint8Array {
    return this.#bytes.slice(0, this.#length * LINK)
  }

  /** The chain of the first `count` messages, which it has. */
  beginning(count: number): Chain {
    return new Chain(this.#bytes.subarray(0, count * LINK))
  }

  /** Adds a message. Its link is kept with it, and used again behind the same beginning. */
  add(message: ChatMessage): void {
    atOnce(this.adding(message))
  }

  /** As `add`, in steps where the message is long. */
  *adding(message: ChatMessage): Steps<void> {
    const end = this.#length * LINK
    const before = this.#bytes.slice(Math.max(0, end - LINK), end)
    let known = links.get(message)
    if (known === undefined || Buffer.compare(known.before, before) !== 0) {
      const hash = createHash('sha256').update(before).update('\n')
      known = { before, link: (yield* hashed(hash, canonical(message))).subarray(0, LINK) }
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

  /** Whether both begin with the same `count` messages, which both have; 1 at least. */
  agrees(other: Chain, count: number): boolean {
    const [start, end] = [(count - 1) * LINK, count * LINK]
    for (let at = start; at < end; at++) if (this.#bytes[at] !== other.#bytes[at]) return false
    return true
  }

  isSameAs(other: Chain): boolean {
    return this.#length === other.#length && (this.#length === 0 || this.agrees(other, this.#length))
  }

  /** Negative: it stands before the other in an order in which chains with the same beginning stand together, the shorter first. 0: they are the same. */
  compare(other: Chain): number {
    const shared = common(this, other)
    if (shared === Math.min(this.#length, other.#length)) return this.#length - other.#length
    const [start, end] = [shared * LINK, (shared + 1) * LINK]
    return Buffer.compare(this.#bytes.subarray(start, end), other.#bytes.subarray(start, end))
  }
}
