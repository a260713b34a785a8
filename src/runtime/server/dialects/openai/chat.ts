/** The route `/v1/chat/completions`: translates its requests into an `Ask`. */
import { randomUUID } from 'node:crypto'
import Type from 'typebox'
import type { ChatMessage, ToolDefinition } from '../../../chat/message.js'
import { definedFields, fieldOf, isRecord } from '../../../core/json.js'
import type { Steps } from '../../../core/turns.js'
import type { Sampling } from '../../../engine/engine.js'
import type { Ask, Tenant, UnsupportedParts } from '../../ask.js'
import { type App, described, type Ports } from '../../routes/route.js'
import { FieldError, unsupported } from '../../problem.js'
import {
  begun,
  CacheSaltField,
  cacheSaltOf,
  Effort,
  LoraField,
  NoteFields,
  nullsDownTo,
  PingField,
  pingOf,
  StopField,
  stopOf,
  StreamOptions,
  TemplateFields,
  templateFieldsOf,
  textOf,
  translated,
} from '../fields.js'
import { ignoredIn, KvfoldField, kvfoldOf } from '../kvfold-field.js'
import { type PlacedMessage, resultsInOrder } from '../results.js'
import { LimitFields, limitsOf, SamplingFields, samplingOf, SpeculateFields, speculateOf } from '../sampling-fields.js'
import { pageOf, sessionOf } from '../session-headers.js'
import { allowedTools, argumentsAhead, callOf, checkChoice, checkTools, NO_PARAMETERS, STRICT } from '../tools.js'
import { FormFields, formOf, WITH_NULLS } from './answer-form.js'
import { chatCompletion, ChatStream } from './chat-reply.js'
import { DropFields, dropsOf } from './drops.js'
import { ReasoningControl } from './reasoning-control.js'
import { LEFT_OUT } from './response-tools.js'
import { checkPromptLogprobs, PromptLogprobsField, TokenFields } from './wire.js'

/**
 * How many levels deep nulls are removed from a body: down to the fields of messages, tools and `response_format`. Schemas and arguments
 * are deeper, and keep their nulls.
 */
const NULLS = 5

export function addChat(app: App, ports: Ports): void {
  const { service, sampling, fingerprint, unsupportedParts, exchange } = ports
  const control = new ReasoningControl()
  control.addRoute(app, ports)
  app.post(
    '/v1/chat/completions',
    {
      schema: { ...described('Chat completion (OpenAI)', 'openai'), body: ChatBody },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
      preHandler: argumentsAhead,
    },
    async (request, reply) => {
      const { body, tenant } = request
      const ask = await translated(body, chatAsk(body, tenant, sampling, unsupportedParts))
      const head = { id: `chatcmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000), system_fingerprint: fingerprint }
      const wish = {
        kvfold: body.kvfold,
        ignored: [...toolsLeftOut(body.tools), ...ignoredIn(body, ChatBody)],
        logprobs: body.logprobs === true,
        tokens: body.return_token_ids === true,
        asIds: body.return_tokens_as_token_ids === true,
        timings: body.timings_per_token === true,
        progress: body.return_progress === true,
        usage: body.stream_options?.include_usage === true,
        counts: body.stream_options?.continuous_usage_stats === true,
      }
      const streamed = body.stream === true
      const session = sessionOf(request.headers)
      const running = exchange(request, reply)
      const stream = new ChatStream(head, wish)
      const isControlled = streamed && body.reasoning_control === true
      const reasoning = isControlled ? control.enter(head.id, { tenant, model: () => stream.model }) : null
      const begin = (signal: AbortSignal) => {
        const whole = { ...session, ...ask, signal, streamed, ...definedFields({ endReasoning: reasoning?.signal }) }
        return body.n === undefined || body.n === 1 ? [service.ask(whole)] : service.several(whole, body.n)
      }
      try {
        if (!streamed) return chatCompletion(head, await running.answers(begin), wish)
        return await running.stream(begin, stream, body.kvfold?.ping ?? pingOf(body), pageOf(request.headers))
      } finally {
        reasoning?.leave()
      }
    },
  )

  app.post(
    '/v1/chat/completions/input_tokens',
    {
      schema: { ...described('Tokens of a chat’s prompt (llama-server)', 'llama-server'), body: ChatBody },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
      preHandler: argumentsAhead,
    },
    (request, reply) =>
      exchange(request, reply).wait(async (signal) => {
        const { body, tenant } = request
        const ask = await translated(body, chatAsk(body, tenant, sampling, unsupportedParts))
        const { model, messages, tools, template, beginning } = ask
        const tokens =
          beginning === undefined
            ? await service.count(model, messages, tools, { signal, ...definedFields({ template }) })
            : (await service.promptTokens({ ...ask, signal })).length
        return { object: 'response.input_tokens', input_tokens: tokens }
      }),
  )
}

// Translates a request into an `Ask`.

const PARTS = { text: 'text', refusal: 'refusal' } as const

/** Translates a request into an `Ask`. @throws FieldError */
export function* chatAsk(body: ChatRequest, tenant: Tenant, defaults: Sampling, unsupportedParts?: UnsupportedParts): Steps<Ask> {
  refuseWhatChangesTheAnswer(body)
  const { messages, beginning } = beginningIn(body, yield* messagesOf(body.messages, unsupportedParts))
  const tools = toolsOf(body.tools ?? [])
  return {
    tenant,
    messages,
    tools,
    toolChoice: checkChoice(choiceOf(body.tool_choice), tools),
    sampling: samplingOf(body, defaults),
    ...limitsOf(body),
    ...definedFields({
      beginning,
      cacheSalt: cacheSaltOf(body),
      model: body.model,
      lora: body.lora,
      speculate: speculateOf(body),
      maxTokens: mostTokens(body),
      parallelCalls: body.parallel_tool_calls,
      stop: stopOf(body.stop),
      format: formOf(body),
      drops: dropsOf(body, body.messages, messages),
      ...templateFieldsOf(body, effortOf(body)),
      logprobs: body.logprobs === true ? (body.top_logprobs ?? 0) : undefined,
      promptLogprobs: body.prompt_logprobs,
    }),
    ...kvfoldOf(body.kvfold),
  }
}

/** Returns the most tokens of the answer; undefined when unlimited. With 0 only the prompt is computed. */
function mostTokens({ max_completion_tokens, max_tokens, n_predict }: ChatRequest): number | undefined {
  const most = n_predict ?? max_completion_tokens ?? max_tokens
  return most === -1 ? undefined : most
}

/** Values of `reasoning_format` that describe what this server does anyway. */
const SPLIT: readonly string[] = ['auto', 'deepseek']

/** Whether the answer cannot continue a text, because it must have a format, begin with reasoning, or be a forced call. */
function isHeld(body: ChatRequest): boolean {
  const choice = choiceOf(body.tool_choice)
  return formOf(body) !== undefined || body.enable_thinking === true || (choice !== 'auto' && choice !== 'none')
}

/**
 * Returns the messages, and a last assistant message as the beginning of the answer if possible, as in llama-server. vLLM's fields in the
 * request override this.
 * @throws FieldError when the request demands it and it is impossible
 */
function beginningIn(body: ChatRequest, messages: readonly ChatMessage[]): ReturnType<typeof begun> {
  const { continue_final_message: isContinued, add_generation_prompt: isPrompted } = body
  const place = `messages[${messages.length - 1}]`
  const last = messages.at(-1)
  const isAsked = isContinued === true || isPrompted === false
  if (isContinued !== undefined && isPrompted !== undefined && isContinued === isPrompted)
    throw new FieldError(
      'continue_final_message',
      `continue_final_message and add_generation_prompt cannot both be ${String(isPrompted)}: the answer either goes on with the last message or begins anew.`,
    )
  if (isAsked && last?.role !== 'assistant')
    throw new FieldError(place, `${place} is not one of the assistant, so that there is no answer to go on with.`)
  const canBe = last?.toolCalls === undefined && last?.reasoning === undefined && !isHeld(body)
  const goesOn = isAsked || (canBe && isContinued !== false && isPrompted !== true)
  return goesOn ? begun(messages, place, body) : { messages, beginning: undefined }
}

/** Returns the thinking effort and the name of its field: OpenAI's, or else OpenRouter's. */
const effortOf = ({ reasoning_effort: effort, reasoning }: ChatRequest) =>
  effort === undefined ? { field: 'reasoning.effort', value: reasoning?.effort } : { field: 'reasoning_effort', value: effort }

function refuseWhatChangesTheAnswer(body: ChatRequest): void {
  checkPromptLogprobs(body)
  if (body.reasoning_format !== undefined && !SPLIT.includes(body.reasoning_format))
    throw unsupported(
      'reasoning_format',
      `reasoning_format may only be ${SPLIT.join(' or ')}: thoughts always come apart from the answer, as reasoning_content.`,
    )
  if (body.functions !== undefined) throw unsupported('functions', 'functions is not supported; send tools instead.')
  if (body.function_call !== undefined)
    throw unsupported('function_call', 'function_call is not supported; send tool_choice instead.')
  if (body.audio !== undefined) throw unsupported('audio', 'audio is not supported; this server answers in text.')
  if (body.modalities?.some((modality) => modality !== 'text') === true)
    throw unsupported('modalities', 'modalities may only be ["text"]; this server answers in text.')
  if (body.top_logprobs !== undefined && body.logprobs !== true)
    throw new FieldError('top_logprobs', 'top_logprobs means nothing without logprobs: true.')
}

/** Translates the messages of a request. @throws FieldError */
function* messagesOf(messages: readonly ChatRequestMessage[], unsupportedParts?: UnsupportedParts): Steps<ChatMessage[]> {
  const names = new Map<string, string>()
  const placed: PlacedMessage[] = []
  for (const message of messages) {
    const place = `messages[${placed.length}]`
    const made = messageOf(message, place, names, unsupportedParts)
    placed.push({ message: made, place: made.role === 'tool' ? `${place}.tool_call_id` : place })
    yield
  }
  return yield* resultsInOrder(placed)
}

/**
 * Translates one message.
 * @param names the tool name of each earlier call, by call id; the message's own calls are added
 */
function messageOf(
  message: ChatRequestMessage,
  place: string,
  names: Map<string, string>,
  unsupportedParts?: UnsupportedParts,
): ChatMessage {
  const { role, tool_calls: calls = [], tool_call_id: answered } = message
  const content = message.content ?? (role === 'assistant' ? message.refusal : undefined)
  if (message.function_call !== undefined)
    throw unsupported(`${place}.function_call`, `${place}.function_call is not supported; send tool_calls instead.`)
  if (message.audio !== undefined)
    throw unsupported(`${place}.audio`, `${place}.audio is not supported; this server takes text only.`)
  if (calls.length > 0 && role !== 'assistant')
    throw new FieldError(`${place}.tool_calls`, `${place}.tool_calls: only messages of the assistant make calls.`)
  if (
    content === undefined &&
    (role !== 'assistant' || (calls.length === 0 && (message.reasoning_content ?? message.reasoning) === undefined))
  )
    throw new FieldError(`${place}.content`, `${place}.content is missing.`)
  const text =
    content === undefined ? '' : textOf(content, `${place}.content`, PARTS, role === 'tool' ? 'placeholder' : unsupportedParts)
  switch (role) {
    case 'tool': {
      if (answered === undefined) throw new FieldError(`${place}.tool_call_id`, `${place}.tool_call_id is missing.`)
      const name = message.name ?? names.get(answered)
      return { role, content: text, toolCallId: answered, ...definedFields({ name }) }
    }
    case 'assistant': {
      const toolCalls = calls.map(({ id, function: called }) => callOf(id, called.name, called, called.arguments))
      for (const { id, name } of toolCalls) names.set(id, name)
      const reasoning = message.reasoning_content ?? message.reasoning
      return { role, content: text, ...definedFields({ reasoning }), ...(toolCalls.length === 0 ? {} : { toolCalls }) }
    }
    case 'developer':
      return { role: 'system', content: text }
    case 'system':
    case 'user':
      return { role, content: text }
  }
}

/**
 * Whether only OpenAI's servers carry this tool out, such as `{type: web_search}`. The model does not see it, and `kvfold.ignored` lists
 * it.
 */
const isLeftOut = ({ type, function: definition }: NonNullable<ChatRequest['tools']>[number]): boolean =>
  definition === undefined && LEFT_OUT.test(type)

const toolsLeftOut = (tools: ChatRequest['tools'] = []): readonly string[] =>
  tools.flatMap((tool, index) => (isLeftOut(tool) ? [`tools[${index}]: ${tool.type.slice(0, 40)}`] : []))

function toolsOf(tools: NonNullable<ChatRequest['tools']>): readonly ToolDefinition[] {
  const shown = [...tools.entries()].filter(([, tool]) => !isLeftOut(tool))
  const place = (at: number) => `tools[${shown[at]![0]}].function.name`
  return checkTools(
    shown.map(([index, { type, function: definition }]) => {
      if (type !== 'function')
        throw unsupported(
          `tools[${index}].type`,
          `tools[${index}] is of type ${JSON.stringify(type.slice(0, 40))}; only functions are supported.`,
        )
      if (definition === undefined) throw new FieldError(`tools[${index}].function`, `tools[${index}].function is missing.`)
      const { name, description = '', parameters = NO_PARAMETERS, strict } = definition
      return { name, description, parameters, ...definedFields({ strict }) }
    }),
    place,
  )
}

function choiceOf(choice: ChatRequest['tool_choice']): Ask['toolChoice'] {
  if (choice === undefined) return 'auto'
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice
  if (typeof choice === 'string')
    throw new FieldError('tool_choice', 'tool_choice must be auto, none, required, or name a function.')
  if (choice['type'] === 'allowed_tools')
    return allowedTools(choice['allowed_tools'], 'tool_choice.allowed_tools', (tool) => fieldOf(tool, 'function'))
  if (choice['type'] !== 'function')
    throw unsupported(
      'tool_choice.type',
      'tool_choice.type must be "function" or "allowed_tools"; other kinds of choice are not supported.',
    )
  const named = choice['function']
  const name = isRecord(named) ? named['name'] : undefined
  if (typeof name !== 'string') throw new FieldError('tool_choice.function.name', 'tool_choice.function.name must be a string.')
  return { name }
}

// The body schema of `/v1/chat/completions`. Unknown fields are ignored, as in other OpenAI-compatible servers. Those that would change the
// answer are refused or listed in `kvfold.ignored`.

/** The most answers (`n`) to one request. */
export const MOST_CHOICES = 16

const Name = Type.String({ minLength: 1, maxLength: 256 })

const Call = Type.Object({
  id: Name,
  type: Type.Optional(Type.Literal('function')),
  function: Type.Object({ name: Name, arguments: Type.String() }),
})

const Message = Type.Object({
  role: Type.Enum(['system', 'developer', 'user', 'assistant', 'tool']),
  content: Type.Optional(Type.Unsafe<unknown>({ type: ['string', 'array'], description: 'text, or parts of type text' })),
  refusal: Type.Optional(Type.String({ description: 'of the assistant: its text when it has no content' })),
  name: Type.Optional(Type.String({ description: 'of a tool; ignored elsewhere' })),
  tool_calls: Type.Optional(Type.Array(Call)),
  tool_call_id: Type.Optional(Name),
  reasoning_content: Type.Optional(Type.String()),
  reasoning: Type.Optional(Type.String({ description: 'as reasoning_content' })),
  function_call: Type.Optional(Type.Unknown()),
  audio: Type.Optional(Type.Unknown()),
})

const Tool = Type.Object({
  type: Type.String(),
  function: Type.Optional(
    Type.Object({
      name: Type.String(),
      description: Type.Optional(Type.String()),
      parameters: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
      strict: Type.Optional(Type.Boolean({ description: STRICT })),
    }),
  ),
})

export const ChatBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  messages: Type.Array(Message, { minItems: 1, maxItems: 100_000 }),
  ...SamplingFields,
  ...LimitFields,
  ...SpeculateFields,
  max_tokens: Type.Optional(
    Type.Integer({
      minimum: -1,
      description:
        'default, and -1: what the context has room for; 0: only the prompt is computed; a tool call that is cut off is left out, and finish_reason is length',
    }),
  ),
  max_completion_tokens: Type.Optional(Type.Integer({ minimum: -1, description: 'as max_tokens' })),
  n_predict: Type.Optional(Type.Integer({ minimum: -1, description: 'as max_tokens, and before it' })),
  n: Type.Optional(Type.Integer({ minimum: 1, maximum: MOST_CHOICES })),
  stop: StopField,
  lora: LoraField,
  stream: Type.Optional(Type.Boolean()),
  stream_options: StreamOptions,
  sse_ping_interval: PingField,
  logprobs: Type.Optional(Type.Boolean()),
  top_logprobs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20 })),
  timings_per_token: Type.Optional(
    Type.Boolean({ description: 'as llama-server has it: whether each part of a stream tells how long it took' }),
  ),
  return_progress: Type.Optional(
    Type.Boolean({ description: 'as llama-server has it: whether a stream tells how much of the prompt is computed' }),
  ),
  reasoning_format: Type.Optional(Type.String({ description: 'auto or deepseek: thoughts come apart from the answer' })),
  reasoning_control: Type.Optional(
    Type.Boolean({
      description: 'as llama-server has it: whether /v1/chat/completions/control may end the reasoning of a stream',
    }),
  ),
  prompt_logprobs: PromptLogprobsField,
  ...TokenFields,
  tools: Type.Optional(Type.Array(Tool)),
  tool_choice: Type.Optional(
    Type.Unsafe<string | Record<string, unknown>>({
      type: ['string', 'object'],
      description:
        'auto, none, required, {type: function, function: {name}}, or {type: allowed_tools, allowed_tools: {mode, tools}}',
    }),
  ),
  parallel_tool_calls: Type.Optional(Type.Boolean()),
  ...FormFields,
  ...TemplateFields,
  continue_final_message: Type.Optional(
    Type.Boolean({ description: 'whether the answer goes on with a last message of the assistant; default: it does' }),
  ),
  add_generation_prompt: Type.Optional(Type.Boolean({ description: 'false: as continue_final_message: true' })),
  reasoning_effort: Type.Optional(Effort),
  reasoning: Type.Optional(
    Type.Object(
      { effort: Type.Optional(Effort), max_tokens: Type.Optional(Type.Integer({ minimum: 0 })) },
      { description: 'as reasoning_effort, and as thinking_budget_tokens' },
    ),
  ),
  ...DropFields,
  ...NoteFields,
  cache_salt: CacheSaltField,
  store: Type.Optional(Type.Boolean({ description: 'changes no answer: chat completions are not stored for fetching' })),
  cache_prompt: Type.Optional(Type.Boolean({ description: 'changes no answer: cells in the cache are always used' })),
  kvfold: KvfoldField,
  functions: Type.Optional(Type.Unknown({ deprecated: true, description: 'refused: use tools' })),
  function_call: Type.Optional(Type.Unknown({ deprecated: true, description: 'refused: use tool_choice' })),
  audio: Type.Optional(Type.Unknown({ description: 'refused' })),
  modalities: Type.Optional(Type.Array(Type.String(), { description: 'only text' })),
})

export type ChatRequest = Type.Static<typeof ChatBody>
export type ChatRequestMessage = ChatRequest['messages'][number]
