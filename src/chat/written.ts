/** Calls and tools as text, for templates that have no place for them. */
import type { ToolCall, ToolDefinition } from './message.js'
import type { CallWriter } from './syntax/syntax.js'
import type { Origin } from './text/origin.js'
import { Tracked } from './text/tracked.js'

const literal = (text: string) => Tracked.of(text, 'template')

/** A call as `{"name": ..., "arguments": ...}`. */
export function namedJson(call: ToolCall): string {
  return `{"name": ${JSON.stringify(call.name)}, "arguments": ${call.malformed ?? pythonJson(call.arguments)}}`
}

export const hermesWriter: CallWriter = {
  before: '',
  open: '<tool_call>\n',
  call: namedJson,
  close: '\n</tool_call>',
  between: '\n',
  after: '',
}

export function writtenCalls(
  calls: readonly ToolCall[],
  origin: Origin,
  { before, open, call, close, between, after }: CallWriter,
): Tracked {
  const parts = calls.map((each) => Tracked.join([literal(open), Tracked.of(call(each), origin), literal(close)]))
  return Tracked.join([
    literal(before),
    ...parts.flatMap((part, at) => (at === 0 ? [part] : [literal(between), part])),
    literal(after),
  ])
}

/** JSON with Python's spacing, which is what models were trained on. */
export function pythonJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(pythonJson).join(', ')}]`
  if (typeof value === 'object' && value !== null)
    return `{${Object.entries(value)
      .filter(([, item]) => item !== undefined)
      .map(([key, item]) => `${JSON.stringify(key)}: ${pythonJson(item)}`)
      .join(', ')}}`
  return value === undefined ? 'null' : JSON.stringify(value)
}

/** Tool instructions for templates without tools. */
export function describeTools(tools: readonly ToolDefinition[]): Tracked {
  const list = tools.map((tool) => pythonJson({ type: 'function', function: tool })).join('\n')
  return Tracked.join([
    literal('# Tools\n\nYou can call these functions, described as JSON, one a line:\n\n<tools>\n'),
    Tracked.of(list, { field: 'tool', message: 0 }),
    literal(
      '\n</tools>\n\nTo call a function, write a JSON object with its name and arguments between tags, one block for every call:\n' +
        '<tool_call>\n{"name": "function name", "arguments": {}}\n</tool_call>',
    ),
  ])
}
