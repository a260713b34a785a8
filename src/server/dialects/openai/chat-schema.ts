/** Owns what `/v1/chat/completions` takes. Fields it does not name are ignored, as OpenAI-compatible servers do; those that would change the answer are refused. */
import Type from 'typebox'
import { KvfoldField } from '../kvfold-field.js'
import { SamplingFields } from '../sampling-fields.js'
import { FormFields } from './answer-form.js'

/** Answers to one request. */
export const MOST_CHOICES = 8

const Name = Type.String({ minLength: 1, maxLength: 256 })

const Call = Type.Object({
  id: Name,
  type: Type.Optional(Type.Literal('function')),
  function: Type.Object({ name: Name, arguments: Type.String() }),
})

const Message = Type.Object({
  role: Type.Enum(['system', 'developer', 'user', 'assistant', 'tool']),
  content: Type.Optional(Type.Unsafe<unknown>({ type: ['string', 'array'], description: 'text, or parts of type text' })),
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
    }),
  ),
})

export const ChatBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  messages: Type.Array(Message, { minItems: 1, maxItems: 100_000 }),
  ...SamplingFields,
  max_tokens: Type.Optional(
    Type.Integer({
      minimum: 1,
      description: 'default: what the context has room for; a tool call that is cut off is left out, and finish_reason is length',
    }),
  ),
  max_completion_tokens: Type.Optional(Type.Integer({ minimum: 1, description: 'as max_tokens' })),
  n: Type.Optional(Type.Integer({ minimum: 1, maximum: MOST_CHOICES })),
  stop: Type.Optional(Type.Unsafe<string | string[]>({ type: ['string', 'array'], items: { type: 'string' }, maxItems: 16 })),
  stream: Type.Optional(Type.Boolean()),
  stream_options: Type.Optional(Type.Object({ include_usage: Type.Optional(Type.Boolean()) })),
  logprobs: Type.Optional(Type.Boolean()),
  top_logprobs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20 })),
  tools: Type.Optional(Type.Array(Tool)),
  tool_choice: Type.Optional(
    Type.Unsafe<string | Record<string, unknown>>({
      type: ['string', 'object'],
      description: 'auto, none, required, or {type: function, function: {name}}',
    }),
  ),
  parallel_tool_calls: Type.Optional(Type.Boolean()),
  ...FormFields,
  kvfold: KvfoldField,
  functions: Type.Optional(Type.Unknown({ deprecated: true, description: 'refused: use tools' })),
  function_call: Type.Optional(Type.Unknown({ deprecated: true, description: 'refused: use tool_choice' })),
  audio: Type.Optional(Type.Unknown({ description: 'refused' })),
  modalities: Type.Optional(Type.Array(Type.String(), { description: 'only text' })),
  web_search_options: Type.Optional(Type.Unknown({ description: 'refused' })),
})

export type ChatRequest = Type.Static<typeof ChatBody>
export type ChatRequestMessage = ChatRequest['messages'][number]
