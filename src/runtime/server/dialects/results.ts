/** Matches tool results to calls, and sorts results behind their calls. */
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import type { Steps } from '../../core/turns.js'
import { FieldError } from '../problem.js'

/** A message and where the request has it, such as `messages[3]`. For a tool result: the field that names its call. */
export interface PlacedMessage {
  readonly message: ChatMessage
  readonly place: string
}

interface KnownCall {
  /** How many assistant messages come before the one with the call. */
  readonly step: number
  readonly rank: number
  /** Where in the request the call's result is; null while there is none. */
  answered: string | null
}

/**
 * Moves tool results right behind the message with their calls, in the order of the calls. A result that comes after a further assistant
 * message stays there: the model answered without it. An id means the latest call with that id before the result. If a request extends an
 * earlier one, its sorted messages extend the earlier ones, so cache and thread still match. The generator pauses between messages, so that
 * the event loop stays free, and returns the sorted messages.
 * @param earlier messages that the server already has before these; neither checked nor moved
 * @throws FieldError for a result without a call, for a second result of a call, for two calls in one message with the same id
 */
export function* resultsInOrder(placed: readonly PlacedMessage[], earlier: readonly ChatMessage[] = []): Steps<ChatMessage[]> {
  const calls = new Map<string, KnownCall>()
  const made: ChatMessage[] = []
  let step = -1
  /** Since the last assistant message: results of its calls with the call's index, and all other messages. */
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

/** The calls without a result so far. Matches results that have no id. */
export class OpenCalls {
  /** The open calls of each assistant message, oldest message first. */
  readonly #steps: ToolCall[][] = []
  readonly #stepOf = new Map<string, ToolCall[]>()

  /** Whether no message so far has a call. */
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
   * Returns the first open call of this tool in the latest message that has one; without a tool name, the first open call of the latest
   * message with any.
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
