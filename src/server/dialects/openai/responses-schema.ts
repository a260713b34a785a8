/** Owns what `/v1/responses` takes: the part of it that agents use. Fields that would change the answer and mean nothing here are refused. */
import Type from 'typebox'
import { KvfoldField } from '../kvfold-field.js'
import { SamplingFields } from '../sampling-fields.js'

const { temperature, top_p, top_k, min_p, seed } = SamplingFields

export const ResponseBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  input: Type.Unsafe<unknown>({ type: ['string', 'array'], description: 'text, or items' }),
  instructions: Type.Optional(Type.String({ description: 'system message of this response only' })),
  previous_response_id: Type.Optional(Type.String({ minLength: 1, maxLength: 300 })),
  store: Type.Optional(Type.Boolean({ description: 'false: the response has no id that can be gone on from' })),
  temperature,
  top_p,
  top_k,
  min_p,
  seed,
  max_output_tokens: Type.Optional(Type.Integer({ minimum: 1 })),
  stream: Type.Optional(Type.Boolean()),
  top_logprobs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20 })),
  include: Type.Optional(Type.Array(Type.String())),
  tools: Type.Optional(
    Type.Array(
      Type.Object({
        type: Type.String(),
        name: Type.Optional(Type.String()),
        description: Type.Optional(Type.String()),
        parameters: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
      }),
    ),
  ),
  tool_choice: Type.Optional(Type.Unsafe<string | Record<string, unknown>>({ type: ['string', 'object'] })),
  parallel_tool_calls: Type.Optional(Type.Boolean()),
  text: Type.Optional(
    Type.Object({
      format: Type.Optional(
        Type.Object({ type: Type.String(), schema: Type.Optional(Type.Unsafe<unknown>({ type: ['object', 'boolean'] })) }),
      ),
    }),
  ),
  truncation: Type.Optional(Type.String({ description: 'only disabled; see kvfold.overflow' })),
  reasoning: Type.Optional(Type.Unknown({ description: 'ignored: the model thinks as its template has it' })),
  metadata: Type.Optional(Type.Record(Type.String(), Type.String())),
  background: Type.Optional(Type.Boolean({ description: 'refused when true' })),
  conversation: Type.Optional(Type.Unknown({ description: 'refused: use previous_response_id or kvfold.thread' })),
  prompt: Type.Optional(Type.Unknown({ description: 'refused' })),
  max_tool_calls: Type.Optional(Type.Integer({ description: 'refused: it is about tools of OpenAI' })),
  kvfold: KvfoldField,
})

export type ResponseRequest = Type.Static<typeof ResponseBody>
