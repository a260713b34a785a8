/** The input items of `/v1/responses`: their schema, and their translation into messages. */
import Type from 'typebox'
import { FormFields, LOOSE } from './answer-form.js'
import { assistantMessage, BLANK_LINE, type ChatMessage, type ToolCall, type ToolDefinition } from '../../../chat/message.js'
import { FieldError, unsupported } from '../../problem.js'
import { definedFields, isRecord } from '../../../core/json.js'
import { type Steps, turn } from '../../../core/turns.js'
import { writtenLike } from '../../../core/written-json.js'
import type { Responses } from '../../responses/responses.js'
import { CacheSaltField, Effort, LoraField, NoObfuscation, NoteFields, TemplateFields, textOf } from '../fields.js'
import { LimitFields, SamplingFields } from '../sampling-fields.js'
import type { Tenant, UnsupportedParts } from '../../ask.js'
import type { PlacedMessage } from '../results.js'
import { callOf, STRICT } from '../tools.js'
import { compactedIn, ResponseManagement } from './response-compaction.js'
import { flatName, searchCall, searchOutput } from './response-tools.js'
import { KvfoldField } from '../kvfold-field.js'

const PARTS = { input_text: 'text', output_text: 'text', text: 'text', refusal: 'refusal' } as const
const THOUGHTS = { reasoning_text: 'text' } as const

/** Items handled between two yields to the event loop. */
const AT_ONCE = 1000

/** An assistant message under construction. Its reasoning, text and calls are separate items. */
interface MessageDraft {
  reasoning?: string
  content?: string
  readonly toolCalls: ToolCall[]
}

/**
 * Translates items into messages. Adjacent reasoning, text and call items form one assistant message. Yields before each item.
 * @param names the tool name of each earlier call, by call id; new calls are added
 * @param definitionsIn returns the tools that a search's output defines
 * @throws FieldError
 */
export function* messagesOfItems(
  input: unknown,
  names = new Map<string, string>(),
  definitionsIn: (tools: readonly unknown[]) => readonly ToolDefinition[] = () => [],
  unsupportedParts?: UnsupportedParts,
): Steps<PlacedMessage[]> {
  if (typeof input === 'string') return [{ message: { role: 'user', content: input }, place: 'input' }]
  if (!Array.isArray(input)) throw new FieldError('input', 'input must be a string or a list of items.')
  let messages: PlacedMessage[] = []
  let draft: MessageDraft | null = null
  const flush = () => {
    if (draft !== null) messages.push({ message: assistantMessage(draft), place: 'input' })
    draft = null
  }
  const assistant = (isFull: (draft: MessageDraft) => boolean): MessageDraft => {
    if (draft !== null && isFull(draft)) flush()
    return (draft ??= { toolCalls: [] })
  }
  for (const [index, item] of (input as readonly unknown[]).entries()) {
    yield
    const place = `input[${index}]`
    if (!isRecord(item)) throw new FieldError(place, `${place} must be an object.`)
    switch (item['type'] ?? 'message') {
      case 'message': {
        const role = roleOf(item['role'], place)
        const content = textOf(item['content'], `${place}.content`, PARTS, unsupportedParts)
        if (role === 'assistant') {
          // Some models write text after a call. Then the text item still belongs to the message with the call.
          const target = assistant(({ content: said, toolCalls }) => said !== undefined && toolCalls.length === 0)
          target.content = (target.content ?? '') + content
          if (continues(target, messages.at(-1)?.message)) joinTo(target, messages.pop()!.message)
        } else {
          flush()
          messages.push({ message: { role, content }, place })
        }
        break
      }
      case 'reasoning': {
        const text = Array.isArray(item['content']) ? textOf(item['content'], `${place}.content`, THOUGHTS) : ''
        const target = assistant(
          ({ content, toolCalls, reasoning }) => content !== undefined || toolCalls.length > 0 || reasoning !== undefined,
        )
        if (text !== '') target.reasoning = text
        break
      }
      case 'function_call':
      case 'custom_tool_call':
      case 'local_shell_call': {
        const call = callIn(item, place)
        names.set(call.id, call.name)
        assistant(() => false).toolCalls.push(call)
        break
      }
      case 'tool_search_call': {
        const call = searchCall(item, place)
        assistant(() => false).toolCalls.push(call)
        break
      }
      // Codex sends `compaction_summary`.
      case 'compaction':
      case 'compaction_summary': {
        flush()
        const compacted = compactedIn(item, place)
        // This summary replaces all messages before it, except system messages.
        if (compacted?.all === true) messages = messages.filter(({ message }) => message.role === 'system')
        if (compacted !== null) messages.push({ message: compacted.message, place })
        break
      }
      case 'tool_search_output':
        flush()
        messages.push({ message: searchOutput(item, place, definitionsIn), place: `${place}.call_id` })
        break
      case 'function_call_output':
      case 'custom_tool_call_output':
      case 'local_shell_call_output': {
        flush()
        const id = stringOf(item, 'call_id', place)
        const name = names.get(id)
        const content = textOf(item['output'], `${place}.output`, PARTS, 'placeholder')
        messages.push({
          message: { role: 'tool', content, toolCallId: id, ...definedFields({ name }) },
          place: `${place}.call_id`,
        })
        break
      }
      default:
        throw unsupported(
          `${place}.type`,
          `${place} is of type ${JSON.stringify(item['type']).slice(0, 40)}, which this server does not take.`,
        )
    }
  }
  flush()
  if (messages.length === 0) throw new FieldError('input', 'input is empty.')
  return messages
}

/** Whether this text is a further step of the previous assistant message: steps of one answer are joined by a blank line. */
const continues = ({ content = '', toolCalls }: MessageDraft, before: ChatMessage | undefined): boolean =>
  content.startsWith(BLANK_LINE) &&
  toolCalls.length === 0 &&
  before?.role === 'assistant' &&
  before.toolCalls === undefined &&
  before.stands === undefined

function joinTo(draft: MessageDraft, { content, reasoning }: ChatMessage): void {
  draft.content = content + (draft.content ?? '')
  const thoughts = [reasoning, draft.reasoning].filter((thought) => thought !== undefined)
  if (thoughts.length > 0) draft.reasoning = thoughts.join('\n\n')
}

/** Returns the call in an item. For the model, every tool is a function, whatever its type in the client's API. */
function callIn(item: Readonly<Record<string, unknown>>, place: string): ToolCall {
  const id = stringOf(item, 'call_id', place)
  if (item['type'] === 'local_shell_call') {
    const action = isRecord(item['action']) ? item['action'] : {}
    const { command, working_directory, timeout_ms } = action
    const said = Object.entries({ command, working_directory, timeout_ms }).filter(([, value]) => value != null)
    return { id, name: 'local_shell', arguments: writtenLike(Object.fromEntries(said), action) }
  }
  const name = flatName(stringOf(item, 'name', place), item['namespace'])
  if (item['type'] === 'custom_tool_call') return { id, name, arguments: { input: stringOf(item, 'input', place) } }
  return callOf(id, name, item, stringOf(item, 'arguments', place))
}

function roleOf(role: unknown, place: string): 'system' | 'user' | 'assistant' {
  if (role === 'developer' || role === 'system') return 'system'
  if (role === 'user' || role === 'assistant') return role
  throw new FieldError(`${place}.role`, `${place}.role must be one of "user", "assistant", "system", "developer".`)
}

function stringOf(item: Readonly<Record<string, unknown>>, key: string, place: string): string {
  const value = item[key]
  if (typeof value !== 'string') throw new FieldError(`${place}.${key}`, `${place}.${key} must be a string.`)
  return value
}

// An item's id contains its response and its index there, so a client can refer to the item instead of sending it again.

export const itemId = (
  kind: 'cmp' | 'msg' | 'rs' | 'fc' | 'ctc' | 'lsh' | 'tsc' | 'tso',
  response: string,
  index: number,
): string => `${kind}_${response.replace(/^resp_/, '')}_${index}`

/** Returns the input, with each reference to an item replaced by the item. @throws FieldError server/not-found */
export async function withReferenced(input: unknown, tenant: Tenant, responses: Pick<Responses, 'get'>): Promise<unknown> {
  if (!Array.isArray(input)) return input
  /** Outputs of the referenced stored responses, each read once. */
  const outputs = new Map<string, unknown>()
  const stored = async (id: string): Promise<unknown> => {
    const [, response, index] = /^(?:cmp|msg|rs|fc|ctc|lsh|tsc|tso)_(.+)_(\d{1,6})$/.exec(id) ?? []
    if (response === undefined) return undefined
    if (!outputs.has(response)) {
      await turn()
      const kept = (await responses.get(tenant, `resp_${response}`)) as { output?: unknown } | null
      outputs.set(response, kept?.output)
    }
    const output = outputs.get(response)
    const item: unknown = Array.isArray(output) ? output[Number(index)] : undefined
    return isRecord(item) && item['id'] === id ? item : undefined
  }
  const itemOf = async (item: unknown, index: number): Promise<unknown> => {
    if (!isRecord(item) || typeof item['id'] !== 'string') return item
    const { id, type = item['role'] === undefined ? 'item_reference' : 'message' } = item
    if (type !== 'item_reference') return item
    const found = await stored(id)
    if (found !== undefined) return found
    throw new FieldError(
      `input[${index}].id`,
      `input[${index}] refers to ${JSON.stringify(id.slice(0, 80))}, which is no item of a response that is stored here; send the item itself.`,
      'server/not-found',
    )
  }
  const items = await eachOf(input, itemOf)
  // In OpenAI's types, a local shell's output refers to its call's item id instead of the call id.
  const shells = new Map<unknown, Readonly<Record<string, unknown>>>()
  for (const item of items)
    if (isRecord(item) && item['type'] === 'local_shell_call' && !shells.has(item['id'])) shells.set(item['id'], item)
  return eachOf(items, async (item) => {
    if (!isRecord(item) || item['type'] !== 'local_shell_call_output' || typeof item['id'] !== 'string') return item
    const { id, call_id } = item
    const call = shells.get(id) ?? (await stored(id))
    return { ...item, call_id: call_id ?? (isRecord(call) ? call['call_id'] : id) }
  })
}

/** Replaces each item, with yields to the event loop. */
async function eachOf(items: readonly unknown[], change: (item: unknown, index: number) => Promise<unknown>): Promise<unknown[]> {
  const changed: unknown[] = []
  for (const [index, item] of items.entries()) {
    if (index % AT_ONCE === AT_ONCE - 1) await turn()
    changed.push(await change(item, index))
  }
  return changed
}

// The body schema of `/v1/responses`, as far as agents use it. Fields that would change the answer and mean nothing here are refused.

/** The only supported value of `include`. */
export const LOGPROBS = 'message.output_text.logprobs'

export const ResponseBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  lora: LoraField,
  input: Type.Unsafe<unknown>({ type: ['string', 'array'], description: 'text, or items' }),
  instructions: Type.Optional(Type.String({ description: 'system message of this response only' })),
  previous_response_id: Type.Optional(Type.String({ minLength: 1, maxLength: 300 })),
  store: Type.Optional(Type.Boolean({ description: 'false: the response has no id that can be gone on from' })),
  ...SamplingFields,
  ...LimitFields,
  max_output_tokens: Type.Optional(Type.Integer({ minimum: 1 })),
  stream: Type.Optional(Type.Boolean()),
  stream_options: Type.Optional(
    Type.Object({
      include_usage: Type.Optional(Type.Boolean({ description: 'changes nothing: a response always has its usage' })),
      include_obfuscation: NoObfuscation,
    }),
  ),
  timings_per_token: Type.Optional(
    Type.Boolean({ description: 'as llama-server has it: whether each part of a stream tells how long it took' }),
  ),
  return_progress: Type.Optional(
    Type.Boolean({ description: 'as llama-server has it: whether a stream tells how much of the prompt is computed' }),
  ),
  top_logprobs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20 })),
  include: Type.Optional(Type.Array(Type.String())),
  tools: Type.Optional(
    Type.Array(
      Type.Object({
        type: Type.String({
          description: 'function, custom, namespace, local_shell, tool_search; other tools of OpenAI’s servers are left out',
        }),
        name: Type.Optional(Type.String()),
        description: Type.Optional(Type.String()),
        parameters: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
        strict: Type.Optional(Type.Boolean({ description: STRICT })),
        tools: Type.Optional(Type.Array(Type.Unknown(), { description: 'of a namespace' })),
        defer_loading: Type.Optional(Type.Boolean({ description: 'true: not shown until a search finds it' })),
        execution: Type.Optional(
          Type.Enum(['server', 'client'], { description: 'who carries a tool_search out; default: server' }),
        ),
        format: Type.Optional(Type.Unknown({ description: 'of a custom tool: told to the model, not enforced' })),
      }),
    ),
  ),
  tool_choice: Type.Optional(Type.Unsafe<string | Record<string, unknown>>({ type: ['string', 'object'] })),
  parallel_tool_calls: Type.Optional(Type.Boolean()),
  text: Type.Optional(
    Type.Object({
      format: Type.Optional(
        Type.Object({
          type: Type.String(),
          strict: Type.Optional(Type.Boolean({ description: LOOSE })),
          schema: Type.Optional(Type.Unsafe<unknown>({ type: ['object', 'boolean'] })),
        }),
      ),
    }),
  ),
  ...FormFields,
  reasoning: Type.Optional(Type.Object({ effort: Type.Optional(Effort) })),
  ...TemplateFields,
  truncation: Type.Optional(
    Type.Enum(['auto', 'disabled'], { description: 'auto: what does not fit is folded, as by kvfold.overflow: fold-oldest' }),
  ),
  context_management: ResponseManagement,
  ...NoteFields,
  cache_salt: CacheSaltField,
  metadata: Type.Optional(Type.Record(Type.String(), Type.String({ maxLength: 16_384 }), { maxProperties: 64 })),
  background: Type.Optional(Type.Boolean({ description: 'refused when true' })),
  conversation: Type.Optional(Type.Unknown({ description: 'refused: use previous_response_id or kvfold.thread' })),
  prompt: Type.Optional(Type.Unknown({ description: 'refused' })),
  max_tool_calls: Type.Optional(Type.Integer({ description: 'refused: it is about tools of OpenAI' })),
  kvfold: KvfoldField,
})

/** The body schema of `/v1/responses/compact`. */
export const CompactBody = Type.Object({
  ...ResponseBody.properties,
  input: Type.Optional(ResponseBody.properties.input),
})

export type ResponseRequest = Type.Static<typeof ResponseBody>
