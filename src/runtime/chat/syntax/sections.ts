/** DeepSeek and Kimi: control tokens around each call, and around all calls together. */
import { words } from '../grammar.js'
import { type BegunCall, JsonScanner, type RawCall } from './call.js'
import { type TagBlock, BlockParser, type BlockReader, callGrammars, reasoningBlocks, type SyntaxFamily } from './syntax.js'

/** Reads one call: header, separator, JSON (possibly in a code fence), closing tag. */
class SectionReader implements BlockReader {
  #scanner: JsonScanner | null = null

  constructor(
    private readonly separator: string,
    private readonly close: string,
    private readonly call: (header: string, json: string) => RawCall,
    private readonly start: (header: string, rest: string) => BegunCall | null,
  ) {}

  begun(body: string): BegunCall | null {
    const split = body.indexOf(this.separator)
    if (split === -1) return null
    const begun = this.start(body.slice(0, split), body.slice(split + this.separator.length))
    const isHeader = begun !== null && begun.name !== '' && !body.slice(0, body.length - begun.text.length).includes(this.close)
    return isHeader ? begun : null
  }

  read(body: string, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const first = body.indexOf(this.close)
    /** Drops an offset after the end of this call: what lies there belongs to the next call. */
    const before = (at: number) => (first !== -1 && first < at ? -1 : at)
    const split = before(body.indexOf(this.separator))
    const from = split === -1 ? -1 : before(body.indexOf('{', split))
    let searched = 0
    if (from !== -1) {
      const json = (this.#scanner ??= new JsonScanner(from)).scan(body, final)
      if (json.state === 'incomplete' && !final) return null
      if (json.state === 'complete') searched = json.end
    }
    const close = body.indexOf(this.close, searched)
    if (close === -1 && !final) return null
    const end = close === -1 ? body.length : close
    const header = split === -1 ? '' : body.slice(0, split)
    const rest = split === -1 ? body.slice(0, end) : body.slice(split + this.separator.length, end)
    return { end: close === -1 ? end : end + this.close.length, calls: body.trim() === '' ? [] : [this.call(header, rest)] }
  }
}

const skip = (open: string): TagBlock => ({ kind: 'skip', open })

/**
 * Splits the text after the separator into the name and what follows the code fence. Done by code, because a pattern would take cubic time
 * on spaces.
 */
function behindFence(rest: string): { readonly name: string; readonly text: string } | null {
  const fence = rest.indexOf('```')
  const name = rest.slice(0, Math.max(0, fence)).trim()
  if (fence === -1 || /[\n{]/.test(name)) return null
  const behind = rest.slice(fence + 3).replace(/^json/, '')
  return { name, text: behind.trimStart() }
}

/** Reads a DeepSeek call. The name is in the header (V3.1), or between the separator and a code fence (R1, V3). */
function deepseekCall(header: string, rest: string): RawCall {
  const found = behindFence(rest)
  const text = found?.text.trimEnd()
  if (!found || !text?.endsWith('```')) return { name: header.trim(), arguments: rest.trim() }
  return { name: found.name, arguments: text.slice(0, -3).trimEnd() }
}

function deepseekStart(header: string, rest: string): BegunCall | null {
  if (/^\s*\{/.test(rest)) return { name: header.trim(), text: rest }
  const found = behindFence(rest)
  return found?.text.startsWith('{') ? found : null
}

export const deepseek: SyntaxFamily = ({ source, tags }) => {
  const fenced = source.includes('```json')
  const reader = () => new SectionReader('<｜tool▁sep｜>', '<｜tool▁call▁end｜>', deepseekCall, deepseekStart)
  const blocks: readonly TagBlock[] = [
    { kind: 'calls', open: '<｜tool▁call▁begin｜>', reader },
    skip('<｜tool▁calls▁begin｜>'),
    skip('<｜tool▁calls▁end｜>'),
    ...reasoningBlocks(tags),
  ]
  const write = (tool: string, args: string) =>
    fenced
      ? words(`<｜tool▁call▁begin｜>function<｜tool▁sep｜>${tool}\n\`\`\`json\n`) + args + words('\n```<｜tool▁call▁end｜>')
      : words(`<｜tool▁call▁begin｜>${tool}<｜tool▁sep｜>`) + args + words('<｜tool▁call▁end｜>')
  return {
    name: 'deepseek',
    parser: (prompt, tools) => new BlockParser(blocks, prompt, tools),
    ...callGrammars({
      write,
      between: fenced ? words('\n') : ' ',
      around: { before: words('<｜tool▁calls▁begin｜>'), after: words('<｜tool▁calls▁end｜>') },
      isAroundOptional: true,
      reasoning: tags,
      triggers: ['<｜tool▁calls▁begin｜>', '<｜tool▁call▁begin｜>'],
    }),
  }
}

/** Reads a Kimi call. The header is an id such as `functions.name:0`, which contains the name. */
function kimiCall(header: string, rest: string): RawCall {
  const id = header.trim()
  return { name: id.replace(/^functions\./, '').replace(/:\d+$/, ''), arguments: rest.trim(), ...(id === '' ? {} : { id }) }
}

const kimiStart = (header: string, rest: string): BegunCall => ({ ...kimiCall(header, ''), text: rest })

export const kimi: SyntaxFamily = ({ tags }) => {
  const reader = () => new SectionReader('<|tool_call_argument_begin|>', '<|tool_call_end|>', kimiCall, kimiStart)
  const blocks: readonly TagBlock[] = [
    { kind: 'calls', open: '<|tool_call_begin|>', reader },
    skip('<|tool_calls_section_begin|>'),
    skip('<|tool_calls_section_end|>'),
    ...reasoningBlocks(tags),
  ]
  return {
    name: 'kimi',
    parser: (prompt, tools) => new BlockParser(blocks, prompt, tools),
    ...callGrammars({
      write: (tool, args) =>
        words(`<|tool_call_begin|>functions.${tool}:`) +
        // The call ids of this model are numbers that count over the whole conversation.
        ' [0-9]{1,4} ' +
        words('<|tool_call_argument_begin|>') +
        args +
        words('<|tool_call_end|>'),
      between: ' ',
      around: { before: words('<|tool_calls_section_begin|>'), after: words('<|tool_calls_section_end|>') },
      isAroundOptional: true,
      reasoning: tags,
      triggers: ['<|tool_calls_section_begin|>', '<|tool_call_begin|>'],
    }),
  }
}
