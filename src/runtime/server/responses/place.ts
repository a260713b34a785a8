/**
 * Ids of responses (`/v1/responses`). An id contains the thread and the position of the response in it. A random suffix tells apart two
 * responses at the same position, which occur when a client shortens its thread.
 */
import { randomUUID } from 'node:crypto'
import type { ChatMessage } from '../../chat/message.js'

/** The name of the server's tool search, as the model sees it. */
export const SERVER_SEARCH = 'tool_search'

/** The position of a response in its thread, as its id says it. */
export interface ResponsePlace {
  readonly thread: string
  /** How many messages the thread had up to and including the response. A summary counts as the messages it replaced. */
  readonly messages: number
  /** Whether the thread's first message came from `instructions`, which apply to one response only. */
  readonly instructed: boolean
  /** Whether the response is only a compaction, which adds no message. */
  readonly compacted: boolean
}

export const responseId = ({ thread, messages, instructed, compacted }: ResponsePlace): string =>
  `resp_${thread}_${messages}${instructed ? 'i' : ''}${compacted ? 'c' : ''}x${randomUUID().slice(0, 8)}`

/** Makes an id for a response that is not stored and cannot be continued. */
export const unstoredId = (): string => `resp_${randomUUID().replaceAll('-', '')}`

/** Parses a response's id. Returns null for ids of other forms, and for unstored responses. */
export function placeOf(id: string): ResponsePlace | null {
  const [, thread, messages, instructed, compacted] = /^resp_(.+)_(\d{1,9})(i?)(c?)(?:x[0-9a-f]+)?$/.exec(id) ?? []
  return thread === undefined
    ? null
    : { thread, messages: Number(messages), instructed: instructed === 'i', compacted: compacted === 'c' }
}

/** Where a response is among its thread's messages. */
interface ResponseRange {
  /** Index of the first message; 1 when message 0 is the response's instructions. */
  readonly from: number
  /** Index of the answer's first message. */
  readonly answer: number
  /** Index after the answer's last message. Searches of the server before the answer take two messages each: call and result. */
  readonly end: number
}

/**
 * Returns how many tool searches of the server a stored response has. A client's function may have the same name, so the name does not
 * tell.
 */
export function searchesIn(response: object): number {
  const { output = [] } = response as { readonly output?: readonly { readonly type: string; readonly execution?: string }[] }
  return output.filter(({ type, execution }) => type === 'tool_search_output' && execution === 'server').length
}

/**
 * Returns where the response is among the messages that clients know of its thread. Returns null if the thread no longer has it: a summary
 * replaced it, or the thread became shorter.
 * @param searches the most searches that the response has (`searchesIn`)
 */
export function rangeOf(
  view: readonly ChatMessage[],
  { messages, instructed, compacted }: ResponsePlace,
  searches = Infinity,
): ResponseRange | null {
  const count = messages - Number(instructed)
  // A later request may have added or removed instructions. So a system message at index 0 may be instructions or input; both are tried.
  const [first, second] = view[0]?.role !== 'system' ? [0] : instructed ? [1, 0] : [0, 1]
  const range = rangeFrom(first, view, count, compacted, searches)
  if (range !== null || second === undefined || compacted) return range
  const other = rangeFrom(second, view, count, compacted, searches)
  // A summary at this index replaces messages of another response.
  return other === null || view[other.answer]!.stands !== undefined ? null : other
}

/** Returns the range if the thread's messages from `from` on have a response after `count` messages; else null. */
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
  // After a compaction that keeps the user's messages, a user message may be at this index.
  if (!compacted && last.role !== 'assistant' && last.stands === undefined) return null
  let end = answer + 1
  const isSearch = () => view[end - 1]?.toolCalls?.[0]?.name === SERVER_SEARCH && view[end]?.name === SERVER_SEARCH
  for (let more = searches; more > 0 && isSearch(); more--) end += 2
  return { from, answer, end }
}
