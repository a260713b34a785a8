/**
 * The ids of responses. An id has the thread and the place in it; the stored response says whether the thread still has the answer there.
 * Its end is random, because a thread that a client shortens has another response at the same place later.
 */
import { randomUUID } from 'node:crypto'
import type { ChatMessage } from '../../chat/message.js'

/** The name under which the model sees the server's search for tools. */
export const SERVER_SEARCH = 'tool_search'

/** The place of a response in its thread. */
export interface ResponsePlace {
  readonly thread: string
  /** How many messages the thread has up to and including the response. A summary counts as the messages that it stands for. */
  readonly messages: number
  /** Whether the first of the thread's messages came from `instructions`, which apply to one response only. */
  readonly instructed: boolean
  /** Whether the response is a compaction alone, so that it adds no message. */
  readonly compacted: boolean
}

export const responseId = ({ thread, messages, instructed, compacted }: ResponsePlace): string =>
  `resp_${thread}_${messages}${instructed ? 'i' : ''}${compacted ? 'c' : ''}x${randomUUID().slice(0, 8)}`

/** Makes the id of a response that is not stored and so cannot be continued. */
export const unstoredId = (): string => `resp_${randomUUID().replaceAll('-', '')}`

/** Reads the place in a thread from a response's id. Returns null for an id of another form, or of a response that was not stored. */
export function placeOf(id: string): ResponsePlace | null {
  const [, thread, messages, instructed, compacted] = /^resp_(.+)_(\d{1,9})(i?)(c?)(?:x[0-9a-f]+)?$/.exec(id) ?? []
  return thread === undefined
    ? null
    : { thread, messages: Number(messages), instructed: instructed === 'i', compacted: compacted === 'c' }
}

/** A response's messages among those of its thread. */
interface ResponseRange {
  /** Index of the first message that the response continues. It is 1 if the thread begins with the response's instructions. */
  readonly from: number
  /** Index of the answer's first message. */
  readonly answer: number
  /** Index after the answer's last message. An answer may have searched first; each search is a call and its result. */
  readonly end: number
}

/** Returns how many searches of the server the stored response has. A client's function may have the same name, so names do not tell. */
export function searchesIn(response: object): number {
  const { output = [] } = response as { readonly output?: readonly { readonly type: string; readonly execution?: string }[] }
  return output.filter(({ type, execution }) => type === 'tool_search_output' && execution === 'server').length
}

/**
 * Returns the response's messages among those of its thread, as clients see them. Returns null if the thread has them no more: a summary
 * stands for the answer, or the thread is shorter.
 * @param searches how many searches the response has at most (`searchesIn`)
 */
export function rangeOf(
  view: readonly ChatMessage[],
  { messages, instructed, compacted }: ResponsePlace,
  searches = Infinity,
): ResponseRange | null {
  const count = messages - Number(instructed)
  // A later response may have brought instructions or taken them out, so a first message of the system may be instructions or input.
  const [first, second] = view[0]?.role !== 'system' ? [0] : instructed ? [1, 0] : [0, 1]
  const range = rangeFrom(first, view, count, compacted, searches)
  if (range !== null || second === undefined || compacted) return range
  const other = rangeFrom(second, view, count, compacted, searches)
  // A summary there stands for other messages than those of the response.
  return other === null || view[other.answer]!.stands !== undefined ? null : other
}

/** Returns the range of a response whose messages begin at `from`; null when no answer ends its `count` messages. */
function rangeFrom(
  from: number,
  view: readonly ChatMessage[],
  count: number,
  compacted: boolean,
  searches: number,
): ResponseRange | null {
  let left = count
  const answer = view.findIndex(({ stands = 1 }, at) => at >= from && (left -= stands) <= 0)
  const last = view[answer]
  if (last === undefined || left < 0) return null
  // A compaction that keeps the user's messages may leave one of them at the answer's place.
  if (!compacted && last.role !== 'assistant' && last.stands === undefined) return null
  let end = answer + 1
  const isSearch = () => view[end - 1]?.toolCalls?.[0]?.name === SERVER_SEARCH && view[end]?.name === SERVER_SEARCH
  for (let more = searches; more > 0 && isSearch(); more--) end += 2
  return { from, answer, end }
}
