/** Calls between tags, each as JSON (Hermes, Qwen) or as nested tags (Qwen3-Coder, GLM, Seed). */
import { isRecord } from '../../core/json.js'
import { objectOf } from '../../core/written-json.js'
import { jsonCall, words, type CallForm } from '../grammar.js'
import type { ToolDefinition } from '../message.js'
import { satisfies, type AnySchema, type Schema } from '../schema/merge.js'
import { begunNamed, JsonScanner, namedCall, parseJson, type RawCall } from './call.js'
import { BlockParser, type BlockReader, callGrammars, reasoningBlocks, type SyntaxFamily } from './syntax.js'

class HermesReader implements BlockReader {
  #scanner: JsonScanner | null = null
  #searched = 0

  constructor(
    private readonly close: string,
    private readonly tools: readonly ToolDefinition[],
  ) {}

  readonly begun = begunNamed

  read(body: string, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const first = body.search(/\S/)
    if (first === -1) return final ? { end: body.length, calls: [] } : null
    if (body.charAt(first) === '{') {
      const json = (this.#scanner ??= new JsonScanner(first)).scan(body, final)
      if (json.state === 'incomplete' && !final) return null
      if (json.state === 'complete') {
        const rest = body.slice(json.end).trimStart()
        if (!final && rest.length < this.close.length && this.close.startsWith(rest)) return null
        const end = rest.startsWith(this.close) ? body.length - rest.length + this.close.length : json.end
        return { end, calls: [namedCall(body.slice(first, json.end))] }
      }
    }
    const at = body.indexOf(this.close, Math.max(0, this.#searched - this.close.length))
    this.#searched = body.length
    if (at === -1 && !final) return null
    const end = at === -1 ? body.length : at
    return { end: Math.min(body.length, end + this.close.length), calls: callsIn(body.slice(0, end), at !== -1, this.tools) }
  }
}

/**
 * `closed`: whether the block has its closing tag. In a block that was cut off, tags do not show that a value is complete, so the text is
 * kept as it is.
 */
function callsIn(body: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall[] {
  const text = body.trim()
  if (text.startsWith('<function=')) return functionTags(text, closed, tools)
  // GLM writes a call without arguments as its name alone.
  if (closed && /^[\w.:-]+$/.test(text)) return [{ name: text, arguments: {} }]
  if (!text.startsWith('{') && text.includes('<arg_key>')) return [argumentTags(text, closed, tools)]
  return text === '' ? [] : [namedCall(text)]
}

/** Parses `<function=name><parameter=key>value</parameter></function>`. */
function functionTags(text: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall[] {
  const calls = [...text.matchAll(/<function=([^>]*)>([^]*?)(<\/function>|$)/g)]
  return calls.map(([, name = '', inside = '', end = '']) => {
    if (!closed && end === '') return { name: name.trim(), arguments: inside.trim() }
    const pairs = [...inside.matchAll(/<parameter=([^>]*)>\n?([^]*?)\n?(?:<\/parameter>|(?=<parameter=)|$)/g)]
    return {
      name: name.trim(),
      arguments: valuesOf(pairs, parametersOf(tools, name)),
    }
  })
}

/** Parses `name<arg_key>key</arg_key><arg_value>value</arg_value>`. */
function argumentTags(text: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall {
  const [name = ''] = text.split('<arg_key>', 1)
  if (!closed) return { name: name.trim(), arguments: text.slice(name.length) }
  const pairs = [...text.matchAll(/<arg_key>([^]*?)<\/arg_key>\s*<arg_value>([^]*?)(?:<\/arg_value>|$)/g)]
  return {
    name: name.trim(),
    arguments: valuesOf(pairs, parametersOf(tools, name)),
  }
}

const parametersOf = (tools: readonly ToolDefinition[], name: string): Schema =>
  tools.find((tool) => tool.name === name.trim())?.parameters ?? {}

/** The most values of unclear type whose combinations are tried. */
const MOST_DOUBTFUL = 6

/**
 * Reads tagged values, which carry no type. A value that is JSON other than a string is read as JSON; any other is text. A value that fits
 * its argument's schema only as text stays text. When the result does not satisfy the tool's schema, combinations with the values as text
 * are tried.
 */
function valuesOf(pairs: readonly RegExpMatchArray[], parameters: Schema): Readonly<Record<string, unknown>> {
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

/** Returns the schema of one argument by name. */
function schemaOf({ properties, $defs = {}, definitions = {} }: Schema, key: string): AnySchema | null {
  const schema = isRecord(properties) ? properties[key] : undefined
  return isRecord(schema) ? { ...schema, $defs, definitions } : null
}

/** Returns the value, and the original text of a number. */
function loosely(value: string, schema: AnySchema | null): readonly [value: unknown, text?: string] {
  const parsed = parseJson(value)
  const python: Readonly<Record<string, unknown>> = { True: true, False: false, None: null }
  const read = parsed !== undefined && typeof parsed !== 'string' ? parsed : Object.hasOwn(python, value) ? python[value] : value
  if (read !== value && schema !== null && !satisfies(schema, read) && satisfies(schema, value)) return [value]
  return typeof read === 'number' ? [read, value.trim()] : [read]
}

/** Returns how values are tagged: `<parameter=key>` in Qwen3-Coder's and Seed's templates, `<arg_key>` in GLM's. */
function styleOf(source: string, open: string, close: string): Pick<CallForm, 'write' | 'style'> {
  if (source.includes('<arg_key>'))
    return {
      style: {
        before: (key) => `<arg_key>${key}</arg_key>\n<arg_value>`,
        after: '</arg_value>\n',
        end: '</arg_value>',
      },
      write: (tool, args) => words(`${open}${tool}\n`) + args + words(close),
    }
  if (!source.includes('<function='))
    return { write: (tool, args) => words(`${open}\n`) + jsonCall(tool, args) + words(`\n${close}`) }
  const gap = open === SEED ? '' : '\n'
  return {
    style: { before: (key) => `<parameter=${key}>${gap}`, after: `${gap}</parameter>\n`, end: '</parameter>' },
    write: (tool, args) => words(`${open}\n<function=${tool}>\n`) + args + words(`</function>\n${close}`),
  }
}

/** Makes a family for one pair of tags. These families differ only in their tags. */
function tagged(name: string, open: string, close: string): SyntaxFamily {
  return ({ source, tags }) => ({
    name,
    parser: (prompt, tools = []) =>
      new BlockParser([{ kind: 'calls', open, reader: () => new HermesReader(close, tools) }, ...reasoningBlocks(tags)], prompt),
    ...callGrammars({ ...styleOf(source, open, close), between: words('\n'), reasoning: tags, triggers: [open] }),
  })
}

const SEED = '<seed:tool_call>'

export const hermes = tagged('hermes', '<tool_call>', '</tool_call>')
export const seed = tagged('seed', SEED, '</seed:tool_call>')
