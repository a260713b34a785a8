/** Holds the state of a thread beside its conversation: what clients know of it, and what only this process knows. */
import type { ShownPrompt } from '../../attention/answer-mass.js'
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import type { AdapterScale } from '../../engine/engine.js'
import type { StoredMessage } from '../../store/port.js'
import { Chain, messageKey } from './message-match.js'

// The messages of a thread as clients know them, and the keys, chain and places that find the thread by them.

/** Approximate bytes that a message takes in memory, without its texts and tokens. */
const MESSAGE = 500

/**
 * A thread's messages as its clients know them. Messages are only appended. Keys and links that were computed for the same messages before
 * are reused.
 */
export class View {
  readonly #seen: StoredMessage['seen'][] = []
  readonly #messages: ChatMessage[] = []
  readonly #keys: string[] = []
  /** For each message that clients know, its index in the conversation. */
  readonly #places: number[] = []
  /** For each message that clients know, whether it is an answer of this server. */
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

  /** For each message of the conversation, the form in which clients know it. */
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

  /** For each message that clients know, whether it is an answer of this server. Clients may have written the others as they liked. */
  get given(): readonly boolean[] {
    return this.#given
  }

  /**
   * The chain by which requests find the thread. It leaves out a cut answer at the end, of which the client may have only a part
   * (`Thread.takeCut`).
   */
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
   * Appends a message of the conversation. @param seen how clients know it @param keyOf returns the key of a message that clients know, if
   * it was computed before
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

/** Returns approximate bytes. Counts two bytes a character, though most take one. */
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

/** What a thread's latest prompt had before its messages: the tools that the model saw, the variables of the template, and the adapters. */
export interface PromptHead {
  readonly tools: readonly ToolDefinition[]
  readonly variables: TemplateVariables
  /** The adapters that apply. */
  readonly lora?: readonly AdapterScale[]
}

/** State of a thread that only this process knows. It stays when the thread's messages are unloaded. */
export class RuntimeState {
  /** The prompts to which the thread's answers were given. */
  shown = new ShownSteps()
  /** Null before the first prompt, and while the thread's messages are unloaded. */
  head: PromptHead | null = null
  /** The head while the thread's messages are unloaded. Of its client's tools it has only the names, because the store has the rest. */
  away: (Omit<PromptHead, 'tools'> & { readonly tools: readonly (ToolDefinition | string)[] }) | null = null
  /** Names of the client's tools in the order of their first appearance, including tools no longer sent. */
  toolOrder: readonly string[] = []
  /** Whether an engine may hold cells of the thread. */
  warm = false
  /** How many tokens the thread counts among those that engines may hold (`ThreadIndex.warm`). */
  tokens = 0

  /** Lets go of the definitions of the client's tools, when the thread is unloaded. */
  putAway(clients: readonly ToolDefinition[]): void {
    if (this.head === null) return
    const known = new Set(clients)
    this.away = { ...this.head, tools: this.head.tools.map((tool) => (known.has(tool) ? tool.name : tool)) }
    this.head = null
  }

  /** Takes the definitions of the client's tools from the thread that was loaded again. */
  load(clients: readonly ToolDefinition[]): void {
    if (this.away === null) return
    const named = new Map(clients.map((tool) => [tool.name, tool]))
    const tools = this.away.tools.flatMap((tool) => (typeof tool === 'string' ? (named.get(tool) ?? []) : tool))
    this.head = { ...this.away, tools }
    this.away = null
  }
}

// The prompts of a thread's answers since its cells were last exact. A replay of these prompts shows the thread again, including the trace
// of hidden text.

/** The most prompts kept; older ones are dropped. */
const MOST = 256

/** Keeps the prompts of a thread's latest answers. They exist only in this process: a thread that was read from the store has none. */
export class ShownSteps {
  #steps: ShownPrompt[] = []
  /** Whether the first step kept was exact, so that earlier ones do not matter. */
  #isWhole = false

  /** Records the prompt of an answer. `isExact`: its cells are what a fresh prefill makes. */
  note(prompt: ShownPrompt, isExact: boolean): void {
    if (isExact) {
      this.#steps = []
      this.#isWhole = true
    }
    const last = this.#steps.at(-1)
    // Equal edits take memory once.
    this.#steps.push(last !== undefined && isSame(prompt, last) ? { ...prompt, edits: last.edits } : prompt)
    if (this.#steps.length > MOST) {
      this.#steps.shift()
      this.#isWhole = false
    }
  }

  /**
   * Returns the prompts up to the one whose answer is this message. Leaves out a prompt when the next one has the same contract and
   * edits. Returns null when the prompts are not known.
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
