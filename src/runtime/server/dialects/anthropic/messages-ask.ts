/** Translates requests to `/v1/messages` into an `Ask`, including tool search and its results. */
import Type from 'typebox'
import { begun, Effort, placeholderOf, TemplateFields, templateFieldsOf, textOf, Thinking } from '../fields.js'
import { KvfoldField, kvfoldOf } from '../kvfold-field.js'
import { type DeferredTools, foundText, type ToolSearch } from '../../threads/server-tools.js'
import { clientTool, isLeftOut } from './client-tools.js'
import { compactedIn, CompactionField, ContextManagement, managementOf } from './context-management.js'
import { DiagnosticsField } from './diagnostics.js'
import type { ChatMessage, ToolCall, ToolDefinition } from '../../../chat/message.js'
import type { Steps } from '../../../core/turns.js'
import type { Sampling } from '../../../engine/engine.js'
import type { AnswerFormat, Ask, Tenant, UnsupportedParts } from '../../ask.js'
import { FieldError, unsupported } from '../../problem.js'
import { definedFields, isRecord } from '../../../core/json.js'
import { type PlacedMessage, resultsInOrder } from '../results.js'
import { callOf, checkChoice, checkTools, NO_PARAMETERS, STRICT } from '../tools.js'

const TEXT = { text: 'text' } as const

/** Translates a request to `/v1/messages` into an `Ask`. @throws FieldError */
export function* messagesAsk(
  body: MessagesRequest,
  tenant: Tenant,
  defaults: Sampling,
  unsupportedParts?: UnsupportedParts,
): Steps<Ask> {
  const { messages: all, tools, deferred } = yield* promptOf(body, unsupportedParts)
  const { messages, beginning } = begun(all, `messages[${body.messages.length - 1}]`, body)
  const choice = checkChoice(choiceOf(body), [...tools, ...(deferred?.tools ?? []), ...(deferred?.searches ?? [])])
  const { temperature, top_p: topP, top_k: topK, stop_sequences: stop, model, tool_choice: wanted } = body
  return {
    tenant,
    messages,
    tools,
    toolChoice: choice,
    sampling: { ...defaults, ...definedFields({ temperature, topP, topK }) },
    maxTokens: body.max_tokens,
    ...definedFields({
      model,
      stop,
      deferred,
      beginning,
      parallelCalls: wanted?.disable_parallel_tool_use === undefined ? undefined : !wanted.disable_parallel_tool_use,
      format: formatOf(body),
      ...templateOf(body),
    }),
    ...managementOf(body),
    ...kvfoldOf(body.kvfold),
  }
}

/** Returns the template fields of a request. @throws FieldError */
export const templateOf = (body: PromptRequest): ReturnType<typeof templateFieldsOf> =>
  templateFieldsOf(body, { field: 'output_config.effort', value: body.output_config?.effort })

/** Returns the messages and tools of a request. @throws FieldError */
export function* promptOf(
  body: PromptRequest,
  unsupportedParts: UnsupportedParts = 'refuse',
): Steps<OfferedTools & { readonly messages: ChatMessage[] }> {
  if (body.mcp_servers !== undefined && body.mcp_servers.length > 0)
    throw unsupported(
      'mcp_servers',
      'mcp_servers is not supported: the only servers that are called are those that the operator named with --mcp-config.',
    )
  if (body.container !== undefined) throw unsupported('container', 'container is not supported; this server runs no code.')
  const system = body.system === undefined ? [] : [{ role: 'system', content: textOf(body.system, 'system', TEXT) } as const]
  const offered = toolsOf(body.tools ?? [])
  const known = new Map([...offered.tools, ...(offered.deferred?.tools ?? [])].map((tool) => [tool.name, tool]))
  const names = new Map<string, string>()
  const placed = ({ role, content }: PromptRequest['messages'][number], index: number): PlacedMessage[] => {
    const place = `messages[${index}].content`
    if (typeof content === 'string') return [{ message: { role, content }, place }]
    const blocks = blocksOf(content, place)
    if (role === 'system') return [{ message: { role, content: textOf(content, place, TEXT) }, place }]
    return role === 'assistant'
      ? assistantMessages(blocks, place, names, known, unsupportedParts)
      : userMessages(blocks, place, names, known, unsupportedParts)
  }
  const messages: PlacedMessage[] = []
  for (const [index, message] of body.messages.entries()) {
    for (const each of placed(message, index)) messages.push(each)
    yield
  }
  // The last compaction replaces all messages before it, except system messages.
  const from = messages.findLastIndex(({ message }) => message.stands !== undefined)
  const left = messages.filter(({ message }, at) => at >= from || message.role === 'system')
  return { messages: [...system, ...(yield* resultsInOrder(left))], ...offered }
}

interface OfferedTools {
  readonly tools: readonly ToolDefinition[]
  readonly deferred: DeferredTools | undefined
}

type KnownTools = ReadonlyMap<string, ToolDefinition>

interface ContentBlock {
  readonly type: string
  readonly [key: string]: unknown
}

function blocksOf(content: unknown, place: string): ContentBlock[] {
  if (!Array.isArray(content)) throw new FieldError(place, `${place} must be a string or a list of content blocks.`)
  return content.map((block: unknown, index) => {
    if (isRecord(block) && typeof block['type'] === 'string') return block as ContentBlock
    throw new FieldError(`${place}[${index}]`, `${place}[${index}] must be an object with a type.`)
  })
}

/**
 * Translates an assistant message's content blocks. They make one message, but each tool search ends a message and adds its result as the
 * next.
 */
function assistantMessages(
  blocks: readonly ContentBlock[],
  place: string,
  names: Map<string, string>,
  known: KnownTools,
  unsupportedParts: UnsupportedParts,
): PlacedMessage[] {
  const messages: PlacedMessage[] = []
  let [text, thoughts, toolCalls]: [string[], string[], ToolCall[]] = [[], [], []]
  const flush = () => {
    const message: ChatMessage = {
      role: 'assistant',
      content: text.join('\n'),
      ...(thoughts.length === 0 ? {} : { reasoning: thoughts.join('\n') }),
      ...(toolCalls.length === 0 ? {} : { toolCalls }),
    }
    messages.push({ message, place })
    ;[text, thoughts, toolCalls] = [[], [], []]
  }
  blocks.forEach((block, index) => {
    const at = `${place}[${index}]`
    switch (block.type) {
      case 'text':
        text.push(stringOf(block, 'text', at))
        break
      case 'compaction': {
        const message = compactedIn(block, at)
        if (message === null) break
        flush()
        messages.push({ message, place: at })
        break
      }
      case 'thinking':
        thoughts.push(stringOf(block, 'thinking', at))
        break
      // Only Anthropic's servers can decrypt it.
      case 'redacted_thinking':
        break
      case 'server_tool_use':
      case 'tool_use': {
        const [id, name, input] = [stringOf(block, 'id', at), stringOf(block, 'name', at), block['input'] ?? {}]
        if (!isRecord(input)) throw new FieldError(`${at}.input`, `${at}.input must be an object.`)
        names.set(id, name)
        toolCalls.push(callOf(id, name, block, input))
        break
      }
      case 'tool_search_tool_result': {
        const id = stringOf(block, 'tool_use_id', at)
        const name = names.get(id)
        flush()
        const content = resultText(block['content'], known, `${at}.content`)
        messages.push({
          message: { role: 'tool', content, toolCallId: id, ...definedFields({ name }) },
          place: `${at}.tool_use_id`,
        })
        break
      }
      default:
        if (unsupportedParts === 'refuse') throw foreign(block, at)
        text.push(placeholderOf(block.type))
    }
  })
  if (text.length + thoughts.length + toolCalls.length > 0 || messages.length === 0) flush()
  return messages
}

/** Translates a user message's content blocks. Each tool result becomes a message of its own, and so does the text between them. */
function userMessages(
  blocks: readonly ContentBlock[],
  place: string,
  names: ReadonlyMap<string, string>,
  known: KnownTools,
  unsupportedParts: UnsupportedParts,
): PlacedMessage[] {
  const messages: PlacedMessage[] = []
  let text: string[] = []
  const flush = () => {
    if (text.length > 0) messages.push({ message: { role: 'user', content: text.join('\n') }, place })
    text = []
  }
  blocks.forEach((block, index) => {
    const at = `${place}[${index}]`
    if (block.type === 'text') text.push(stringOf(block, 'text', at))
    else if (block.type === 'compaction') {
      const message = compactedIn(block, at)
      if (message !== null) {
        flush()
        messages.push({ message, place: at })
      }
    } else if (block.type === 'tool_result') {
      flush()
      const id = stringOf(block, 'tool_use_id', at)
      const said = saidIn(block['content'], `${at}.content`, known)
      const name = names.get(id)
      // Chat templates have no field for a failed call, so the text must say it.
      const content = block['is_error'] === true ? `Error: ${said}` : said
      messages.push({
        message: { role: 'tool', content, toolCallId: id, ...definedFields({ name }) },
        place: `${at}.tool_use_id`,
      })
    } else if (unsupportedParts === 'placeholder') text.push(placeholderOf(block.type))
    else throw foreign(block, at)
  })
  flush()
  return messages.length > 0 ? messages : [{ message: { role: 'user', content: '' }, place }]
}

/** Returns the text of a tool result. References to tools become the tools' definitions. */
function saidIn(content: unknown, place: string, known: KnownTools): string {
  if (content === undefined) return ''
  return hasReferences(content) ? referenced(content, known, place) : textOf(content, place, TEXT, 'placeholder')
}

function stringOf(block: ContentBlock, key: string, place: string): string {
  const value = block[key]
  if (typeof value !== 'string') throw new FieldError(`${place}.${key}`, `${place}.${key} must be a string.`)
  return value
}

const foreign = ({ type }: ContentBlock, place: string): FieldError =>
  unsupported(
    `${place}.type`,
    `${place} is of type ${JSON.stringify(type.slice(0, 40))}, which this server does not take here. Leave it out, or start the server with --unsupported placeholder.`,
  )

function toolsOf(tools: NonNullable<PromptRequest['tools']>): OfferedTools {
  const searches: ToolSearch[] = []
  const deferred: ToolDefinition[] = []
  const shown = tools.flatMap((tool, index): ToolDefinition[] => {
    const {
      name,
      type = 'custom',
      description = '',
      input_schema: parameters = NO_PARAMETERS,
      strict,
      defer_loading: defers,
    } = tool
    const search = searchOf(name, type)
    if (search !== null) {
      searches.push(search)
      return []
    }
    if (isLeftOut(tool)) return []
    const known = type === 'custom' ? { description, parameters } : clientTool(type)
    if (known === null)
      throw unsupported(
        `tools[${index}].type`,
        `tools[${index}] is of type ${JSON.stringify(type.slice(0, 40))}; custom tools, tool search, bash, text_editor and memory are supported.`,
      )
    const definition = { name, ...known, ...definedFields({ strict }) }
    if (defers === true) deferred.push(definition)
    return defers === true ? [] : [definition]
  })
  checkTools(
    tools.map(({ name, description, input_schema: parameters }) => ({ name, ...definedFields({ description, parameters }) })),
    (index) => `tools[${index}].name`,
    (index) => tools[index]!.defer_loading === true,
  )
  return { tools: shown, deferred: deferred.length + searches.length === 0 ? undefined : { tools: deferred, searches } }
}

function choiceOf({ tool_choice: choice }: PromptRequest): Ask['toolChoice'] {
  switch (choice?.type) {
    case 'any':
      return 'required'
    case 'tool':
      if (choice.name === undefined) throw new FieldError('tool_choice.name', 'tool_choice.name is missing.')
      return { name: choice.name }
    case 'none':
      return 'none'
    case 'auto':
    case undefined:
      return 'auto'
  }
}

function formatOf({ output_config: config, output_format: older, kvfold }: MessagesRequest): AnswerFormat | undefined {
  const format = config?.format ?? older
  if (format === undefined) return kvfold?.grammar === undefined ? undefined : { kind: 'grammar', grammar: kvfold.grammar }
  const param = config?.format === undefined ? 'output_format' : 'output_config.format'
  if (kvfold?.grammar !== undefined) throw new FieldError('kvfold.grammar', `Give kvfold.grammar or ${param}, not both.`)
  if (format['type'] !== 'json_schema') throw unsupported(`${param}.type`, `${param}.type must be json_schema.`)
  if (format['schema'] === undefined) throw new FieldError(`${param}.schema`, `${param}.schema is missing.`)
  return { kind: 'schema', schema: format['schema'] }
}

// The body schema of `/v1/messages`. Unknown fields are ignored; `kvfold.ignored` lists those that would change the answer.

const Content = Type.Unsafe<unknown>({ type: ['string', 'array'], description: 'text, or content blocks' })

const Tool = Type.Object({
  name: Type.String(),
  type: Type.Optional(Type.String()),
  description: Type.Optional(Type.String()),
  input_schema: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  strict: Type.Optional(Type.Boolean({ description: STRICT })),
  defer_loading: Type.Optional(Type.Boolean({ description: 'true: not shown until a search or a tool_reference finds it' })),
})

const Prompt = {
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  messages: Type.Array(Type.Object({ role: Type.Enum(['user', 'assistant', 'system']), content: Content }), {
    minItems: 1,
    maxItems: 100_000,
  }),
  system: Type.Optional(Content),
  tools: Type.Optional(Type.Array(Tool)),
  tool_choice: Type.Optional(
    Type.Object({
      type: Type.Enum(['auto', 'any', 'tool', 'none']),
      name: Type.Optional(Type.String()),
      disable_parallel_tool_use: Type.Optional(Type.Boolean()),
    }),
  ),
  mcp_servers: Type.Optional(Type.Array(Type.Unknown(), { description: 'refused unless empty' })),
  container: Type.Optional(Type.Unknown({ description: 'refused' })),
  cache_control: Type.Optional(Type.Unknown({ description: 'caching is automatic; it splits usage where it stands' })),
  context_management: ContextManagement,
  compaction: CompactionField,
  ...TemplateFields,
  thinking: Thinking,
  output_config: Type.Optional(
    Type.Object({
      format: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
      effort: Type.Optional(Effort),
    }),
  ),
}

export const MessagesBody = Type.Object({
  ...Prompt,
  max_tokens: Type.Integer({ minimum: 1 }),
  stop_sequences: Type.Optional(Type.Array(Type.String(), { maxItems: 16 })),
  stream: Type.Optional(Type.Boolean()),
  temperature: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_k: Type.Optional(Type.Integer({ minimum: 0, maximum: 1_000_000 })),
  output_format: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  metadata: Type.Optional(Type.Unknown({ description: 'changes no answer: notes of the client' })),
  service_tier: Type.Optional(Type.Unknown({ description: 'changes no answer: there is one tier' })),
  diagnostics: DiagnosticsField,
  kvfold: KvfoldField,
})

export const CountBody = Type.Object(Prompt)

export type MessagesRequest = Type.Static<typeof MessagesBody>
type PromptRequest = Type.Static<typeof CountBody>

// Tool search of Anthropic's API: deferred tools, searches that the server carries out, and their results as text.

const SEARCH = /^tool_search_tool_(bm25|regex)(_\d{8})?$/

/** Returns the search for which this tool entry stands; null for an ordinary tool. */
function searchOf(name: string, type: string): ToolSearch | null {
  const [, kind] = SEARCH.exec(type) ?? []
  return kind === undefined ? null : { name, by: kind === 'bm25' ? 'words' : 'pattern' }
}

/**
 * Returns the definitions of the referenced tools, in the order of the references.
 * @throws FieldError for a reference to a tool that the request does not have
 */
function referenced(references: unknown, tools: ReadonlyMap<string, ToolDefinition>, place: string): string {
  if (!Array.isArray(references)) throw new FieldError(place, `${place} must be a list.`)
  return foundText(references.map((reference: unknown, index) => referencedTool(reference, tools, `${place}[${index}]`)))
}

function referencedTool(reference: unknown, tools: ReadonlyMap<string, ToolDefinition>, place: string): ToolDefinition {
  const name = isRecord(reference) ? reference['tool_name'] : undefined
  const tool = typeof name === 'string' ? tools.get(name) : undefined
  if (tool !== undefined) return tool
  throw new FieldError(`${place}.tool_name`, `${place}.tool_name names no tool of this request; send its definition, too.`)
}

/** Whether a tool result contains references to tools. */
const hasReferences = (content: unknown): content is readonly unknown[] =>
  Array.isArray(content) && content.some((part) => isRecord(part) && part['type'] === 'tool_reference')

/** Returns the text of a search result. It equals the text in the thread, so that the prompt stays cacheable. @throws FieldError */
function resultText(content: unknown, tools: ReadonlyMap<string, ToolDefinition>, place: string): string {
  if (!isRecord(content)) throw new FieldError(place, `${place} must be an object.`)
  const { type, tool_references: references, error_code: code, error_message: message } = content
  if (type === 'tool_search_tool_search_result') return referenced(references, tools, `${place}.tool_references`)
  return typeof message === 'string' ? message : `Error: ${typeof code === 'string' ? code : 'unavailable'}`
}
