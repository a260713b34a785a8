/** Calls between tags, each as JSON (Hermes, Qwen) or as tags of its own (Qwen3-Coder, GLM, Seed). */
import { forcedCalls, jsonCall, words } from '../grammar.js'
import { BlockParser, type BlockReader } from './blocks.js'
import { JsonScanner, namedCall, parseJson, type RawCall } from './call.js'
import { reasoningBlocks, type SyntaxFamily } from './syntax.js'

class HermesReader implements BlockReader {
  #scanner: JsonScanner | null = null
  #searched = 0

  constructor(private readonly close: string) {}

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
    return { end: Math.min(body.length, end + this.close.length), calls: callsIn(body.slice(0, end), at !== -1) }
  }
}

/** `closed`: whether the block came to its end. Where it was cut off, tags do not show that a value is whole, so its text is kept as it is. */
function callsIn(body: string, closed: boolean): RawCall[] {
  const text = body.trim()
  if (text.startsWith('<function=')) return functionTags(text, closed)
  if (!text.startsWith('{') && text.includes('<arg_key>')) return [argumentTags(text, closed)]
  return text === '' ? [] : [namedCall(text)]
}

/** `<function=name><parameter=key>value</parameter></function>`. */
function functionTags(text: string, closed: boolean): RawCall[] {
  const calls = [...text.matchAll(/<function=([^>]*)>([^]*?)(<\/function>|$)/g)]
  return calls.map(([, name = '', inside = '', end = '']) => {
    if (!closed && end === '') return { name: name.trim(), arguments: inside.trim() }
    const pairs = [...inside.matchAll(/<parameter=([^>]*)>\n?([^]*?)\n?(?:<\/parameter>|(?=<parameter=)|$)/g)]
    return {
      name: name.trim(),
      arguments: Object.fromEntries(pairs.map(([, key = '', value = '']) => [key.trim(), loosely(value)])),
    }
  })
}

/** `name<arg_key>key</arg_key><arg_value>value</arg_value>`. */
function argumentTags(text: string, closed: boolean): RawCall {
  const [name = ''] = text.split('<arg_key>', 1)
  if (!closed) return { name: name.trim(), arguments: text.slice(name.length) }
  const pairs = [...text.matchAll(/<arg_key>([^]*?)<\/arg_key>\s*<arg_value>([^]*?)(?:<\/arg_value>|$)/g)]
  return {
    name: name.trim(),
    arguments: Object.fromEntries(pairs.map(([, key = '', value = '']) => [key.trim(), loosely(value)])),
  }
}

/** Tagged values carry no type: what is JSON other than a string is taken as that, the rest as text. */
function loosely(value: string): unknown {
  const parsed = parseJson(value)
  if (parsed !== undefined && typeof parsed !== 'string') return parsed
  const python: Readonly<Record<string, unknown>> = { True: true, False: false, None: null }
  return value in python ? python[value] : value
}

/** One family a pair of tags; they differ in nothing else. */
function tagged(name: string, open: string, close: string): SyntaxFamily {
  return ({ source, tags }) => ({
    name,
    parser: (prompt) =>
      new BlockParser([{ kind: 'calls', open, reader: () => new HermesReader(close) }, ...reasoningBlocks(tags)], prompt),
    grammar: (tools, prompt, single) =>
      source.includes('<function=') || source.includes('<arg_key>')
        ? null
        : forcedCalls(
            tools,
            prompt,
            tags,
            (tool, args) => words(`${open}\n`) + jsonCall(tool, args) + words(`\n${close}`),
            single === true ? null : words('\n'),
          ),
  })
}

export const hermes = tagged('hermes', '<tool_call>', '</tool_call>')
export const seed = tagged('seed', '<seed:tool_call>', '</seed:tool_call>')
