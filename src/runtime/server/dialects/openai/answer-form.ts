/** Reads the required format of an answer: OpenAI's `response_format`, and the fields of vLLM, SGLang and llama-server. */
import Type from 'typebox'
import { grammarOfRegex, words } from '../../../chat/grammar.js'
import { KvfoldError } from '../../../core/errors.js'
import { type AnswerFormat, MOST_OF_SCHEMA } from '../../ask.js'
import { FieldError, unsupported } from '../../problem.js'
import { parseJsonBody } from '../../json-body.js'
import type { KvfoldRequest } from '../kvfold-field.js'

// `response_format`.

/** A JSON schema. */
export const Schema = Type.Unsafe<unknown>({ type: ['object', 'boolean'] })

/** Description of a schema's field `strict`, for the OpenAPI document. */
export const LOOSE = 'false: what of the schema cannot be kept is left out, and named in kvfold.ignored; else it is refused'

export const ResponseFormat = Type.Optional(
  Type.Object({
    type: Type.String({ description: 'text, json_object or json_schema' }),
    json_schema: Type.Optional(
      Type.Object({
        name: Type.Optional(Type.String()),
        strict: Type.Optional(Type.Boolean({ description: LOOSE })),
        schema: Type.Optional(Schema),
      }),
    ),
    schema: Type.Optional(Type.Unsafe<unknown>({ ...Schema, description: 'of a json_object, as llama-server has it' })),
  }),
)

/** Returns the format that `response_format` asks for; undefined: any text. @throws FieldError */
export function formatOf(format: NonNullable<Type.Static<typeof ResponseFormat>>): AnswerFormat | undefined {
  if (format.type === 'text') return undefined
  if (format.type === 'json_object')
    return format.schema === undefined ? { kind: 'json' } : { kind: 'schema', schema: format.schema }
  if (format.type !== 'json_schema')
    throw unsupported('response_format.type', 'response_format.type must be text, json_object or json_schema.')
  const schema = format.json_schema?.schema
  if (schema === undefined)
    throw new FieldError('response_format.json_schema.schema', 'response_format.json_schema.schema is missing.')
  return { kind: 'schema', schema, ...looseBy(format.json_schema?.strict) }
}

export const looseBy = (strict: boolean | undefined): { readonly loose?: true } => (strict === false ? { loose: true } : {})

// The format fields that these routes share.

const schemaOrText = (description: string) =>
  Type.Optional(Type.Unsafe<unknown>({ type: ['object', 'boolean', 'string'], description }))
const text = (description: string) => Type.Optional(Type.String({ description }))
const refused = Type.Optional(Type.Unknown({ description: 'refused' }))

export const FormFields = {
  response_format: ResponseFormat,
  structured_outputs: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), {
      description:
        'as vLLM has it: json, json_object, regex, choice or grammar (GBNF); structural_tag and whitespace are refused',
    }),
  ),
  guided_json: schemaOrText('older vLLM: a JSON schema, or the text of one'),
  guided_choice: Type.Optional(Type.Array(Type.String(), { description: 'older vLLM: one of these texts' })),
  guided_grammar: text('older vLLM; GBNF'),
  guided_regex: text('older vLLM: a regular expression that the whole answer matches'),
  guided_whitespace_pattern: refused,
  structural_tag: refused,
  json_schema: Type.Optional(Type.Unsafe<unknown>({ ...Schema, description: 'as llama-server has it; or use response_format' })),
  grammar: text('as llama-server has it: GBNF; empty for none'),
  ebnf: text('as SGLang has it; GBNF'),
  regex: text('as SGLang has it: a regular expression that the whole answer matches'),
}

/** Fields whose nulls are kept, because null has a meaning in a JSON schema. */
export const WITH_NULLS = ['structured_outputs', 'guided_json', 'json_schema'] as const

type FormRequest = Type.Static<ReturnType<typeof Type.Object<typeof FormFields>>> & { readonly kvfold?: KvfoldRequest }

/** A required format, and the request field that sets it. */
export interface AskedForm {
  readonly param: string
  readonly form: AnswerFormat
}

/**
 * Returns the format that the request's fields ask for.
 * @param own formats from fields that only this route has
 * @throws FieldError when this server cannot enforce the format, or when several fields set one
 */
export function formOf(request: FormRequest, own: readonly AskedForm[] = []): AnswerFormat | undefined {
  const { response_format: format, kvfold, structured_outputs: outputs = {}, json_schema, grammar, ebnf, regex } = request
  const asked = [
    ...own,
    ...read('response_format', format, formatOf),
    ...read('kvfold.grammar', kvfold?.grammar, grammarOf),
    ...read('json_schema', json_schema, schemaOf),
    ...read('grammar', grammar === '' ? undefined : grammar, grammarOf),
    ...read('ebnf', ebnf, grammarOf),
    ...read('regex', regex, regexOf),
    ...read('structural_tag', request.structural_tag, noTag),
    ...read('guided_json', request.guided_json, schemaOf),
    ...read('guided_choice', request.guided_choice, choiceOf),
    ...read('guided_grammar', request.guided_grammar, grammarOf),
    ...read('guided_regex', request.guided_regex, regexOf),
    ...read('guided_whitespace_pattern', request.guided_whitespace_pattern, noSpaces),
    ...Object.entries(outputs).flatMap(([kind, value]) =>
      read(`structured_outputs.${kind}`, value, (Object.hasOwn(KINDS, kind) ? KINDS[kind] : undefined) ?? noSuch),
    ),
  ]
  const [first, second] = asked
  if (first !== undefined && second !== undefined)
    throw new FieldError(second.param, `Give ${first.param} or ${second.param}, not both: an answer has one form.`)
  return first?.form
}

type FormReader<T = unknown> = (value: T, param: string) => AnswerFormat | undefined

function read<T>(param: string, value: T | null | undefined, reader: FormReader<T>): readonly AskedForm[] {
  const form = value == null ? undefined : reader(value, param)
  return form === undefined ? [] : [{ param, form }]
}

const cannot =
  (why: string): FormReader =>
  (_, param) => {
    throw unsupported(param, `${param} is not supported; ${why}`)
  }

/** Makes a reader for a field that has an effect only when it is true. */
const only =
  (reader: FormReader): FormReader =>
  (value, param) => {
    if (typeof value !== 'boolean') throw new FieldError(param, `${param} must be true or false.`)
    return value ? reader(value, param) : undefined
  }

const nothing: FormReader = () => undefined
const noTag = cannot('send a grammar (GBNF).')
const noSpaces = cannot('where spaces stand in JSON is not a matter of choice here.')
const noSuch = cannot('send json, json_object, regex, choice or grammar.')

/** Readers by the keys of vLLM's `structured_outputs`. */
const KINDS: Readonly<Record<string, FormReader>> = {
  json: schemaOf,
  json_object: only(() => ({ kind: 'json' })),
  choice: choiceOf,
  grammar: grammarOf,
  regex: regexOf,
  structural_tag: noTag,
  whitespace_pattern: noSpaces,
  disable_any_whitespace: only(noSpaces),
  // Without effect: this server has no fallback grammar, and schemas never allow properties that they do not name.
  disable_fallback: nothing,
  disable_additional_properties: nothing,
}

function schemaOf(value: unknown, param: string): AnswerFormat {
  if (typeof value !== 'string') return { kind: 'schema', schema: value }
  if (value.length > MOST_OF_SCHEMA)
    throw new FieldError(param, `${param} has more than ${MOST_OF_SCHEMA} characters; shorten the schema.`)
  try {
    return { kind: 'schema', schema: parseJsonBody(Buffer.from(value)) }
  } catch {
    throw new FieldError(param, `${param} must be a JSON schema, or the text of one, which is held to what bodies are.`)
  }
}

/** The most choices in a list of possible answers. */
const MOST_CHOICES = 1000

function choiceOf(value: unknown, param: string): AnswerFormat {
  const isText = (one: unknown): one is string => typeof one === 'string' && one !== ''
  if (!Array.isArray(value) || value.length === 0 || value.length > MOST_CHOICES || !value.every(isText))
    throw new FieldError(param, `${param} must be a list of 1 to ${MOST_CHOICES} texts, none of them empty.`)
  if (value.reduce((sum, { length }) => sum + length, 0) > MOST_OF_SCHEMA)
    throw new FieldError(param, `${param} has more than ${MOST_OF_SCHEMA} characters; shorten the texts.`)
  return { kind: 'grammar', grammar: `root ::=${value.map(words).join('|')}`, afterReasoning: true }
}

function regexOf(value: unknown, param: string): AnswerFormat {
  if (typeof value !== 'string' || value === '') throw new FieldError(param, `${param} must be a regular expression.`)
  try {
    return { kind: 'grammar', grammar: grammarOfRegex(value), afterReasoning: true }
  } catch (error) {
    if (!(error instanceof KvfoldError)) throw error
    throw new FieldError(param, `${param} ${error.message}. Simplify it, or send a grammar (GBNF).`)
  }
}

function grammarOf(value: unknown, param: string): AnswerFormat {
  if (typeof value !== 'string' || value === '') throw new FieldError(param, `${param} must be a grammar (GBNF).`)
  if (value.length > MOST_OF_SCHEMA)
    throw new FieldError(param, `${param} has more than ${MOST_OF_SCHEMA} characters; shorten the grammar.`)
  return { kind: 'grammar', grammar: value }
}
