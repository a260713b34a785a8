/** Owns what Ollama's chat and generate requests mean: the ask that each is. */
import Type from 'typebox'
import type { ChatMessage, ToolCall } from '../../../chat/message.js'
import type { Sampling } from '../../../engine/engine.js'
import type { AnswerFormat, Ask, Tenant } from '../../ask.js'
import { FieldError, unsupported } from '../../problem.js'
import { given, stopOf, StopField } from '../fields.js'
import { KvfoldField, kvfoldOf } from '../kvfold-field.js'
import { samplingOf } from '../sampling-fields.js'
import { templateFieldsOf } from '../template-fields.js'
import { checkTools, NO_PARAMETERS } from '../tools.js'

const Name = Type.Optional(Type.String({ maxLength: 1024, description: 'a name out of /api/tags; default: the first' }))

/** As Ollama names them; what is not among these changes nothing here. */
const Options = Type.Optional(
  Type.Object({
    temperature: Type.Optional(Type.Number({ minimum: 0, maximum: 100 })),
    top_k: Type.Optional(Type.Integer({ minimum: -1, maximum: 1_000_000 })),
    top_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    min_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    typical_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    repeat_penalty: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 100 })),
    presence_penalty: Type.Optional(Type.Number({ minimum: -2, maximum: 2 })),
    frequency_penalty: Type.Optional(Type.Number({ minimum: -2, maximum: 2 })),
    seed: Type.Optional(Type.Integer()),
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
  keep_alive: Type.Optional(Type.Unknown({ description: 'models stay loaded as the server was started' })),
  kvfold: KvfoldField,
}

const Call = Type.Object({
  id: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
  function: Type.Object({
    name: Type.String({ minLength: 1, maxLength: 256 }),
    arguments: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  }),
})

export const OllamaChatBody = Type.Object({
  ...Common,
  messages: Type.Array(
    Type.Object({
      role: Type.Enum(['system', 'user', 'assistant', 'tool']),
      content: Type.Optional(Type.String()),
      thinking: Type.Optional(Type.String()),
      images: Type.Optional(Type.Array(Type.Unknown(), { description: 'refused when there are any' })),
      tool_calls: Type.Optional(Type.Array(Call)),
      tool_name: Type.Optional(Type.String()),
      tool_call_id: Type.Optional(Type.String({ minLength: 1, maxLength: 256 })),
    }),
    { maxItems: 100_000 },
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

export const GenerateBody = Type.Object({
  ...Common,
  prompt: Type.Optional(Type.String()),
  system: Type.Optional(Type.String()),
  raw: Type.Optional(Type.Boolean({ description: 'true: the prompt goes on as it is, without template' })),
  suffix: Type.Optional(Type.String({ description: 'refused when not empty' })),
  template: Type.Optional(Type.String({ description: 'refused when not empty' })),
  images: Type.Optional(Type.Array(Type.Unknown(), { description: 'refused when there are any' })),
})

type Common = Omit<Type.Static<typeof GenerateBody>, 'prompt' | 'system' | 'raw' | 'suffix' | 'template' | 'images'>
export type OllamaChat = Type.Static<typeof OllamaChatBody>
export type Generate = Type.Static<typeof GenerateBody>

/** @throws FieldError */
export const chatAsk = (body: OllamaChat, tenant: Tenant, defaults: Sampling): Ask => ({
  ...commonOf(body, tenant, defaults),
  messages: messagesOf(body.messages),
  tools: checkTools(
    (body.tools ?? []).map(({ function: { name, description = '', parameters = NO_PARAMETERS } }) => ({
      ...{ name, description, parameters },
    })),
    (index) => `tools[${index}].function.name`,
  ),
})

/** @throws FieldError */
export function generateAsk(body: Generate, tenant: Tenant, defaults: Sampling): Ask {
  const { prompt = '', system = '', suffix = '', template = '', images = [] } = body
  if (suffix !== '') throw unsupported('suffix', 'suffix is not supported; the model only writes on.')
  if (template !== '') throw unsupported('template', 'template is not supported; the model has its own, or send raw: true.')
  refuseImages(images, 'images')
  const first: readonly ChatMessage[] = system === '' ? [] : [{ role: 'system', content: system }]
  return { ...commonOf(body, tenant, defaults), messages: [...first, { role: 'user', content: prompt }], tools: [] }
}

/** What both have. */
function commonOf(body: Common, tenant: Tenant, defaults: Sampling): Omit<Ask, 'messages' | 'tools'> {
  const { options = {}, think } = body
  const { num_predict: most = -1, stop, ...sampling } = options
  if (most === 0) throw new FieldError('options.num_predict', 'options.num_predict must be at least 1, or -1.')
  return {
    tenant,
    toolChoice: 'auto',
    sampling: samplingOf(sampling, defaults),
    ...given({
      model: body.model,
      maxTokens: most < 0 ? undefined : most,
      stop: stopOf(stop),
      format: formatOf(body.format),
      ...templateFieldsOf(typeof think === 'boolean' ? { enable_thinking: think } : {}, {
        field: 'think',
        value: typeof think === 'string' ? think : undefined,
      }),
    }),
    ...kvfoldOf(body.kvfold),
  }
}

function formatOf(format: unknown): AnswerFormat | undefined {
  if (format === undefined || format === '') return undefined
  if (format === 'json') return { kind: 'json' }
  if (typeof format === 'object') return { kind: 'schema', schema: format }
  throw new FieldError('format', 'format must be json, or a JSON schema.')
}

/** Calls that have no ids are numbered; a result without one answers the first call that has none yet. */
function messagesOf(messages: OllamaChat['messages']): ChatMessage[] {
  let made = 0
  let open: ToolCall[] = []
  return messages.map((message, index): ChatMessage => {
    const { role, content = '', thinking: reasoning, tool_calls: calls = [] } = message
    refuseImages(message.images, `messages[${index}].images`)
    if (role === 'tool') {
      const { tool_call_id: id = open.shift()?.id, tool_name: name } = message
      if (id === undefined)
        throw new FieldError(`messages[${index}]`, `messages[${index}] is a tool's result, and no call is without one.`)
      open = open.filter((call) => call.id !== id)
      return { role, content, toolCallId: id, ...given({ name }) }
    }
    if (role !== 'assistant') return { role, content }
    const toolCalls = calls.map(({ id = `call_${made++}`, function: { name, arguments: args = {} } }) => ({
      ...{ id, name, arguments: args },
    }))
    open = [...open, ...toolCalls]
    return { role, content, ...given({ reasoning }), ...(toolCalls.length === 0 ? {} : { toolCalls }) }
  })
}

function refuseImages(images: readonly unknown[] = [], place: string): void {
  if (images.length > 0) throw unsupported(place, `${place} is not supported; this server takes text only.`)
}
