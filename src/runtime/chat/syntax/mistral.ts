/** Mistral: `[TOOL_CALLS]` and an array; since v11, `[TOOL_CALLS]name[ARGS]{...}` for each call. */
import { jsonCall, words } from '../grammar.js'
import { ArrayReader } from './arrays.js'
import { type BegunCall, JsonScanner, type RawCall } from './call.js'
import { BlockParser, type BlockReader, callGrammars, reasoningBlocks, type SyntaxFamily } from './syntax.js'

const OPEN = '[TOOL_CALLS]'
/** Matches the header of `name[CALL_ID]id[ARGS]{...}`. The id is optional. */
const HEADER = /^([^]*?)(?:\[CALL_ID\]([^]*?))?\[ARGS\]/

class MistralReader implements BlockReader {
  #array: ArrayReader | null = null
  #scanner: JsonScanner | null = null

  read(body: string, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const first = body.search(/\S/)
    if (first === -1) return final ? { end: body.length, calls: [] } : null
    if (body.charAt(first) === '[' || body.charAt(first) === '{') return (this.#array ??= new ArrayReader(null)).read(body, final)
    return this.#named(body, first, final)
  }

  begun(body: string): BegunCall | null {
    const [header, name = '', id] = /^\s*[[{]/.test(body) ? [] : (HEADER.exec(body) ?? [])
    if (header === undefined || name.trim() === '') return null
    return { name: name.trim(), text: body.slice(header.length), ...(id === undefined ? {} : { id: id.trim() }) }
  }

  #named(body: string, first: number, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const header = HEADER.exec(body)
    if (header === null) {
      if (!final) return null
      return { end: body.length, calls: [{ name: '', arguments: body.slice(first).trim() }] }
    }
    const [opening, name = '', id] = header
    const json = (this.#scanner ??= new JsonScanner(opening.length)).scan(body, final)
    if (json.state === 'incomplete' && !final) return null
    const next = body.indexOf(OPEN, opening.length)
    if (json.state === 'invalid' && next === -1 && !final) return null
    const end = json.state === 'complete' ? json.end : next === -1 ? body.length : next
    const call = {
      name: name.trim(),
      arguments: body.slice(opening.length, end).trim(),
      ...(id === undefined ? {} : { id: id.trim() }),
    }
    return { end, calls: [call] }
  }
}

export const mistral: SyntaxFamily = ({ source, tags }) => {
  const reasoning = source.includes('[THINK]') ? { open: '[THINK]', close: '[/THINK]' } : tags
  const named = source.includes('[ARGS]')
  return {
    name: 'mistral',
    parser: (prompt, tools) =>
      new BlockParser(
        [{ kind: 'calls', open: OPEN, reader: () => new MistralReader() }, ...reasoningBlocks(reasoning)],
        prompt,
        tools,
      ),
    ...callGrammars({
      reasoning,
      triggers: [OPEN],
      ...(named
        ? { write: (tool, args) => words(`${OPEN}${tool}[ARGS]`) + args, between: ' ' }
        : {
            write: (tool, args) => jsonCall(tool, args),
            between: words(', '),
            around: { before: words(`${OPEN}[`), after: words(']') },
          }),
    }),
  }
}
