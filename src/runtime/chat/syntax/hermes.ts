/** Tool calls between tags, each written as JSON (Hermes, Qwen) or as nested tags (Qwen3-Coder, GLM, Seed). */
import { jsonCall, words, type CallForm } from '../grammar.js'
import type { ToolDefinition } from '../message.js'
import { begunNamed, JsonScanner, namedCall, type RawCall } from './call.js'
import { BlockParser, type BlockReader, callGrammars, reasoningBlocks, type SyntaxFamily } from './syntax.js'
import { PythonCalls } from './python-calls.js'
import { argumentTags, functionTags } from './tagged-arguments.js'

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
    let at = body.indexOf(this.close, Math.max(0, this.#searched - this.close.length))
    while (at !== -1 && isWithinValue(body.slice(0, at))) at = body.indexOf(this.close, at + this.close.length)
    this.#searched = body.length
    if (at === -1 && !final) return null
    // No value ends, so the first closing tag ends the call.
    if (at === -1) at = body.indexOf(this.close)
    const end = at === -1 ? body.length : at
    return { end: Math.min(body.length, end + this.close.length), calls: callsIn(body.slice(0, end), at !== -1, this.tools) }
  }
}

/** Whether a call written with nested tags breaks off inside a value. */
function isWithinValue(text: string): boolean {
  const isOpen = (open: string, ...closes: readonly string[]) =>
    text.lastIndexOf(open) > Math.max(...closes.map((close) => text.lastIndexOf(close)))
  if (text.trimStart().startsWith('<function=')) return isOpen('<parameter=', '</parameter>', '</function>')
  return !text.trimStart().startsWith('{') && isOpen('<arg_value>', '</arg_value>')
}

/**
 * Reads the calls of a block. `closed`: whether the block has its closing tag. If it was cut off, a value may be incomplete, so its
 * arguments are kept as raw text.
 */
function callsIn(body: string, closed: boolean, tools: readonly ToolDefinition[]): RawCall[] {
  const text = body.trim()
  if (text.startsWith('<function=')) return functionTags(text, closed, tools)
  // GLM writes a call without arguments as the bare name.
  if (closed && /^[\w.:-]+$/.test(text)) return [{ name: text, arguments: {} }]
  if (!text.startsWith('{') && text.includes('<arg_key>')) return [argumentTags(text, closed, tools)]
  if (/^[\w.-]+\(/.test(text)) {
    const read = new PythonCalls(text).read(false)
    if (typeof read !== 'string' && read.end === text.length) return [...read.calls]
  }
  return text === '' ? [] : [namedCall(text)]
}

/** Returns how a template writes calls and values: `<parameter=key>` (Qwen3-Coder, Seed), `<arg_key>` (GLM), or JSON. */
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

/** Makes a syntax for one pair of tags. Hermes and Seed differ only in these. */
function tagged(name: string, open: string, close: string): SyntaxFamily {
  return ({ source, tags }) => ({
    name,
    parser: (prompt, tools) =>
      new BlockParser(
        [{ kind: 'calls', open, reader: () => new HermesReader(close, tools ?? []) }, ...reasoningBlocks(tags)],
        prompt,
        tools,
      ),
    ...callGrammars({ ...styleOf(source, open, close), between: words('\n'), reasoning: tags, triggers: [open] }),
  })
}

const SEED = '<seed:tool_call>'

export const hermes = tagged('hermes', '<tool_call>', '</tool_call>')
export const seed = tagged('seed', SEED, '</seed:tool_call>')
