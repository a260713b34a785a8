/** From our messages to what a template is given, in the form that this template works with. */
import type { ChatMessage, ToolCall, ToolDefinition } from './message.js'
import type { Form } from './form.js'
import type { CallWriter } from './syntax/syntax.js'
import { merged, withoutSystem, withPreamble, type Turn } from './turns.js'
import { describeTools, hermesWriter, pythonJson, writtenCalls } from './written.js'
import type { Value } from './jinja/library.js'
import type { TemplateMessage } from './jinja/template.js'
import { ArrayValue, FloatValue, IntegerValue, MappingValue, NullValue, TrackedString, TruthValue } from './jinja/values.js'
import type { Origin } from './text/origin.js'
import { Tracked } from './text/tracked.js'

const literal = (text: string) => Tracked.of(text, 'template')
const string = (text: Tracked) => new TrackedString(text)
const written = (text: string) => string(literal(text))

/** A JSON-like value as the template's, every string of the given origin. */
export function toValue(input: unknown, origin: Origin): Value {
  if (typeof input === 'string') return string(Tracked.of(input, origin))
  if (typeof input === 'number') return Number.isInteger(input) ? new IntegerValue(input) : new FloatValue(input)
  if (typeof input === 'boolean') return new TruthValue(input)
  if (Array.isArray(input)) return new ArrayValue(input.map((item) => toValue(item, origin)))
  if (typeof input === 'object' && input !== null)
    return new MappingValue(
      new Map(
        Object.entries(input).flatMap(([key, item]) => (item === undefined ? [] : [[key, toValue(item, origin)] as const])),
      ),
    )
  return new NullValue()
}

const mapping = (entries: readonly (readonly [string, Value])[]) => new MappingValue(new Map(entries))

/** The `tools` variable; null: leave it undefined. */
export function toolsValue(tools: readonly ToolDefinition[], form: Form): Value | null {
  if (tools.length === 0 || form.tools !== 'native') return form.absent === 'none' ? new NullValue() : null
  const origin: Origin = { field: 'tool', message: 0 }
  return new ArrayValue(
    tools.map(({ name, description, parameters }) =>
      mapping([
        ['type', written('function')],
        ['function', toValue({ name, description, parameters }, origin)],
      ]),
    ),
  )
}

/** The messages as the template gets them; each stands for the message of the same index. */
export function templateMessages(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  form: Form,
  writer: CallWriter = hermesWriter,
): TemplateMessage[] {
  let turns = messages.flatMap((message, index) => turnsOf(message, index, messages, form, writer))
  if (form.tools === 'described' && tools.length > 0) turns = withPreamble(turns, describeTools(tools))
  if (form.system === 'merged') turns = withoutSystem(turns)
  if (form.merge) turns = merged(turns)
  return turns.map(({ index, role, content, rest }) => ({
    index,
    value: mapping([['role', written(role)], ['content', string(content)], ...rest]),
  }))
}

function turnsOf(message: ChatMessage, index: number, messages: readonly ChatMessage[], form: Form, writer: CallWriter): Turn[] {
  const note = Tracked.of(message.note ?? '', { field: 'note', message: index })
  const content = Tracked.join([Tracked.of(message.content, { field: 'content', message: index }), note])
  const callOrigin: Origin = { field: 'call', message: index }
  const turn = (given: Partial<Turn>): Turn => ({ index, role: message.role, content, rest: [], ...given })
  if (message.role === 'tool') {
    if (form.results === 'user') {
      const body = Tracked.join([literal('<tool_response>\n'), content, literal('\n</tool_response>')])
      return [turn({ role: 'user', content: body })]
    }
    const answered = answeredCall(message, index, messages)
    return [
      turn({
        rest: [
          ...(answered.id === undefined
            ? []
            : [['tool_call_id', string(Tracked.of(callId(answered.id, form), callOrigin))] as const]),
          ...(answered.name === undefined ? [] : [['name', string(Tracked.of(answered.name, callOrigin))] as const]),
        ],
      }),
    ]
  }
  if (message.role !== 'assistant') return [turn({})]
  const calls = message.toolCalls ?? []
  const crowded = form.reasoning === 'either' && calls.length > 0 && message.content !== ''
  const thought = crowded ? '' : (message.reasoning ?? '')
  const reasoning = thought === '' ? [] : reasoningEntries(thought, index)
  if (calls.length === 0)
    return [turn({ content: message.content === '' && form.empty === 'space' ? literal(' ') : content, rest: reasoning })]
  if (form.calls === 'text') {
    const written = writtenCalls(calls, callOrigin, writer)
    return [
      turn({ content: message.content === '' ? written : Tracked.join([content, literal('\n'), written]), rest: reasoning }),
    ]
  }
  const values = calls.map((call) => callValue(call, callOrigin, form))
  if (form.parallel === 'together') return [turn({ rest: [...reasoning, ['tool_calls', new ArrayValue(values)]] })]
  return values.map((value, at) =>
    turn({
      content: at === 0 ? content : Tracked.empty,
      rest: [...(at === 0 ? reasoning : []), ['tool_calls', new ArrayValue([value])]],
    }),
  )
}

/** Templates know a reasoning under several names; they get it under all of them. */
function reasoningEntries(reasoning: string, index: number): (readonly [string, Value])[] {
  const value = string(Tracked.of(reasoning, { field: 'reasoning', message: index }))
  return ['reasoning_content', 'reasoning', 'thinking'].map((name) => [name, value] as const)
}

function callValue(call: ToolCall, origin: Origin, form: Form): Value {
  const json = call.malformed ?? pythonJson(call.arguments)
  const asText = form.calls === 'string' || call.malformed !== undefined
  return mapping([
    ['id', string(Tracked.of(callId(call.id, form), origin))],
    ['type', written('function')],
    [
      'function',
      mapping([
        ['name', string(Tracked.of(call.name, origin))],
        ['arguments', asText ? string(Tracked.of(json, origin)) : toValue(call.arguments, origin)],
      ]),
    ],
  ])
}

/** The call a tool message answers: what it says itself, else the calls of the last assistant message, in order. */
function answeredCall(
  message: ChatMessage,
  index: number,
  messages: readonly ChatMessage[],
): { readonly id?: string; readonly name?: string } {
  let first = index
  while (messages[first - 1]?.role === 'tool') first--
  const calls = messages[first - 1]?.toolCalls ?? []
  const call = calls.find(({ id }) => id === message.toolCallId) ?? calls[index - first]
  const id = message.toolCallId ?? call?.id
  const name = message.name ?? call?.name
  return { ...(id === undefined ? {} : { id }), ...(name === undefined ? {} : { name }) }
}

/** An id as the template wants it; the same id always becomes the same. */
function callId(id: string, { ids }: Form): string {
  if (ids === 'free' || /^[a-zA-Z0-9]{9}$/.test(id)) return id
  let hash = 0x811c9dc5
  for (const char of id) hash = Math.imul(hash ^ (char.codePointAt(0) ?? 0), 0x01000193) >>> 0
  return hash.toString(36).padStart(9, '0')
}
