/** Owns what is known of a thread beside its conversation: what clients know of it, and what this process knows while it runs. */
import type { ShownPrompt } from '../../attention/answer-mass.js'
import type { ChatMessage, TemplateVariables, ToolDefinition } from '../../chat/message.js'
import type { CostlyFolds } from '../../context/fragment.js'
import type { StoredMessage } from '../../store/port.js'
import { Chain, messageKey } from './message-match.js'

// What clients know of a thread's messages, and what finds the thread by them: keys, chain and places.

/** Bytes that a message takes in memory, about, without its texts and tokens. */
const MESSAGE = 500

/** Messages are only added; what another thread, or this one before, worked out for the same messages is taken over. */
export class View {
  readonly #seen: StoredMessage['seen'][] = []
  readonly #messages: ChatMessage[] = []
  readonly #keys: string[] = []
  /** By message of the view: the index of the message in the conversation. */
  readonly #places: number[] = []
  /** By message of the view: whether it is an answer that was given here. */
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

  /** Which of these messages are answers that the server gave; a client may have sent the others as it liked. */
  get given(): readonly boolean[] {
    return this.#given
  }

  /**
   * Of the messages by which requests find the thread. A cut answer at the end is not among them: its client may have less of it
   * (`Thread.takeCut`).
   */
  get chain(): Chain {
    return this.cut === null ? this.#chain : this.#chain.beginning(this.#messages.length - 1)
  }

  /** The last message, if it is an answer that was cut; else null. */
  get cut(): ChatMessage | null {
    const last = this.#messages.at(-1)
    return last?.cut === true ? last : null
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
    this.#given.push(message.role === 'assistant' && (typeof seen !== 'string' || message.sampled !== undefined))
    this.#keys.push(keyOf?.(known, at) ?? messageKey(known))
    if (at >= this.#chain.length) this.#chain.add(known)
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

/** What only this process knows of a thread, and goes on knowing when its messages are put away. */
export class RuntimeState {
  /** What its answers were shown. */
  shown = new ShownSteps()
  /** Tools of ours that the model was last shown beside the client's. */
  own: readonly ToolDefinition[] = []
  /** Whether the client's tools were a catalogue then, and not shown. */
  isCatalogue = false
  /** What the template was last told. */
  variables: TemplateVariables = {}
  /** Names of the client's tools in the order in which they came, those that went among them. */
  toolOrder: readonly string[] = []
  /** Whether an engine may hold cells of it. */
  warm = false
  /** What the ask under way says of folds that cost; null: nothing, or there is none. */
  costlyFolds: CostlyFolds | null = null
}

// What a thread's answers were shown since its cells were last exact: enough to show it again, trace of hidden text and all.

/** Prompts kept; an older beginning is forgotten. */
const MOST = 256

/** Of this process only: what a store brings back has no steps. */
export class ShownSteps {
  #steps: ShownPrompt[] = []
  /** Whether the first of them was exact, so that nothing before it matters. */
  #isWhole = false

  /** The answer to this prompt is there. `isExact`: its cells are what a fresh prefill makes. */
  note(prompt: ShownPrompt, isExact: boolean): void {
    if (isExact) {
      this.#steps = []
      this.#isWhole = true
    }
    this.#steps.push(prompt)
    if (this.#steps.length > MOST) {
      this.#steps.shift()
      this.#isWhole = false
    }
  }

  /** Up to the prompt whose answer is this message, those that only went on left out; null where that is not known. */
  upTo(answer: number): readonly ShownPrompt[] | null {
    const at = this.#steps.findIndex(({ messages }) => messages === answer)
    if (!this.#isWhole || at < 0) return null
    const steps = this.#steps.slice(0, at + 1)
    return steps.filter((step, index) => !isSame(step, steps[index + 1]))
  }
}

const isSame = (a: ShownPrompt, b: ShownPrompt | undefined): boolean =>
  b !== undefined && a.contract === b.contract && JSON.stringify(a.edits) === JSON.stringify(b.edits)
