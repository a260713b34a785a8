/**
 * Transcripts: conversations that other programs recorded, with text to fold in them. The user names the folds; without that, kvfold
 * proposes those that an agent would make.
 */
import { freshConversation } from '../core/ids.js'
import Type from 'typebox'
import type { ChatMessage, ToolCall, ToolDefinition } from '../chat/message.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import { noted } from '../context/size-note.js'
import { KvfoldError } from '../core/errors.js'
import { isRecord } from '../core/json.js'
import { checked, inWords, strict, Text } from '../core/schema.js'
import { span, type Span } from '../core/span.js'
import { readJson, writeJson } from '../core/written-json.js'
import type { LlamaEngine } from '../engine/llama.js'
import { refuseHopeless } from '../engine/model-facts.js'
import type { ThreadEdits } from '../store/port.js'
import { readText } from './options.js'

/** A span of one message's content to fold. */
interface TranscriptFold {
  readonly message: number
  readonly span: Span
  /** The summary to show in place of the text. Null: the default marker. */
  readonly summary: string | null
}

export interface Transcript {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  /** The folds. Empty when no text is worth a fold. */
  readonly folds: readonly TranscriptFold[]
  /** Whether kvfold proposed the folds, because the file names none. */
  readonly proposed: boolean
  /** For an export of kvfold: what is hidden already. Null for other files. */
  readonly edits: ThreadEdits | null
}

const place = { id: Text, message: Type.Integer({ minimum: 0 }) }
const stretch = { ...place, span: Type.Object({ start: Type.Integer({ minimum: 0 }), end: Type.Integer() }) }
/** The fields of a thread's edits that must be valid, because wrong values would do harm. */
const Edits = Type.Object({
  fragments: Type.Array(Type.Object({ ...stretch, state: Type.Object({ kind: Type.Enum(['open', 'folded', 'summarised']) }) })),
  searches: Type.Array(Type.Object(stretch)),
  ids: Type.Integer({ minimum: 0 }),
  omissions: Type.Optional(
    Type.Array(Type.Object({ ...place, omits: Type.Object({ part: Type.Enum(['message', 'reasoning', 'inputs']) }) })),
  ),
})

const Folds = Type.Array(
  strict({
    message: Type.Integer({ minimum: 0 }),
    from: Type.Optional(Text),
    to: Type.Optional(Text),
    summary: Type.Optional(Text),
  }),
  { minItems: 1 },
)

/** Reads the file of `--transcript`. Returns null without the option. @throws KvfoldError cli/bad-usage */
export const givenTranscript = (path: string | undefined): Transcript | null =>
  path === undefined ? null : parseTranscript(readText(path, '--transcript'), path)

/**
 * Parses a transcript, and finds its folds or proposes some. `source`: the file's name, for errors. @throws KvfoldError cli/bad-usage with
 * the first fault
 */
export function parseTranscript(json: string, source: string): Transcript {
  const { messages, tools, body } = recordedIn(json, source)
  const given = body?.['folds']
  const edits = body?.['format'] === 'kvfold-thread/1' ? editsIn(body, messages, source) : null
  const noting = { messages: noted(messages, tools), tools, edits }
  if (given === undefined) {
    const taken = new Set([...(edits?.fragments ?? []), ...(edits?.omissions ?? [])].map(({ message }) => message))
    return { ...noting, folds: proposed(messages).filter(({ message }) => !taken.has(message)), proposed: true }
  }
  const parsed = checked(Type.Object({ folds: Folds }), { folds: given })
  if (!parsed.ok) throw wrong(source, inWords(parsed.faults[0]))
  return {
    ...noting,
    folds: parsed.value.folds.map(({ summary, ...fold }, index) => ({
      message: fold.message,
      span: stretchOf(messages, fold, (why) => wrong(source, `folds.${index}: ${why}`)),
      summary: summary ?? null,
    })),
    proposed: false,
  }
}

/** Returns what an export of kvfold hides. @throws KvfoldError cli/bad-usage */
function editsIn({ edits }: TranscriptFields, messages: readonly ChatMessage[], source: string): ThreadEdits | null {
  if (edits === undefined) return null
  const read = checked(Type.Object({ edits: Edits }), { edits })
  if (!read.ok) throw wrong(source, inWords(read.faults[0]))
  const { fragments, searches, omissions = [] } = read.value.edits
  const isOutside = ({ message, span: { start, end } }: { readonly message: number; readonly span: Span }) =>
    end < start || end > (messages[message]?.content.length ?? -1)
  if ([...fragments, ...searches].some(isOutside) || omissions.some(({ message }) => message >= messages.length))
    throw wrong(source, 'its edits name text that is not in its messages')
  return edits as ThreadEdits
}

/** Reads a conversation in any supported format. @throws KvfoldError cli/bad-usage */
function recordedIn(text: string, source: string): Recorded {
  try {
    return readRecorded(text)
  } catch (error) {
    if (error instanceof UnreadableTranscript) throw wrong(source, error.message)
    throw error
  }
}

/** The fewest characters with which a tool result, or another message, is worth a fold. */
const LEAST = { tool: 400, other: 2000 }
/** How many of the newest tool results are never proposed, because an agent may still need them. */
const NEWEST = 3

/**
 * Proposes the folds that an agent would make: all long tool results but the newest. If there are none, all long messages before the last
 * one.
 */
function proposed(messages: readonly ChatMessage[]): readonly TranscriptFold[] {
  const whole = (message: number): TranscriptFold => ({
    message,
    span: span(0, messages[message]?.content.length ?? 0),
    summary: null,
  })
  const results = messages.flatMap(({ role }, at) => (role === 'tool' ? [at] : [])).slice(0, -NEWEST)
  const old = results.filter((at) => (messages[at]?.content.length ?? 0) >= LEAST.tool)
  if (old.length > 0) return old.map(whole)
  return messages.flatMap(({ role, content }, at) =>
    role !== 'system' && at < messages.length - 1 && content.length >= LEAST.other ? [whole(at)] : [],
  )
}

const wrong = (source: string, why: string): KvfoldError =>
  new KvfoldError('cli/bad-usage', `The transcript ${source} cannot be used: ${why}. \`kvfold plan --help\` shows the format.`)

/**
 * Returns the span from the beginning of `from` to the end of the first `to` after it. Without `from` it begins with the message, without
 * `to` it ends with the message.
 * @param what what the span is for, in errors
 */
export function stretchOf(
  messages: readonly ChatMessage[],
  {
    message: index,
    from,
    to,
  }: { readonly message: number; readonly from?: string | undefined; readonly to?: string | undefined },
  fail: (why: string) => KvfoldError,
  what = 'fold',
): Span {
  const content = messages[index]?.content
  if (content === undefined) throw fail(`there is no message ${index}; the first is 0, the last ${messages.length - 1}`)
  const start = from === undefined ? 0 : content.indexOf(from)
  if (start < 0) throw fail(`message ${index} does not contain ${JSON.stringify(from)}`)
  const last = to === undefined ? content.length : content.indexOf(to, start + (from?.length ?? 0))
  if (last < 0) throw fail(`message ${index} does not contain ${JSON.stringify(to)} after the beginning of the ${what}`)
  const end = last + (to?.length ?? 0)
  if (start === end) throw fail(`message ${index} is empty`)
  return span(start, end)
}

/**
 * Makes a conversation to continue from a transcript, with its hidden text and the folds that the user named. Leaves out its tools, which
 * belong to other programs. @throws KvfoldError cli/bad-usage
 */
export async function begunBy(engine: LlamaEngine, transcript: Transcript): Promise<ConversationState> {
  const { messages, folds, proposed: isProposed } = transcript
  for (const { content } of messages) await refuseHopeless(engine.model, engine.info.context, [content])
  return (await foldedBy(engine, { ...transcript, tools: [] }, isProposed ? [] : folds)).state
}

/** Returns the conversation with these folds, made in order. @throws KvfoldError cli/bad-usage when a fold cannot be made */
export async function foldedBy(
  engine: LlamaEngine,
  { messages, tools, edits }: Pick<Transcript, 'messages' | 'tools' | 'edits'>,
  folds: Transcript['folds'],
): Promise<Conversation> {
  const id = freshConversation()
  let summary = ''
  const before = { id, messages, ...(edits ?? { fragments: [], searches: [], ids: 0 }) }
  const conversation = Conversation.of(before, {
    ...portsOf(engine, id, tools),
    summarize: () => Promise.resolve({ ok: true, summary, ledger: [] }),
  })
  for (const [index, fold] of folds.entries()) {
    if (fold.message >= messages.length)
      throw new KvfoldError('cli/bad-usage', `folds.${index} is in the answer, which cannot be folded.`)
    const cut = conversation.cut([fold], 1)
    const fragment = cut.ok ? cut.fragments[0] : undefined
    if (fragment === undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `folds.${index} cannot be made: ${cut.ok ? 'it is less than a token.' : cut.message}`,
      )
    summary = fold.summary ?? ''
    if (fold.summary === null) conversation.fold(fragment.id)
    else await conversation.summarize(fragment.id, 'what follows')
  }
  return conversation
}

// Formats of recorded conversations: request bodies of OpenAI's and Anthropic's APIs, lists and JSONL of messages or requests, session
// files of Claude Code and Codex, and exports (`GET /kvfold/threads/{id}/export`).

interface Recorded {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  /** The whole JSON object, for further fields such as `folds`. Null for a list of messages, and for lines without a request. */
  readonly body: TranscriptFields | null
}

type TranscriptFields = Readonly<Record<string, unknown>>

/** The error for a transcript that cannot be read. It says what is wrong and where. */
class UnreadableTranscript extends Error {}

/** Reads a recorded conversation in any of the formats. @throws UnreadableTranscript */
export function readRecorded(text: string): Recorded {
  const json = parsed(text)
  if (isRecord(json)) return ofBody(json)
  if (Array.isArray(json)) return { messages: ofItems(json, 'it'), tools: [], body: null }
  const lines = text.split('\n').filter((line) => line.trim() !== '')
  const records = lines.map((line, index) => {
    const record = parsed(line)
    if (isRecord(record)) return record
    throw new UnreadableTranscript(
      lines.length === 1 ? `it is not JSON (${reasonOf(text)})` : `line ${index + 1} is not a JSON object`,
    )
  })
  if (records.length === 0) throw new UnreadableTranscript('it is empty')
  // In a log of requests, the last request contains all earlier messages.
  const request = records.map((record) => bodyIn(record)).findLast((body) => body !== null)
  return request === undefined ? { messages: ofItems(sessionItems(records), 'it'), tools: [], body: null } : ofBody(request)
}

function parsed(text: string): unknown {
  try {
    return readJson(text)
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

const textIn = (fields: TranscriptFields, ...keys: readonly string[]): string | undefined =>
  keys.map((key) => fields[key]).find((value) => typeof value === 'string')

const isBody = (fields: TranscriptFields): boolean =>
  Array.isArray(fields['messages']) || (fields['input'] !== undefined && fields['type'] === undefined)

/** Returns the request in a line of a log; null when it has none. */
const bodyIn = (record: TranscriptFields): TranscriptFields | null =>
  [record, record['request'], record['body']].filter(isRecord).find(isBody) ?? null

function ofBody(body: TranscriptFields): Recorded {
  const { messages, input, instructions, system } = body
  if (!isBody(body)) {
    // A session file with a single line.
    if (textIn(body, 'role', 'type') !== undefined)
      return { messages: ofItems(sessionItems([body]), 'it'), tools: [], body: null }
    throw new UnreadableTranscript('it has no messages')
  }
  const head = [system, instructions].flatMap((content) => (content === undefined ? [] : [{ role: 'system', content }]))
  const items = Array.isArray(messages) ? messages : typeof input === 'string' ? [{ role: 'user', content: input }] : input
  if (!Array.isArray(items)) throw new UnreadableTranscript('input must be text or a list')
  if (items.length === 0) throw new UnreadableTranscript('messages is empty')
  const tools = Array.isArray(body['tools']) ? body['tools'].map((tool: unknown, index) => toolOf(tool, `tools.${index}`)) : []
  return { messages: [...ofItems(head, 'system'), ...ofItems(items, 'messages')], tools, body }
}

function toolOf(tool: unknown, place: string): ToolDefinition {
  const fields = isRecord(tool) && isRecord(tool['function']) ? tool['function'] : tool
  const name = isRecord(fields) ? textIn(fields, 'name') : undefined
  if (!isRecord(fields) || name === undefined) throw new UnreadableTranscript(`${place} has no name`)
  const parameters = [fields['parameters'], fields['input_schema']].find(isRecord) ?? { type: 'object', properties: {} }
  return { name, description: textIn(fields, 'description') ?? '', parameters }
}

/** Whether an item of a Codex session is a message, a call or an output. Codex also writes snapshots, tools and encrypted summaries. */
const isSaid = (item: TranscriptFields): boolean => /^message$|_call(?:_output)?$/.test(textIn(item, 'type') ?? 'message')

/** Returns the messages and items of a session after its last compaction. */
function sessionItems(records: readonly TranscriptFields[]): readonly TranscriptFields[] {
  let items: TranscriptFields[] = []
  let last: unknown = null
  for (const record of records) {
    const { type, payload, message } = record
    if (type === 'compacted' && isRecord(payload)) {
      const kept = payload['replacement_history']
      items = Array.isArray(kept)
        ? kept.filter(isRecord).filter(isSaid)
        : [{ role: 'user', content: textIn(payload, 'message') ?? '' }]
    } else if (type === 'response_item' && isRecord(payload)) {
      if (isSaid(payload)) items.push(payload)
    } else if (type === 'system' && record['subtype'] === 'compact_boundary') items = []
    else if (isRecord(message) && record['isSidechain'] !== true) {
      const same = message['id'] !== undefined && message['id'] === last
      const before = items.at(-1)
      // Claude Code writes a line for each block of an answer.
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
  if (items.length === 0) throw new UnreadableTranscript('it has no messages')
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
    if (!isRecord(item)) throw new UnreadableTranscript(`${at} must be an object`)
    // Exports of kvfold wrap each message in an object with data about it.
    messages.take(isRecord(item['message']) && item['role'] === undefined ? item['message'] : item, at)
  }
  return messages.list
}

class Messages {
  readonly list: ChatMessage[] = []

  take(item: TranscriptFields, place: string): void {
    const type = textIn(item, 'type') ?? 'message'
    const id = textIn(item, 'call_id', 'id') ?? ''
    if (item['role'] !== undefined) this.#message(item, place)
    else if (type.endsWith('_output')) this.#add({ role: 'tool', content: plain(item['output']), toolCallId: id })
    else if (type === 'function_call' || type === 'custom_tool_call')
      this.#call(callOf(id, textIn(item, 'name') ?? '', item['arguments'] ?? item['input']))
    else if (type !== 'reasoning' && !type.endsWith('_call')) throw new UnreadableTranscript(`${place} has no role`)
  }

  #message(item: TranscriptFields, place: string): void {
    const role = ROLES[String(item['role'])]
    if (role === undefined) throw new UnreadableTranscript(`${place} has the unknown role ${JSON.stringify(item['role'])}`)
    const { content } = item
    const blocks = Array.isArray(content) ? content.filter(isRecord) : []
    const results = blocks.filter(({ type }) => type === 'tool_result')
    for (const result of results)
      this.#add({ role: 'tool', content: plain(result['content']), toolCallId: textIn(result, 'tool_use_id') ?? '' })
    const said = plain(Array.isArray(content) ? blocks.filter(({ type }) => type !== 'tool_result') : content)
    if (results.length > 0 && said === '') return
    const calls = [
      ...blocks
        .filter(({ type }) => type === 'tool_use')
        .map((use) => callOf(textIn(use, 'id') ?? '', textIn(use, 'name') ?? '', use['input'])),
      ...(Array.isArray(item['tool_calls']) ? item['tool_calls'] : []).filter(isRecord).map((call) => {
        const called = isRecord(call['function']) ? call['function'] : call
        return callOf(textIn(call, 'id') ?? '', textIn(called, 'name') ?? '', called['arguments'])
      }),
      // Exports of kvfold have calls as `toolCalls`.
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

  /** Adds a call that the file lists apart from its answer: it belongs to the answer before it. */
  #call(call: ToolCall): void {
    const last = this.list.at(-1)
    if (last?.role === 'assistant') this.list[this.list.length - 1] = { ...last, toolCalls: [...(last.toolCalls ?? []), call] }
    else this.#add({ role: 'assistant', content: '', toolCalls: [call] })
  }
}

function callOf(id: string, name: string, args: unknown): ToolCall {
  if (isRecord(args)) return { id, name, arguments: args }
  const text = typeof args === 'string' ? args : writeJson(args ?? {})
  const value = parsed(text)
  return isRecord(value) ? { id, name, arguments: value } : { id, name, arguments: {}, malformed: text }
}

/** Returns the text of a message's content, its parts joined. For a part without text, the name of its type. */
function plain(content: unknown): string {
  if (typeof content === 'string') return content
  if (isRecord(content)) return textIn(content, 'content', 'text') ?? writeJson(content)
  if (!Array.isArray(content)) return ''
  return content
    .filter(isRecord)
    .map((part) => textIn(part, 'text') ?? (/tool_use|thinking/.test(String(part['type'])) ? '' : `[${String(part['type'])}]`))
    .join('')
}
