/** Owns arguments that are written as tags, where texts stand as they are: Qwen3-Coder, GLM, Seed. */
import type { AnySchema, Schema } from './merge.js'
import { literal, textWithout, type GrammarRules } from './rules.js'
import { SchemaWriter, type SchemaOptions } from './schema-grammar.js'

export interface TaggedArguments {
  /** Around the value of this key. */
  readonly before: (key: string) => string
  readonly after: string
  /** Where readers see that a value ends. */
  readonly end: string
}

const NAME = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'

/** GBNF of arguments as tags. */
export function taggedArguments(
  rules: GrammarRules,
  schema: Schema,
  { before, after, end }: TaggedArguments,
  options: SchemaOptions,
): string {
  const text = textWithout(rules, 'text', end)
  const writer = new SchemaWriter(rules, schema, options)
  const body = writer.arguments('', (key, value, inner) =>
    key === null ? null : `${literal(before(key))} ${writer.rawValue(inner as AnySchema, text, '#') ?? value} ${literal(after)}`,
  )
  const [open = '', rest = ''] = before('\0').split('\0')
  return body === 'any' ? `( ${literal(open)} ${NAME} ${literal(rest)} ${text} ${literal(after)} )*` : body === '' ? '""' : body
}
