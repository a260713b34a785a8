/** Owns tool search of `/v1/responses`: searches that the server carries out and those that the client does, as tools and as items. */
import type { ChatMessage, ToolCall, ToolDefinition } from '../../../chat/message.js'
import { FieldError } from '../../problem.js'
import { isRecord } from '../../../core/json.js'
import type { SearchResult } from '../../ask.js'
import { callOf } from '../tools.js'
import { foundText } from '../../threads/deferred-tools.js'

/** What the model calls them. */
export const SERVER_SEARCH = 'tool_search'
export const CLIENT_SEARCH = 'client_tool_search'

const NO_QUERY = {
  type: 'object',
  properties: { query: { type: 'string', description: 'what the tool does, in a few words' } },
  required: ['query'],
}

type Fields = Readonly<Record<string, unknown>>

/** A search that the client carries out, as a tool of the model. */
export const clientSearch = ({ description, parameters }: Fields): Omit<ToolDefinition, 'name'> => ({
  description:
    typeof description === 'string'
      ? description
      : 'Finds tools that are not shown yet; you can call those in the result from then on.',
  parameters: isRecord(parameters) ? parameters : NO_QUERY,
})

export type SearchCallItem = { readonly id: string; readonly type: 'tool_search_call'; readonly arguments: unknown }

export const callItem = (
  id: string,
  call: ToolCall,
  execution: 'client' | 'server',
  status: 'in_progress' | 'completed',
): SearchCallItem => ({
  ...{ id, type: 'tool_search_call', execution, call_id: call.id, status },
  arguments: status === 'completed' ? call.arguments : {},
})

/** @param tools as the client sent them */
export const outputItem = (id: string, { call }: SearchResult, tools: readonly unknown[]): object => ({
  ...{ id, type: 'tool_search_output', execution: 'server', call_id: call.id, status: 'completed', tools },
})

/** The call of an item, as the model made it. */
export function searchCall(item: Fields, place: string): ToolCall {
  const { arguments: given, execution } = item
  const name = execution === 'client' ? CLIENT_SEARCH : SERVER_SEARCH
  if (typeof given === 'string') return callOf(idIn(item), name, given)
  if (!isRecord(given ?? {})) throw new FieldError(`${place}.arguments`, `${place}.arguments must be an object.`)
  return { id: idIn(item), name, arguments: (given ?? {}) as Fields }
}

/** The result of an item: the definitions of the tools found. */
export function searchOutput(
  item: Fields,
  place: string,
  definitionsIn: (tools: readonly unknown[]) => readonly ToolDefinition[],
): ChatMessage {
  const { tools, execution } = item
  if (!Array.isArray(tools)) throw new FieldError(`${place}.tools`, `${place}.tools must be a list.`)
  const name = execution === 'client' ? CLIENT_SEARCH : SERVER_SEARCH
  return { role: 'tool', content: foundText(definitionsIn(tools)), toolCallId: idIn(item), name }
}

/** Others' servers give their own searches none. */
const idIn = ({ call_id: id }: Fields): string => (typeof id === 'string' ? id : 'tool_search')

/** Where an answer ends that may have searched first: each search is a message and its result. */
export function endOfAnswer(view: readonly ChatMessage[], from: number): number {
  let end = from
  while (view[end - 1]?.toolCalls?.[0]?.name === SERVER_SEARCH && view[end]?.name === SERVER_SEARCH) end += 2
  return end
}
