/** Owns which calls the results of a request answer, and the order in which results stand behind their calls. */
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import { FieldError } from '../problem.js'

/** A message and its place in the request, e.g. `messages[3]`; of a result the field that names its call. */
export interface PlacedMessage {
  readonly message: ChatMessage
  readonly place: string
}

interface KnownCall {
  /** The message that makes it: how many of the assistant's come before. */
  readonly step: number
  readonly rank: number
  /** The place of its result. */
  answered: string | null
}

/**
 * The messages with results right behind the message whose calls they answer, in the order of those calls. A result that comes after a later message of
 * the assistant stays where it is, since the model has answered without it. An id means the last call before the result that has it. The order of a
 * longer request begins with that of a shorter one, so that the cache and the thread's messages still match.
 * @param earlier messages before these that the server has; nothing of them is checked or moved
 * @throws FieldError for a result of a call that there is not, for the second result of a call, for two calls of one message with one id
 */
export function resultsInOrder(placed: readonly PlacedMessage[], earlier: readonly ChatMessage[] = []): ChatMessage[] {
  const calls = new Map<string, KnownCall>()
  const made: ChatMessage[] = []
  let step = -1
  /** Behind the last message of the assistant: results by the rank of their calls, and all other messages. */
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
    const answered = message.role === 'tool' ? calls.get(message.toolCallId ?? '') : undefined
    if (answered !== undefined) answered.answered = 'an earlier response'
    if (message.role === 'assistant') begin(message, null)
  }
  placed.forEach(({ message, place }) => {
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
  })
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

/** Calls that have no result yet, for results without ids. */
export class OpenCalls {
  /** By message, the last one at the end. */
  readonly #steps: ToolCall[][] = []
  readonly #stepOf = new Map<string, ToolCall[]>()

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

  /** The first of the last message that has one of the tool, or of any tool where none is named. @throws FieldError where there is none */
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
