/** Arguments written as tags around raw text: `<parameter=key>` (Qwen3-Coder, Seed) and `<arg_key>` (GLM). */
import { isRecord } from '../../core/json.js'
import { objectOf } from '../../core/written-json.js'
import type { ToolDefinition } from '../message.js'
import { withoutPatterns } from '../schema/exact.js'
import { satisfies, type AnySchema, type Schema } from '../schema/merge.js'
import { parseJson, type RawCall } from './call.js'

/** Parses `<function=name><parameter=key>value</parameter></function>`, or JSON in place of the parameters. */
export function functionTags(text: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall[] {
  // A value may contain any text except `</parameter>`. So whole parameters are matched first.
  const calls = [...text.matchAll(/<function=([^>]*)>((?:\s*<parameter=[^>]*>[^]*?<\/parameter>)*[^]*?)(<\/function>|$)/g)]
  return calls.map(([, name = '', inside = '', end = '']) => {
    if ((!closed && end === '') || inside.trimStart().startsWith('{')) return { name: name.trim(), arguments: inside.trim() }
    const parameters = parametersOf(tools, name)
    return { name: name.trim(), arguments: taggedValues([...inside.matchAll(parameterIn(parameters))], parameters) }
  })
}

/**
 * Parses `<invoke name="name"><parameter name="key">value</parameter></invoke>`. If the closing tag is missing, the arguments stay raw
 * text.
 */
export function invokeTags(text: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall {
  const [, name = '', inside = ''] = /^<invoke name="([^"]*)">([^]*?)(?:<\/invoke>)?$/.exec(text) ?? []
  if (!closed) return { name, arguments: inside.trim() }
  const pairs = [...inside.matchAll(/<parameter name="([^"]*)"[^>]*>\n?([^]*?)\n?<\/parameter>/g)]
  return { name, arguments: taggedValues(pairs, parametersOf(tools, name)) }
}

/** Parses `name<arg_key>key</arg_key><arg_value>value</arg_value>`. */
export function argumentTags(text: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall {
  const [name = ''] = text.split('<arg_key>', 1)
  if (!closed) return { name: name.trim(), arguments: text.slice(name.length) }
  const pairs = [...text.matchAll(/<arg_key>([^]*?)<\/arg_key>\s*<arg_value>([^]*?)(?:<\/arg_value>|$)/g)]
  return {
    name: name.trim(),
    arguments: taggedValues(pairs, parametersOf(tools, name)),
  }
}

/** Matches one parameter. If its closing tag is missing, it ends where a line begins the next parameter of the tool. */
function parameterIn({ properties }: Schema): RegExp {
  const names = isRecord(properties) ? Object.keys(properties).map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')) : []
  const next = names.length === 0 ? '[^>]*' : `(?:${names.join('|')})`
  return new RegExp(`<parameter=([^>]*)>\\n?([^]*?)\\n?(?:</parameter>|(?<=\\n)(?=<parameter=${next}>)|$)`, 'g')
}

/** Returns the schema of a tool's arguments, by which the types of values are chosen. Patterns are removed, because some run for ever. */
function parametersOf(tools: readonly ToolDefinition[], name: string): Schema {
  const tool = tools.find((one) => one.name === name.trim())
  if (tool === undefined) return {}
  const known = readParameters.get(tool) ?? (withoutPatterns(tool.parameters) as Schema)
  readParameters.set(tool, known)
  return known
}

const readParameters = new WeakMap<ToolDefinition, Schema>()

/** With more values of unclear type than this, combinations are not tried. */
const MOST_DOUBTFUL = 6

/**
 * Reads tagged values, which carry no type. A value that is JSON (but not a JSON string) is read as JSON; any other is a string. It stays a
 * string if it fits its argument's schema only so.
 * If the result does not satisfy the tool's schema, combinations with some of these values as strings are tried.
 */
function taggedValues(pairs: readonly RegExpMatchArray[], parameters: Schema): Readonly<Record<string, unknown>> {
  const texts = pairs.map(([, key = '', value = '']) => [key.trim(), value] as const)
  const read = objectOf(texts.map(([key, value]) => [key, ...loosely(value, schemaOf(parameters, key))] as const))
  const doubtful = texts.filter(([key, value]) => read[key] !== value)
  if (doubtful.length > MOST_DOUBTFUL || satisfies(parameters, read)) return read
  for (let chosen = 1; chosen < 2 ** doubtful.length; chosen++) {
    const other = { ...read, ...Object.fromEntries(doubtful.filter((_, at) => ((chosen >> at) & 1) === 1)) }
    if (satisfies(parameters, other)) return other
  }
  return read
}

/** Returns the schema of one argument; null when the tool has none for it. */
function schemaOf({ properties, $defs = {}, definitions = {} }: Schema, key: string): AnySchema | null {
  const schema = isRecord(properties) ? properties[key] : undefined
  return isRecord(schema) ? { ...schema, $defs, definitions } : null
}

/** Reads one value of unclear type. For a number, also returns its original text. */
function loosely(value: string, schema: AnySchema | null): readonly [value: unknown, text?: string] {
  const parsed = parseJson(value)
  const python: Readonly<Record<string, unknown>> = { True: true, False: false, None: null }
  const read = parsed !== undefined && typeof parsed !== 'string' ? parsed : Object.hasOwn(python, value) ? python[value] : value
  if (read !== value && schema !== null && !satisfies(schema, read) && satisfies(schema, value)) return [value]
  return typeof read === 'number' ? [read, value.trim()] : [read]
}
