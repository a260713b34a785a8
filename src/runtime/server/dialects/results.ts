/** Matches tool results to calls, and puts the results in order after their calls. */
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import type { Steps } from '../../core/turns.js'
import { FieldError } from '../problem.js'

/** A message, and its place in the request, e.g. `messages[3]`. For a tool result, the place is that of the field that names the call. */
export interface PlacedMessage {
  readonly message: ChatMessage
  readonly place: string
}

interface KnownCall {
  /** How many of the assistant's messages come before the one that makes the call. */
  readonly step: number
  readonly rank: number
  /** The place in the request of the call's result; null while it has none. */
  answered: string | null
}

/**
 * Moves tool results right after the message whose calls they answer, in the order of the calls. A result after a later message of the
 * assistant stays there, because the model answered without it. An id refers to the last call with that id before the result. When a
 * request extends an earlier one, its order extends the earlier order, so that the cache and the thread's messages still match.
 * @param earlier messages before these that the server already has; they are neither checked nor moved
 * @throws FieldError for a result without a call, for a second result of a call, for two calls in one message with the same id
 */
export function* resultsInOrder(placed: readonly PlacedMessage[], earlier: readonly ChatMessage[] = []): Steps<ChatMessage[]> {
  const calls = new Map<string, KnownCall>()
  const made: ChatMessage[] = []
  let step = -1
  /** After the assistant's last message: results with the rank of their calls, and all other messages. */
  let results: { readonly rank: number; readonly message: ChatMessage }[] = []
  let others: ChatMessage[] = []
  const flush = () => {
    results.sort((one, other) => one.rank - other.rank)
    for (const { message } of results) made.push(message)
    for (const message of others) made.push(message)
    ;[results, others] = [[], []]
  }
  const begin = ({ toolCalls = [] }: ChatMessage, place: string | null) => {
    step++
    toolCalls.forEach(({ id }, rank) => {
      if (place !== null && calls.get(id)?.step === step)
        throw new FieldError(place, `${place} has two calls with the id ${quoted(id)}; give each call an id of its own.`)
      calls.set(id, { step, rank, answered: null })
    })
  }
  for (const message of earlier) {
    yield
    const answered = message.role === 'tool' ? calls.get(message.toolCallId ?? '') : undefined
    if (answered !== undefined) answered.answered = 'an earlier response'
    if (message.role === 'assistant') begin(message, null)
  }
  for (const { message, place } of placed) {
    yield
    if (message.role === 'assistant') {
      flush()
      made.push(message)
      begin(message, place)
    } else if (message.role === 'tool') {
      const call = callOf(message.toolCallId ?? '', place, calls)
      call.answered = place
      if (call.step === step) results.push({ rank: call.rank, message })
      else others.push(message)
    } else others.push(message)
  }
  flush()
  return made
}

function callOf(id: string, place: string, calls: ReadonlyMap<string, KnownCall>): KnownCall {
  const call = calls.get(id)
  if (call === undefined)
    throw new FieldError(
      place,
      `${place} is ${quoted(id)}, and no call before it has that id; send the message that makes the call, or leave the result out.`,
    )
  if (call.answered !== null)
    throw new FieldError(
      place,
      `${place} is ${quoted(id)}, whose result ${call.answered} has given already; send one result for each call.`,
    )
  return call
}

const quoted = (id: string): string => JSON.stringify(id.slice(0, 80))

/** Keeps the calls that have no result so far, to match results that have no id. */
export class OpenCalls {
  /** The open calls of each message, in the order of the messages. */
  readonly #steps: ToolCall[][] = []
  readonly #stepOf = new Map<string, ToolCall[]>()

  /** Whether the conversation has had no call so far. */
  get isUnused(): boolean {
    return this.#stepOf.size === 0
  }

  add(calls: readonly ToolCall[]): void {
    const step = [...calls]
    this.#steps.push(step)
    for (const { id } of calls) this.#stepOf.set(id, step)
  }

  answered(id: string): void {
    const step = this.#stepOf.get(id) ?? []
    const at = step.findIndex((call) => call.id === id)
    if (at !== -1) step.splice(at, 1)
  }

  /**
   * Returns the first open call of this tool in the last message that has one; without a name, the first call of any tool.
   * @throws FieldError when there is none
   */
  first(tool: string | undefined, place: string): ToolCall {
    while (this.#steps.at(-1)?.length === 0) this.#steps.pop()
    const isAny = tool === undefined || tool === ''
    const step = this.#steps.findLast((calls) => calls.some(({ name }) => isAny || name === tool))
    const call = step?.find(({ name }) => isAny || name === tool)
    if (call !== undefined) return call
    const which = isAny ? 'call' : `call of ${JSON.stringify(tool.slice(0, 80))}`
    throw new FieldError(
      place,
      `${place} is a tool's result, and no ${which} before it is without one; send the call, or leave it out.`,
    )
  }
}
