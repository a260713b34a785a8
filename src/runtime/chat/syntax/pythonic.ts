/** LFM2: a list of Python calls between tags, `[name(key='value')]`. */
import { writtenEntries } from '../../core/written-json.js'
import type { ToolCall } from '../message.js'
import { words } from '../grammar.js'
import type { RawCall } from './call.js'
import { PythonCalls } from './python-calls.js'
import { BlockParser, type BlockReader, callGrammars, reasoningBlocks, type SyntaxFamily } from './syntax.js'

const OPEN = '<|tool_call_start|>'
const CLOSE = '<|tool_call_end|>'

class PythonReader implements BlockReader {
  read(body: string, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const close = body.indexOf(CLOSE)
    if (close === -1 && !final) return null
    const end = close === -1 ? body.length : close
    return { end: close === -1 ? end : end + CLOSE.length, calls: new PythonCalls(body.slice(0, end)).calls() }
  }
}

function python(value: unknown): string {
  if (value === null || value === undefined) return 'None'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (typeof value !== 'object') return JSON.stringify(value)
  const entries = writtenEntries(value).map(({ key, value: item, text }) => [key, text ?? python(item)] as const)
  if (Array.isArray(value)) return `[${entries.map(([, item]) => item).join(', ')}]`
  return `{${entries.map(([key, item]) => `${python(key)}: ${item}`).join(', ')}}`
}

function pythonCall({ name, arguments: given, malformed }: ToolCall): string {
  return (
    malformed ??
    `${name}(${writtenEntries(given)
      .map(({ key, value, text }) => `${key}=${text ?? python(value)}`)
      .join(', ')})`
  )
}

export const pythonic: SyntaxFamily = ({ tags }) => ({
  name: 'pythonic',
  parser: (prompt, tools) =>
    new BlockParser([{ kind: 'calls', open: OPEN, reader: () => new PythonReader() }, ...reasoningBlocks(tags)], prompt, tools),
  ...callGrammars({
    write: (tool, args) => `${words(`${tool}(`)}${args}${words(')')}`,
    between: words(', '),
    around: { before: words(`${OPEN}[`), after: words(`]${CLOSE}`) },
    reasoning: tags,
    triggers: [OPEN],
    style: 'python',
  }),
  writer: { before: `${OPEN}[`, between: ', ', after: `]${CLOSE}`, open: '', close: '', call: pythonCall },
})
