/** Tool-call syntaxes with one JSON array after a tag: Mistral before v11, Granite, Command-R, Nemotron, Apertus, Apriel, firefunction. */
import { isRecord } from '../../core/json.js'
import { writeJson } from '../../core/written-json.js'
import { namedJson } from '../conversation.js'
import { jsonCall, words } from '../grammar.js'
import { JsonScanner, namedCallOf, parseJson, type RawCall } from './call.js'
import { type TagBlock, BlockParser, type BlockReader, callGrammars, reasoningBlocks, type SyntaxFamily } from './syntax.js'

/** Reads one array (or a single object), and its closing tag if the syntax has one. */
export class ArrayReader implements BlockReader {
  #scanner: JsonScanner | null = null

  constructor(private readonly close: string | null) {}

  read(body: string, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const first = body.search(/\S/)
    if (first === -1) return final ? { end: body.length, calls: [] } : null
    const json = (this.#scanner ??= new JsonScanner(first)).scan(body, final)
    if (json.state === 'incomplete' && !final) return null
    if (json.state !== 'complete') {
      const at = this.close === null ? -1 : body.indexOf(this.close)
      if (at === -1 && !final) return null
      const end = at === -1 ? body.length : at
      const text = body.slice(first, end).trim()
      return { end: at === -1 ? end : end + (this.close ?? '').length, calls: text === '' ? [] : [{ name: '', arguments: text }] }
    }
    const calls = arrayCalls(body.slice(first, json.end))
    if (this.close === null) return { end: json.end, calls }
    const rest = body.slice(json.end).trimStart()
    if (!final && rest.length < this.close.length && this.close.startsWith(rest)) return null
    return { end: rest.startsWith(this.close) ? body.length - rest.length + this.close.length : json.end, calls }
  }
}

/** Parses an array of calls: `[{"name": ..., "arguments": ...}]`, `[{"tool_name": ..., "parameters": ...}]` or `[{name: arguments}]`. */
function arrayCalls(text: string): RawCall[] {
  const value = parseJson(text)
  const items = Array.isArray(value) ? (value as readonly unknown[]) : [value]
  return items.map((item) => {
    if (isRecord(item)) {
      const renamed =
        typeof item['tool_name'] === 'string' ? { ...item, name: item['tool_name'], id: item['tool_call_id'] } : item
      const call = namedCallOf(renamed)
      if (call !== null) return call
      const [[name, given] = ['', undefined], ...others] = Object.entries(item)
      if (others.length === 0 && isRecord(given)) return { name, arguments: given }
    }
    return { name: '', arguments: writeJson(item) }
  })
}

interface ArrayStyle {
  readonly open: string
  readonly close: string | null
  /** Writes GBNF for one call of a forced array. */
  readonly write?: (tool: string, args: string) => string
  /** Tags around an answer without calls. The parser drops them. */
  readonly skip?: readonly string[]
  readonly reasoning?: { readonly open: string; readonly close: string }
}

export function arrayFamily(
  name: string,
  { open, close, write = (tool, args) => jsonCall(tool, args), skip = [], reasoning }: ArrayStyle,
): SyntaxFamily {
  return ({ tags }) => {
    const thoughts = reasoning ?? tags
    const blocks: readonly TagBlock[] = [
      { kind: 'calls', open, reader: () => new ArrayReader(close) },
      ...skip.map((tag): TagBlock => ({ kind: 'skip', open: tag })),
      ...reasoningBlocks(thoughts),
    ]
    return {
      name,
      parser: (prompt, tools) => new BlockParser(blocks, prompt, tools),
      ...callGrammars({
        write,
        between: words(', '),
        around: { before: words(`${open}[`), after: words(close === null ? ']' : `]${close}`) },
        reasoning: thoughts,
        triggers: [open],
      }),
      writer: {
        before: `${open}[`,
        open: '',
        call: namedJson,
        close: '',
        between: ', ',
        after: close === null ? ']' : `]${close}`,
      },
    }
  }
}

export const granite = arrayFamily('granite', { open: '<|tool_call|>', close: null })
export const commandR = arrayFamily('command-r', {
  open: '<|START_ACTION|>',
  close: '<|END_ACTION|>',
  reasoning: { open: '<|START_THINKING|>', close: '<|END_THINKING|>' },
  skip: ['<|START_RESPONSE|>', '<|END_RESPONSE|>', '<|START_TEXT|>', '<|END_TEXT|>'],
  // The call ids of this model are numbers that count over the whole conversation.
  write: (tool, args) =>
    `${words('{"tool_call_id": "')}[0-9]{1,4}${words(`", "tool_name": ${JSON.stringify(tool)}, "parameters": `)}${args}${words('}')}`,
})
export const nemotron = arrayFamily('nemotron', { open: '<TOOLCALL>', close: '</TOOLCALL>' })
export const apertus = arrayFamily('apertus', {
  open: '<|tools_prefix|>',
  close: '<|tools_suffix|>',
  reasoning: { open: '<|inner_prefix|>', close: '<|inner_suffix|>' },
  write: (tool, args) => words(`{${JSON.stringify(tool)}: `) + args + words('}'),
})
export const apriel = arrayFamily('apriel', { open: '<tool_calls>', close: '</tool_calls>' })
export const firefunction = arrayFamily('firefunction', { open: 'functools', close: null })
