/** Owns tool search as Anthropic's API has it: tools that are deferred, the searches that the server carries out, and their blocks both ways. */
import type { ToolCall, ToolDefinition } from '../../../chat/message.js'
import type { SearchResult } from '../../ask.js'
import { FieldError } from '../../problem.js'
import { isRecord } from '../../../core/json.js'
import { foundText, type ToolSearch } from '../../threads/deferred-tools.js'

const SEARCH = /^tool_search_tool_(bm25|regex)(_\d{8})?$/

/** The search that a tool of the request is; null: it is none. */
export function searchOf(name: string, type: string): ToolSearch | null {
  const [, kind] = SEARCH.exec(type) ?? []
  return kind === undefined ? null : { name, by: kind === 'bm25' ? 'words' : 'pattern' }
}

/** What references to tools stand for, in the order of the references. @throws FieldError for one that names no tool of the request */
export function referenced(references: unknown, tools: ReadonlyMap<string, ToolDefinition>, place: string): string {
  if (!Array.isArray(references)) throw new FieldError(place, `${place} must be a list.`)
  return foundText(references.map((reference: unknown, index) => referencedTool(reference, tools, `${place}[${index}]`)))
}

function referencedTool(reference: unknown, tools: ReadonlyMap<string, ToolDefinition>, place: string): ToolDefinition {
  const name = isRecord(reference) ? reference['tool_name'] : undefined
  const tool = typeof name === 'string' ? tools.get(name) : undefined
  if (tool !== undefined) return tool
  throw new FieldError(`${place}.tool_name`, `${place}.tool_name names no tool of this request; send its definition, too.`)
}

/** Whether the content of a client's result is, or has, references to tools. */
export const hasReferences = (content: unknown): content is readonly unknown[] =>
  Array.isArray(content) && content.some((part) => isRecord(part) && part['type'] === 'tool_reference')

/** What a search's result says, as its own thread has it. @throws FieldError */
export function resultText(content: unknown, tools: ReadonlyMap<string, ToolDefinition>, place: string): string {
  if (!isRecord(content)) throw new FieldError(place, `${place} must be an object.`)
  const { type, tool_references: references, error_code: code, error_message: message } = content
  if (type === 'tool_search_tool_search_result') return referenced(references, tools, `${place}.tool_references`)
  return typeof message === 'string' ? message : `Error: ${typeof code === 'string' ? code : 'unavailable'}`
}

/** A search and its result as blocks. */
export const searchBlocks = ({ call, found, error }: SearchResult): readonly [object, object] => [
  useBlock(call, call.arguments),
  {
    type: 'tool_search_tool_result',
    tool_use_id: call.id,
    content:
      error === null
        ? {
            type: 'tool_search_tool_search_result',
            tool_references: found.map((name) => ({ type: 'tool_reference', tool_name: name })),
          }
        : { type: 'tool_search_tool_result_error', error_code: 'invalid_tool_input', error_message: error },
  },
]

/** A search as a stream begins it, its input empty. */
export const useBlock = ({ id, name }: ToolCall, input: object = {}): object => ({
  ...{ type: 'server_tool_use', id, name, input, caller: { type: 'direct' } },
})
