/** State of a thread beside its conversation: what clients know of it, and what only this process knows. */
import type { ShownPrompt } from '../../attention/answer-mass.js'
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import type { AdapterScale } from '../../engine/engine.js'
import type { StoredMessage } from '../../store/port.js'
import { Chain, messageKey } from './message-match.js'

// The messages of a thread as clients know them, with the keys and the chain by which requests find the thread.

/** Approximate bytes of a message without its texts and tokens. */
const MESSAGE = 500

/**
 * A thread's messages as clients know them. Messages are only appended. Keys and chain links of messages known before are not computed
 * again.
 */
export class View {
  readonly #seen: StoredMessage['seen'][] = []
  readonly #messages: ChatMessage[] = []
  readonly #keys: string[] = []
  /** For each message that clients know, its index in the conversation. */
  readonly #places: number[] = []
  /** For each message that clients know: whether this server generated it. */
  readonly #given: boolean[] = []
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

  /** For each message of the conversation: whether clients know it, and in which form. */
  get seen(): readonly StoredMessage['seen'][] {
    return this.#seen
  }

  /** The messages that clients know, oldest first. */
  get messages(): readonly ChatMessage[] {
    return this.#messages
  }

  /** Keys of the messages that clients know (`messageKey`). */
  get keys(): readonly string[] {
    return this.#keys
  }

  get places(): readonly number[] {
    return this.#places
  }

  /** For each message that clients know: whether this server generated it. Clients may have written the others. */
  get given(): readonly boolean[] {
    return this.#given
  }

  /** The chain by which requests find the thread. A cut answer at the end is left out, because the client may have only its beginning. */
  get chain(): Chain {
    return this.cut === null ? this.#chain : this.#chain.beginning(this.#messages.length - 1)
  }

  /** The last message if it is a cut answer; else null. */
  get cut(): ChatMessage | null {
    const last = this.#messages.at(-1)
    return last?.cut === true ? last : null
  }

  /** Approximate bytes in memory. */
  get size(): number {
    return this.#size
  }

  /**
   * Appends a message of the conversation.
   * @param seen whether clients know the message, and in which form
   * @param keyOf returns the key of a known message if it was computed before
   */
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
    this.#given.push(message.role === 'assistant' && (typeof seen !== 'string' || message.sampled !== undefined))
    this.#keys.push(keyOf?.(known, at) ?? messageKey(known))
    if (at >= this.#chain.length) this.#chain.add(known)
  }
}

const knownOf = ({ message, seen }: StoredMessage): ChatMessage | null =>
  seen === 'nothing' ? null : seen === 'same' ? message : seen

/** Returns approximate bytes in memory, counting two per character. */
const sizeOf = ({ content, reasoning = '', sampled, toolCalls = [] }: ChatMessage): number =>
  MESSAGE +
  2 * (content.length + reasoning.length + (sampled?.text.length ?? 0)) +
  toolCalls.reduce((sum, call) => sum + dataSize(call), 0) +
  4 * (sampled?.tokens.length ?? 0)

/** Approximate bytes of data that JSON can express. */
export function dataSize(value: unknown): number {
  if (typeof value === 'string') return 2 * value.length
  if (typeof value !== 'object' || value === null) return 8
  return Object.values(value).reduce((sum: number, each) => sum + 16 + dataSize(each), 0)
}

/** What the thread's latest prompt showed before its messages: tools and template variables; and the adapters it was computed with. */
export interface PromptHead {
  readonly tools: readonly ToolDefinition[]
  readonly variables: TemplateVariables
  /** The LoRA adapters that apply; undefined for a model without adapters. */
  readonly lora?: readonly AdapterScale[]
}

/** State of a thread that only this process has. It stays in memory when the thread's messages are unloaded. */
export class RuntimeState {
  /** The prompts of the thread's latest answers. */
  shown = new ShownSteps()
  /** Null before the first prompt, and while the thread's messages are unloaded. */
  head: PromptHead | null = null
  /** `head` while the thread is unloaded. The client's tools are kept by name only, because the store has their definitions. */
  away: (Omit<PromptHead, 'tools'> & { readonly tools: readonly (ToolDefinition | string)[] }) | null = null
  /** Names of the client's tools in the order of their first appearance, including tools that later requests left out. */
  toolOrder: readonly string[] = []
  /** Whether an engine may hold cells of the thread. */
  warm = false
  /** How many tokens the thread counts in its tenant's limit of cached tokens (`ThreadIndex.warm`). */
  tokens = 0

  /** Called when the thread is unloaded. Replaces the client's tool definitions with their names. */
  putAway(clients: readonly ToolDefinition[]): void {
    if (this.head === null) return
    const known = new Set(clients)
    this.away = { ...this.head, tools: this.head.tools.map((tool) => (known.has(tool) ? tool.name : tool)) }
    this.head = null
  }

  /** Called when the thread is loaded again. Replaces names with the client's tool definitions. */
  load(clients: readonly ToolDefinition[]): void {
    if (this.away === null) return
    const named = new Map(clients.map((tool) => [tool.name, tool]))
    const tools = this.away.tools.flatMap((tool) => (typeof tool === 'string' ? (named.get(tool) ?? []) : tool))
    this.head = { ...this.away, tools }
    this.away = null
  }
}

// The prompts of a thread's answers since its cells were last exact. Replaying them reproduces the cells, with the traces of hidden text.

/** The most prompts kept. */
const MOST = 256

/** The prompts of a thread's latest answers. A restart of the server loses them. */
export class ShownSteps {
  #steps: ShownPrompt[] = []
  /** Whether the list begins with an exact prompt. Earlier prompts then left no trace in the cells. */
  #isWhole = false

  /** Records the prompt of an answer. `isExact`: all its cells equal those of a fresh prefill. */
  note(prompt: ShownPrompt, isExact: boolean): void {
    if (isExact) {
      this.#steps = []
      this.#isWhole = true
    }
    const last = this.#steps.at(-1)
    // Share one array of edits between prompts with equal edits.
    this.#steps.push(last !== undefined && isSame(prompt, last) ? { ...prompt, edits: last.edits } : prompt)
    if (this.#steps.length > MOST) {
      this.#steps.shift()
      this.#isWhole = false
    }
  }

  /**
   * Returns the prompts up to the one that this answer followed; null when they are not all known. Leaves out a prompt if the next one has
   * the same contract and edits.
   * @param answer index of the answer in the conversation
   */
  upTo(answer: number): readonly ShownPrompt[] | null {
    const at = this.#steps.findIndex(({ messages }) => messages === answer)
    if (!this.#isWhole || at < 0) return null
    const steps = this.#steps.slice(0, at + 1)
    return steps.filter((step, index) => !isSame(step, steps[index + 1]))
  }
}

const isSame = (a: ShownPrompt, b: ShownPrompt | undefined): boolean =>
  b !== undefined && a.contract === b.contract && JSON.stringify(a.edits) === JSON.stringify(b.edits)
