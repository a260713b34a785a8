/** Owns what `/v1/messages` takes. Fields it does not name are ignored (`cache_control` too: caching is automatic here). */
import Type from 'typebox'
import { KvfoldField } from '../kvfold-field.js'

const Content = Type.Unsafe<unknown>({ type: ['string', 'array'], description: 'text, or content blocks' })

const Tool = Type.Object({
  name: Type.String(),
  type: Type.Optional(Type.String()),
  description: Type.Optional(Type.String()),
  input_schema: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
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
  thinking: Type.Optional(Type.Unknown({ description: 'ignored: the model thinks as its template has it' })),
  mcp_servers: Type.Optional(Type.Array(Type.Unknown(), { description: 'refused unless empty' })),
  container: Type.Optional(Type.Unknown({ description: 'refused' })),
}

export const MessagesBody = Type.Object({
  ...Prompt,
  max_tokens: Type.Integer({ minimum: 1 }),
  stop_sequences: Type.Optional(Type.Array(Type.String(), { maxItems: 16 })),
  stream: Type.Optional(Type.Boolean()),
  temperature: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_k: Type.Optional(Type.Integer({ minimum: 0, maximum: 1_000_000 })),
  output_config: Type.Optional(Type.Object({ format: Type.Optional(Type.Record(Type.String(), Type.Unknown())) })),
  output_format: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  kvfold: KvfoldField,
})

export const CountBody = Type.Object(Prompt)

export type MessagesRequest = Type.Static<typeof MessagesBody>
export type PromptRequest = Type.Static<typeof CountBody>
