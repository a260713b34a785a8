/**
 * Owns reading conversations as people have them: request bodies of OpenAI's and Anthropic's APIs, lists and JSONL of messages, session files of Claude
 * Code and Codex, and what `GET /kvfold/threads/{id}/export` gives.
 */
import type { ChatMessage, ToolCall, ToolDefinition } from '../chat/message.js'

export interface Recorded {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  /** The object that it was, for what else stands in it; null for lists and lines. */
  readonly body: Fields | null
}

type Fields = Readonly<Record<string, unknown>>

/** What is wrong, and where. */
export class Unreadable extends Error {}

/** @throws Unreadable */
export function readRecorded(text: string): Recorded {
  const json = parsed(text)
  if (isFields(json)) return ofBody(json)
  if (Array.isArray(json)) return { messages: ofItems(json, 'it'), tools: [], body: null }
  const lines = text.split('\n').filter((line) => line.trim() !== '')
  const records = lines.map((line, index) => {
    const record = parsed(line)
    if (isFields(record)) return record
    throw new Unreadable(lines.length === 1 ? `it is not JSON (${reasonOf(text)})` : `line ${index + 1}: it is not a JSON object`)
  })
  if (records.length === 0) throw new Unreadable('it is empty')
  // A log of requests: each has all that went before.
  const request = records.map((record) => bodyIn(record)).findLast((body) => body !== null)
  return request === undefined ? { messages: ofItems(sessionItems(records), 'it'), tools: [], body: null } : ofBody(request)
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

function reasonOf(text: string): string {
  try {
    JSON.parse(text)
    return ''
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}

const isFields = (value: unknown): value is Fields => typeof value === 'object' && value !== null && !Array.isArray(value)
const textIn = (fields: Fields, ...keys: readonly string[]): string | undefined =>
  keys.map((key) => fields[key]).find((value) => typeof value === 'string')

const isBody = (fields: Fields): boolean =>
  Array.isArray(fields['messages']) || (fields['input'] !== undefined && fields['type'] === undefined)

/** The request that a line of a log holds. */
const bodyIn = (record: Fields): Fields | null =>
  [record, record['request'], record['body']].filter(isFields).find(isBody) ?? null

function ofBody(body: Fields): Recorded {
  const { messages, input, instructions, system } = body
  if (!isBody(body)) {
    // A session of one line.
    if (textIn(body, 'role', 'type') !== undefined)
      return { messages: ofItems(sessionItems([body]), 'it'), tools: [], body: null }
    throw new Unreadable('it: there are no messages in it')
  }
  const head = [system, instructions].flatMap((content) => (content === undefined ? [] : [{ role: 'system', content }]))
  const items = Array.isArray(messages) ? messages : typeof input === 'string' ? [{ role: 'user', content: input }] : input
  if (!Array.isArray(items)) throw new Unreadable('input: it must be text or a list')
  if (items.length === 0) throw new Unreadable('messages: there are none')
  const tools = Array.isArray(body['tools']) ? body['tools'].map((tool: unknown, index) => toolOf(tool, `tools.${index}`)) : []
  return { messages: [...ofItems(head, 'system'), ...ofItems(items, 'messages')], tools, body }
}

function toolOf(tool: unknown, place: string): ToolDefinition {
  const fields = isFields(tool) && isFields(tool['function']) ? tool['function'] : tool
  const name = isFields(fields) ? textIn(fields, 'name') : undefined
  if (!isFields(fields) || name === undefined) throw new Unreadable(`${place}: it has no name`)
  const parameters = [fields['parameters'], fields['input_schema']].find(isFields) ?? { type: 'object', properties: {} }
  return { name, description: textIn(fields, 'description') ?? '', parameters }
}

/** The messages and items of a session file, those before its last compaction left out. */
function sessionItems(records: readonly Fields[]): readonly Fields[] {
  let items: Fields[] = []
  let last: unknown = null
  for (const record of records) {
    const { type, payload, message } = record
    if (type === 'compacted' && isFields(payload)) {
      const kept = payload['replacement_history']
      items = Array.isArray(kept) ? kept.filter(isFields) : [{ role: 'user', content: textIn(payload, 'message') ?? '' }]
    } else if (type === 'response_item' && isFields(payload)) items.push(payload)
    else if (type === 'system' && record['subtype'] === 'compact_boundary') items = []
    else if (isFields(message) && record['isSidechain'] !== true) {
      const same = message['id'] !== undefined && message['id'] === last
      const before = items.at(-1)
      // Claude Code writes a line for every block of an answer.
      if (same && before !== undefined && Array.isArray(before['content']) && Array.isArray(message['content']))
        items[items.length - 1] = {
          ...before,
          content: [...(before['content'] as unknown[]), ...(message['content'] as unknown[])],
        }
      else items.push(message)
      last = message['id']
    } else if (record['role'] !== undefined || /^(message|function_call|custom_tool_call|reasoning)/.test(String(type)))
      items.push(record)
  }
  if (items.length === 0) throw new Unreadable('it: there are no messages in it')
  return items
}

const ROLES: Readonly<Record<string, ChatMessage['role']>> = {
  system: 'system',
  developer: 'system',
  user: 'user',
  assistant: 'assistant',
  tool: 'tool',
}

function ofItems(items: readonly unknown[], place: string): ChatMessage[] {
  const messages = new Messages()
  for (const [index, item] of items.entries()) {
    const at = place === 'it' ? `message ${index + 1}` : `${place}.${index}`
    if (!isFields(item)) throw new Unreadable(`${at}: it must be an object`)
    // An export of ours has what clients know of a message beside it.
    messages.take(isFields(item['message']) && item['role'] === undefined ? item['message'] : item, at)
  }
  return messages.list
}

class Messages {
  readonly list: ChatMessage[] = []

  take(item: Fields, place: string): void {
    const type = textIn(item, 'type') ?? 'message'
    const id = textIn(item, 'call_id', 'id') ?? ''
    if (item['role'] !== undefined) this.#message(item, place)
    else if (type.endsWith('_output')) this.#add({ role: 'tool', content: plain(item['output']), toolCallId: id })
    else if (type === 'function_call' || type === 'custom_tool_call')
      this.#call(callOf(id, textIn(item, 'name') ?? '', item['arguments'] ?? item['input']))
    else if (type !== 'reasoning' && !type.endsWith('_call')) throw new Unreadable(`${place}.role: it is missing`)
  }

  #message(item: Fields, place: string): void {
    const role = ROLES[String(item['role'])]
    if (role === undefined) throw new Unreadable(`${place}.role: there is no role ${JSON.stringify(item['role'])}`)
    const { content } = item
    const blocks = Array.isArray(content) ? content.filter(isFields) : []
    const results = blocks.filter(({ type }) => type === 'tool_result')
    for (const result of results)
      this.#add({ role: 'tool', content: plain(result['content']), toolCallId: textIn(result, 'tool_use_id') ?? '' })
    const said = plain(Array.isArray(content) ? blocks.filter(({ type }) => type !== 'tool_result') : content)
    if (results.length > 0 && said === '') return
    const calls = [
      ...blocks
        .filter(({ type }) => type === 'tool_use')
        .map((use) => callOf(textIn(use, 'id') ?? '', textIn(use, 'name') ?? '', use['input'])),
      ...(Array.isArray(item['tool_calls']) ? item['tool_calls'] : []).filter(isFields).map((call) => {
        const called = isFields(call['function']) ? call['function'] : call
        return callOf(textIn(call, 'id') ?? '', textIn(called, 'name') ?? '', called['arguments'])
      }),
      // An export of ours has them as they are.
      ...((item['toolCalls'] ?? []) as readonly ToolCall[]),
    ]
    const [callId, name] = [textIn(item, 'tool_call_id', 'toolCallId'), textIn(item, 'name')]
    this.#add({
      role,
      content: said,
      ...(calls.length === 0 ? {} : { toolCalls: calls }),
      ...(callId === undefined ? {} : { toolCallId: callId }),
      ...(name === undefined ? {} : { name }),
    })
  }

  #add(message: ChatMessage): void {
    this.list.push(message)
  }

  /** Calls that stand alone belong to the answer before them. */
  #call(call: ToolCall): void {
    const last = this.list.at(-1)
    if (last?.role === 'assistant') this.list[this.list.length - 1] = { ...last, toolCalls: [...(last.toolCalls ?? []), call] }
    else this.#add({ role: 'assistant', content: '', toolCalls: [call] })
  }
}

function callOf(id: string, name: string, args: unknown): ToolCall {
  if (isFields(args)) return { id, name, arguments: args }
  const text = typeof args === 'string' ? args : JSON.stringify(args ?? {})
  const value = parsed(text)
  return isFields(value) ? { id, name, arguments: value } : { id, name, arguments: {}, malformed: text }
}

/** The text of a content: its parts one after another, what is no text by its kind. */
function plain(content: unknown): string {
  if (typeof content === 'string') return content
  if (isFields(content)) return textIn(content, 'content', 'text') ?? JSON.stringify(content)
  if (!Array.isArray(content)) return ''
  return content
    .filter(isFields)
    .map((part) => textIn(part, 'text') ?? (/tool_use|thinking/.test(String(part['type'])) ? '' : `[${String(part['type'])}]`))
    .join('')
}
