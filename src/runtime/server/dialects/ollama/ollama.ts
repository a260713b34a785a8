/** Ollama's routes below `/api`: translates requests into an `Ask` and writes answers. */
import { hash } from 'node:crypto'
import { definedFields } from '../../../core/json.js'
import type { FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import type { ChatMessage, ToolCall } from '../../../chat/message.js'
import type { Steps } from '../../../core/turns.js'
import type { Sampling } from '../../../engine/engine.js'
import type {
  Answer,
  AnswerFormat,
  AnyAnswer,
  AnyAsked,
  Ask,
  AskEvent,
  CompletionAnswer,
  Tenant,
  UnsupportedParts,
} from '../../ask.js'
import { type App, described, type Ports, whileConnected } from '../../routes/route.js'
import { FieldError, type Problem, unsupported } from '../../problem.js'
import { begun, nullsDownTo, placeholderOf, StopField, stopOf, templateFieldsOf, translated } from '../fields.js'
import { ignoredIn, KvfoldField, kvfoldOf, onlyIgnored, refuseForConversations } from '../kvfold-field.js'
import { SamplingFields, samplingOf } from '../sampling-fields.js'
import { OpenCalls, type PlacedMessage, resultsInOrder } from '../results.js'
import { KvfoldError } from '../../../core/errors.js'
import { addOllamaModels, keepAliveOf, nameIn } from './ollama-models.js'
import { argumentsAhead, callOf, checkTools, inputOf, NO_PARAMETERS } from '../tools.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'

const NULLS = 4

const KeepAlive = Type.Optional(
  Type.Unsafe<string | number>({
    type: ['string', 'number'],
    description:
      'seconds, or 5m; how long a model of --models stays loaded. Below 0: for ever; 0 unloads any model after its use',
  }),
)

const EmbedBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  input: Type.Unsafe<string | string[]>({ type: ['string', 'array'], items: { type: 'string' }, maxItems: 2048 }),
  dimensions: Type.Optional(Type.Integer({ minimum: 1 })),
  truncate: Type.Optional(Type.Boolean({ description: 'false: a text that is too long is refused; else its end is left out' })),
  keep_alive: KeepAlive,
})

/** Body of Ollama's older embedding route, which takes one text. */
const OldEmbedBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  prompt: Type.String(),
  keep_alive: KeepAlive,
})

export function addOllama(app: App, ports: Ports, version: string): void {
  const { service, sampling, unsupportedParts, exchange } = ports
  const embedded = (
    request: FastifyRequest,
    reply: FastifyReply,
    body: Pick<Type.Static<typeof EmbedBody>, 'model' | 'dimensions' | 'truncate' | 'keep_alive'>,
    inputs: readonly string[],
  ) => {
    const { tenant } = request
    const { model, dimensions, truncate = true } = body
    return exchange(request, reply).aside(
      'embeddings',
      (signal) => {
        // An own model for embeddings always stays loaded, so `keep_alive` does not apply to it.
        if (service.sideModels().every(({ use }) => use !== 'embeddings')) keep(ports, body, tenant)
        return service.embed({ tenant, inputs, truncate, signal, ...definedFields({ model, dimensions }) })
      },
      ({ vectors }) => vectors.length,
    )
  }
  /** Replaces the client's model name, which may end with `:latest`, by the server's name. */
  const named = <T extends { readonly model?: string }>(body: T): T => ({
    ...body,
    ...definedFields({ model: nameIn(service, body.model) }),
  })

  app.post(
    '/api/chat',
    {
      schema: { ...described('Chat (Ollama)', 'ollama'), body: OllamaChatBody },
      preValidation: nullsDownTo(NULLS, ['format']),
      preHandler: argumentsAhead,
    },
    async (request, reply) => {
      const body = named(request.body)
      const { messages = [] } = body
      // In Ollama's API, a request without messages only loads or unloads the model.
      if (messages.length === 0) return load(ports, body, request.tenant, 'chat', whileConnected(reply))
      const ask = await translated(body, chatAsk({ ...body, messages }, request.tenant, sampling, unsupportedParts))
      const streamed = body.stream !== false
      const begin = (signal: AbortSignal) => {
        keep(ports, body, request.tenant)
        return [service.ask({ ...ask, signal, streamed })]
      }
      const running = exchange(request, reply)
      const ignored = ignoredIn(body, OllamaChatBody)
      if (streamed) return running.stream(begin, new OllamaStream('chat', ignored))
      return ollamaAnswer('chat', (await running.answers(begin))[0]!, ignored)
    },
  )
  app.post(
    '/api/generate',
    {
      schema: { ...described('Completion (Ollama)', 'ollama'), body: GenerateBody },
      preValidation: nullsDownTo(NULLS, ['format']),
    },
    async (request, reply) => {
      const body = named(request.body)
      if (body.prompt === undefined || body.prompt === '')
        return load(ports, body, request.tenant, 'generate', whileConnected(reply))
      const ask = generateAsk(body, request.tenant, sampling, unsupportedParts)
      const { prompt, suffix = '' } = body
      const bare =
        suffix !== '' ? { prompt: '', fill: { prefix: prompt, suffix, files: [] } } : body.raw === true ? { prompt } : null
      if (bare !== null) refuseForConversations(body.kvfold)
      const streamed = body.stream !== false
      const begin = (signal: AbortSignal): readonly AnyAsked<Answer | CompletionAnswer>[] => {
        keep(ports, body, request.tenant)
        return bare === null ? [service.ask({ ...ask, signal, streamed })] : [service.complete({ ...ask, ...bare, signal })]
      }
      const running = exchange(request, reply)
      // Fields that have no effect without a chat template.
      const unshown = bare === null ? [] : (['system', 'think', 'images'] as const).filter((name) => isGiven(body[name]))
      const ignored = ignoredIn(body, GenerateBody, unshown)
      if (streamed) return running.stream(begin, new OllamaStream('generate', ignored))
      return ollamaAnswer('generate', (await running.answers(begin))[0]!, ignored)
    },
  )
  app.post(
    '/api/embed',
    { schema: { ...described('Embeddings (Ollama)', 'ollama'), body: EmbedBody }, preValidation: nullsDownTo(2) },
    async (request, reply) => {
      const body = named(request.body)
      const { input } = body
      const answer = await embedded(request, reply, body, typeof input === 'string' ? [input] : input)
      return {
        ...{ model: answer.model, embeddings: answer.vectors.map((vector) => [...vector]), prompt_eval_count: answer.tokens },
        ...onlyIgnored(ignoredIn(body, EmbedBody)),
      }
    },
  )
  app.post(
    '/api/embeddings',
    { schema: { ...described('One embedding (Ollama)', 'ollama'), body: OldEmbedBody }, preValidation: nullsDownTo(2) },
    async (request, reply) => {
      const body = named(request.body)
      const { vectors } = await embedded(request, reply, body, [body.prompt])
      return { embedding: [...vectors[0]!], ...onlyIgnored(ignoredIn(body, OldEmbedBody)) }
    },
  )
  addOllamaModels(app, ports)
  app.get('/api/version', { schema: described('Version (Ollama)', 'ollama') }, () => ({ version: OLLAMA, kvfold: version }))
}

/** The version of Ollama that is reported. Clients such as VS Code and Codex refuse older ones. */
const OLLAMA = '0.13.4'

/** Handles a request without a prompt: loads the model, or unloads it when `keep_alive` is 0. */
async function load(ports: Ports, body: Common, tenant: Tenant, kind: OllamaKind, signal: AbortSignal): Promise<object> {
  const { service } = ports
  const isLeaving = keepAliveOf(body.keep_alive) === 0
  keep(ports, body, tenant)
  if (isLeaving) {
    ports.refuseGuests(tenant, 'unload models')
    // While requests use the model, it is instead unloaded after the last of them.
    await service.unload(body.model).catch((error: unknown) => {
      if (!(error instanceof KvfoldError && error.code === 'model/busy')) throw error
    })
  } else await service.load(body.model, signal)
  return {
    ...part(kind, body.model ?? service.models()[0]?.name ?? '', '', '', []),
    ...{ done: true, done_reason: isLeaving ? 'unload' : 'load' },
  }
}

/**
 * Applies `keep_alive`. Call it when an answer begins, because a refused request must change nothing. Ignored for keys that may not manage
 * the server, and for positive times on a server without a folder of models.
 */
function keep(
  { service, refuseGuests }: Ports,
  { model, keep_alive: given }: Pick<Common, 'model' | 'keep_alive'>,
  tenant: Tenant,
): void {
  const milliseconds = keepAliveOf(given)
  if (milliseconds === null || (milliseconds > 0 && !service.loadsOnDemand)) return
  try {
    refuseGuests(tenant, 'keep models')
  } catch {
    return
  }
  service.keep(model, milliseconds)
}

// Translates requests to `/api/chat` and `/api/generate`.

const Name = Type.Optional(Type.String({ maxLength: 1024, description: 'a name out of /api/tags; default: the first' }))

const { temperature, top_k, top_p, min_p, typical_p, repeat_penalty, repeat_last_n, seed } = SamplingFields
const { presence_penalty, frequency_penalty, mirostat, mirostat_tau, mirostat_eta } = SamplingFields

/** Sampling options under Ollama's names. Other options have no effect, and `kvfold.ignored` lists them. */
const Options = Type.Optional(
  Type.Object({
    ...{ temperature, top_k, top_p, min_p, typical_p, repeat_penalty, repeat_last_n, seed },
    ...{ presence_penalty, frequency_penalty, mirostat, mirostat_tau, mirostat_eta },
    num_predict: Type.Optional(Type.Integer({ minimum: -2, description: '-1 and -2: as many as the context holds' })),
    stop: StopField,
  }),
)

const Common = {
  model: Name,
  format: Type.Optional(Type.Unsafe<unknown>({ type: ['string', 'object'], description: 'json, or a JSON schema' })),
  options: Options,
  stream: Type.Optional(Type.Boolean({ description: 'default true: one JSON object a line' })),
  think: Type.Optional(
    Type.Unsafe<boolean | string>({ type: ['boolean', 'string'], description: 'whether the model thinks, or how much' }),
  ),
  keep_alive: KeepAlive,
  kvfold: KvfoldField,
}

const Call = Type.Object({
  id: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
  function: Type.Object({
    name: Type.String({ minLength: 1, maxLength: 256 }),
    arguments: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  }),
})

const OllamaChatBody = Type.Object({
  ...Common,
  messages: Type.Optional(
    Type.Array(
      Type.Object({
        role: Type.String({ description: 'system, user, assistant or tool; thinking: belongs to the next assistant message' }),
        content: Type.Optional(Type.String()),
        thinking: Type.Optional(Type.String()),
        images: Type.Optional(
          Type.Array(Type.Unknown(), { description: 'refused unless the server was started with --unsupported placeholder' }),
        ),
        tool_calls: Type.Optional(Type.Array(Call)),
        tool_name: Type.Optional(Type.String()),
        tool_call_id: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
      }),
      { maxItems: 100_000 },
    ),
  ),
  tools: Type.Optional(
    Type.Array(
      Type.Object({
        type: Type.Optional(Type.String()),
        function: Type.Object({
          name: Type.String(),
          description: Type.Optional(Type.String()),
          parameters: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
        }),
      }),
    ),
  ),
})

const GenerateBody = Type.Object({
  ...Common,
  prompt: Type.Optional(Type.String()),
  system: Type.Optional(Type.String()),
  raw: Type.Optional(Type.Boolean({ description: 'true: the prompt goes on as it is, without template' })),
  suffix: Type.Optional(Type.String({ description: 'text after the answer, for models with tokens of fill-in prompts' })),
  context: Type.Optional(Type.Unknown({ description: 'refused unless it is empty: use /api/chat' })),
  template: Type.Optional(Type.String({ description: 'refused when not empty' })),
  images: Type.Optional(
    Type.Array(Type.Unknown(), { description: 'refused unless the server was started with --unsupported placeholder' }),
  ),
})

type Common = Omit<Type.Static<typeof GenerateBody>, 'prompt' | 'system' | 'raw' | 'suffix' | 'context' | 'template' | 'images'>
export type OllamaChat = Type.Static<typeof OllamaChatBody>
type OllamaMessages = NonNullable<OllamaChat['messages']>
export type Generate = Type.Static<typeof GenerateBody>

/** Translates a request to `/api/chat` into an `Ask`. @throws FieldError */
function* chatAsk(
  body: OllamaChat & { readonly messages: OllamaMessages },
  tenant: Tenant,
  defaults: Sampling,
  unsupportedParts: UnsupportedParts,
): Steps<Ask> {
  const { messages, callId } = yield* messagesOf(body.messages, unsupportedParts)
  return {
    ...commonOf(body, tenant, defaults),
    ...beginningIn(body, messages),
    callId,
    tools: checkTools(
      (body.tools ?? []).map(({ function: { name, description = '', parameters = NO_PARAMETERS } }) => ({
        ...{ name, description, parameters },
      })),
      (index) => `tools[${index}].function.name`,
    ),
  }
}

/**
 * Returns the messages, and a last assistant message as the beginning of the answer, as in Ollama. That message stays an ordinary one if it
 * has calls or reasoning, or if the answer must have a format or begin with reasoning.
 */
function beginningIn(body: OllamaChat, messages: readonly ChatMessage[]): Pick<Ask, 'messages' | 'beginning'> {
  const last = messages.at(-1)
  const isThinking = body.think !== undefined && body.think !== false
  if (last?.toolCalls !== undefined || last?.reasoning !== undefined || isThinking || formatOf(body) !== undefined)
    return { messages }
  const split = begun(messages, `messages[${messages.length - 1}]`, {})
  return { messages: split.messages, ...definedFields({ beginning: split.beginning }) }
}

const isGiven = (value: unknown): boolean => value !== undefined && !(Array.isArray(value) && value.length === 0)

/** Translates a request to `/api/generate` into an `Ask`. @throws FieldError */
function generateAsk(body: Generate, tenant: Tenant, defaults: Sampling, unsupportedParts: UnsupportedParts): Ask {
  const { prompt = '', system = '', template = '', images = [] } = body
  if (body.context !== undefined && !(Array.isArray(body.context) && body.context.length === 0))
    throw unsupported('context', 'context is not supported: its tokens are of another server. Send the messages to /api/chat.')
  if (template !== '') throw unsupported('template', 'template is not supported; the model has its own, or send raw: true.')
  const content = withImages(prompt, images, 'images', unsupportedParts)
  const first: readonly ChatMessage[] = system === '' ? [] : [{ role: 'system', content: system }]
  return { ...commonOf(body, tenant, defaults), messages: [...first, { role: 'user', content }], tools: [] }
}

/** Reads the fields that both routes have. */
function commonOf(body: Common, tenant: Tenant, defaults: Sampling): Omit<Ask, 'messages' | 'tools'> {
  const { options = {}, think } = body
  const { num_predict: most = -1, stop, ...sampling } = options
  if (most === 0) throw new FieldError('options.num_predict', 'options.num_predict must be at least 1, or -1.')
  return {
    tenant,
    toolChoice: 'auto',
    sampling: samplingOf(sampling, defaults),
    ...definedFields({
      model: body.model,
      maxTokens: most < 0 ? undefined : most,
      stop: stopOf(stop),
      format: formatOf(body),
      ...thinkingOf(think),
    }),
    ...kvfoldOf(body.kvfold),
  }
}

/**
 * Returns the template variables for `think`. They carry the field name `think`, which the answer reports if the template reads none of
 * them.
 */
function thinkingOf(think: boolean | string | undefined): ReturnType<typeof templateFieldsOf> {
  const isThinking = typeof think === 'boolean' ? { enable_thinking: think } : {}
  const effort = { field: 'think', value: typeof think === 'string' ? think : undefined }
  const { template, ...rest } = templateFieldsOf(isThinking, effort)
  return { ...rest, template: template.map((variable) => ({ ...variable, field: 'think' })) }
}

function formatOf({ format, kvfold }: Common): AnswerFormat | undefined {
  const grammar = kvfold?.grammar
  if (format === undefined || format === '') return grammar === undefined ? undefined : { kind: 'grammar', grammar }
  if (grammar !== undefined) throw new FieldError('kvfold.grammar', 'Give kvfold.grammar or format, not both.')
  if (format === 'json') return { kind: 'json' }
  if (typeof format === 'object') return { kind: 'schema', schema: format, loose: true }
  throw new FieldError('format', 'format must be json, or a JSON schema.')
}

/**
 * Translates messages. Calls without ids get ids computed from the conversation, the answer's calls included. So the thread recognises its
 * own calls when the client sends them back without ids. A result without an id belongs to the first open call of its tool in the latest
 * message that has one; without a tool name, to the first open call there.
 */
function* messagesOf(
  messages: OllamaMessages,
  unsupportedParts: UnsupportedParts,
): Steps<Required<Pick<Ask, 'messages' | 'callId'>>> {
  let count = 0
  /** Hash of the latest user message. */
  let asked = ''
  const callId = (nth: number) => `call_${asked}${(count + nth).toString(16).padStart(8, '0')}`
  const open = new OpenCalls()
  /** Reasoning that a client such as Continue sends back as a separate message. */
  let thoughts: string | undefined
  const placedOf = (message: OllamaMessages[number], index: number): PlacedMessage | null => {
    const place = `messages[${index}]`
    const { content: said = '', tool_calls: calls = [] } = message
    const role = message.role.toLowerCase()
    if (role === 'thinking') thoughts = said
    if (role === 'thinking') return null
    if (!isRole(role)) throw new FieldError(`${place}.role`, `${place}.role must be one of ${ROLES.join(', ')}.`)
    const reasoning = message.thinking ?? (role === 'assistant' ? thoughts : undefined)
    thoughts = undefined
    const content = withImages(said, message.images, `${place}.images`, role === 'tool' ? 'placeholder' : unsupportedParts)
    if (role === 'tool') {
      // Clients that shorten a conversation, such as Home Assistant, may cut between a call and its result. Such a result is left out.
      if (message.tool_call_id === undefined && open.isUnused) return null
      const { tool_call_id: id = open.first(message.tool_name, place).id, tool_name: name } = message
      open.answered(id)
      return { message: { role, content, toolCallId: id, ...definedFields({ name }) }, place: `${place}.tool_call_id` }
    }
    if (role === 'user') asked = hash('sha256', content.slice(0, ENOUGH), 'hex').slice(0, 16)
    if (role !== 'assistant') return { message: { role, content }, place }
    const toolCalls = calls.map(({ id, function: called }, nth) =>
      callOf(id ?? callId(nth), called.name, called, called.arguments ?? {}),
    )
    count += calls.length
    open.add(toolCalls)
    return {
      message: { role, content, ...definedFields({ reasoning }), ...(toolCalls.length === 0 ? {} : { toolCalls }) },
      place,
    }
  }
  const placed: PlacedMessage[] = []
  for (const [index, message] of messages.entries()) {
    const found = placedOf(message, index)
    if (found !== null) placed.push(found)
    yield
  }
  return { messages: yield* resultsInOrder(placed), callId }
}

const ROLES = ['system', 'user', 'assistant', 'tool'] as const

const isRole = (role: string): role is (typeof ROLES)[number] => (ROLES as readonly string[]).includes(role)

/** How many characters of the latest user message are hashed for call ids. */
const ENOUGH = 1000

/** Returns the text, with a placeholder for each image. @throws FieldError server/unsupported when images are refused */
function withImages(text: string, images: readonly unknown[] = [], place: string, unsupportedParts: UnsupportedParts): string {
  if (images.length > 0 && unsupportedParts === 'refuse')
    throw unsupported(
      place,
      `${place} is not supported; this server takes text only. Leave it out, or start the server with --unsupported placeholder.`,
    )
  return [...(text === '' ? [] : [text]), ...images.map(() => placeholderOf('image'))].join('\n')
}

// Writes answers in Ollama's format: one JSON object, or one per line.

/** Which route: `/api/chat` and `/api/generate` put the text into different fields. */
type OllamaKind = 'chat' | 'generate'

const NANOSECONDS = 1e6

function ollamaAnswer(kind: OllamaKind, answer: Answer | CompletionAnswer, ignored: readonly string[]): object {
  const [said, thought, calls] =
    'message' in answer
      ? [answer.message.content, answer.message.reasoning ?? '', answer.message.toolCalls ?? []]
      : [answer.text, '', []]
  return { ...part(kind, answer.model, said, thought, calls), ...end(kind, answer, ignored) }
}

class OllamaStream implements StreamShape<Answer | CompletionAnswer> {
  readonly lines = true
  #model = ''
  #calls = 0

  constructor(
    private readonly kind: OllamaKind,
    private readonly ignored: readonly string[],
  ) {}

  on(event: AskEvent): readonly Frame[] {
    if (event.type === 'started') this.#model = event.model
    if (event.type === 'text') return [this.#part(event.text, '', [])]
    if (event.type === 'reasoning') return [this.#part('', event.text, [])]
    if (event.type === 'call') return [this.#part('', '', [event.call])]
    return []
  }

  done(answer: Answer | CompletionAnswer): readonly Frame[] {
    return [{ data: { ...part(this.kind, answer.model, '', '', []), ...end(this.kind, answer, this.ignored) } }]
  }

  end(): readonly Frame[] {
    return []
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: ollamaError(problem) }]
  }

  #part(text: string, thinking: string, calls: readonly ToolCall[]): Frame {
    const data = { ...part(this.kind, this.#model, text, thinking, calls, this.#calls), done: false }
    this.#calls += calls.length
    return { data }
  }
}

export const ollamaError = ({ message }: Problem): object => ({ error: message })

/** @param before how many calls of the answer were written before these */
function part(kind: OllamaKind, model: string, text: string, thinking: string, calls: readonly ToolCall[], before = 0): object {
  const thought = thinking === '' ? {} : { thinking }
  const written = calls.map((call, at) => ({
    id: call.id,
    function: { index: before + at, name: call.name, arguments: inputOf(call) },
  }))
  const called = calls.length === 0 ? {} : { tool_calls: written }
  const said =
    kind === 'generate'
      ? { response: text, ...thought }
      : { message: { role: 'assistant', content: text, ...thought, ...called } }
  return { model, created_at: new Date().toISOString(), ...said }
}

/** Returns the last fields of an answer: reason of the end, token counts, and times in nanoseconds. */
function end(kind: OllamaKind, { finish, timing, usage, waited, unread }: AnyAnswer, ignored: readonly string[]): object {
  const { firstToken, total } = timing
  const nanoseconds = (milliseconds: number) => Math.round(Math.max(0, milliseconds) * NANOSECONDS)
  return {
    done: true,
    done_reason: finish === 'length' ? 'length' : 'stop',
    total_duration: nanoseconds(waited + total),
    load_duration: nanoseconds(waited),
    prompt_eval_count: usage.promptTokens,
    prompt_eval_duration: nanoseconds(firstToken),
    eval_count: usage.completionTokens,
    eval_duration: nanoseconds(total - firstToken),
    // Some clients need the list `context`. It stays empty, because kvfold cannot continue from a list of tokens.
    ...(kind === 'generate' && { context: [] }),
    ...onlyIgnored([...ignored, ...unread]),
  }
}
