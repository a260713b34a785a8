/** Owns `response_format`: what form of answer it asks for. */
import Type from 'typebox'
import type { AnswerFormat } from '../../ask.js'
import { FieldError, unsupported } from '../../field-error.js'

/** A JSON schema. */
export const Schema = Type.Unsafe<unknown>({ type: ['object', 'boolean'] })

export const ResponseFormat = Type.Optional(
  Type.Object({
    type: Type.String({ description: 'text, json_object or json_schema' }),
    json_schema: Type.Optional(Type.Object({ name: Type.Optional(Type.String()), schema: Type.Optional(Schema) })),
  }),
)

/** Undefined: any text. @throws FieldError */
export function formatOf(format: NonNullable<Type.Static<typeof ResponseFormat>>): AnswerFormat | undefined {
  if (format.type === 'text') return undefined
  if (format.type === 'json_object') return { kind: 'json' }
  if (format.type !== 'json_schema')
    throw unsupported('response_format.type', 'response_format.type must be text, json_object or json_schema.')
  const schema = format.json_schema?.schema
  if (schema === undefined)
    throw new FieldError('response_format.json_schema.schema', 'response_format.json_schema.schema is missing.')
  return { kind: 'schema', schema }
}
