/** From our messages to what a template is given, in the form that this template works with. */
import { writtenEntries } from '../core/written-json.js'
import type { TemplateMessage } from './jinja/template.js'
import { ArrayValue, MappingValue, NullValue, numberValue, TrackedString, TruthValue, type Value } from './jinja/values.js'
import type { ChatMessage, ToolCall, ToolDefinition } from './message.js'
import type { CallWriter } from './syntax/syntax.js'
import { type Origin, Tracked } from './tracked.js'

const literal = (text: string) => Tracked.of(text, 'template')
const string = (text: Tracked) => new TrackedString(text)
const written = (text: string) => string(literal(text))

/** A JSON-like value as the template's, every string of the given origin. */
export function toValue(input: unknown, origin: Origin): Value {
  if (typeof input === 'string') return string(Tracked.of(input, origin))
  if (typeof input === 'number') return numberValue(input)
  if (typeof input === 'boolean') return new TruthValue(input)
  if (typeof input !== 'object' || input === null) return new NullValue()
  const entries = writtenEntries(input).map(({ key, value, text }) => {
    const made = typeof value === 'number' ? numberValue(value, text) : toValue(value, origin)
    return [key, value, made] as const
  })
  if (Array.isArray(input)) return new ArrayValue(entries.map(([, , made]) => made))
  return new MappingValue(new Map(entries.flatMap(([key, value, made]) => (value === undefined ? [] : [[key, made] as const]))))
}

const mapping = (entries: readonly (readonly [string, Value])[]) => new MappingValue(new Map(entries))

/** The `tools` variable; null: leave it undefined. */
export function toolsValue(tools: readonly ToolDefinition[], form: TemplateForm): Value | null {
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
  form: TemplateForm,
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

function turnsOf(
  message: ChatMessage,
  index: number,
  messages: readonly ChatMessage[],
  form: TemplateForm,
  writer: CallWriter,
): TemplateTurn[] {
  const note = Tracked.of(message.note ?? '', { field: 'note', message: index })
  const content = Tracked.join([Tracked.of(message.content, { field: 'content', message: index }), note])
  const callOrigin: Origin = { field: 'call', message: index }
  const turn = (given: Partial<TemplateTurn>): TemplateTurn => ({ index, role: message.role, content, rest: [], ...given })
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

function callValue(call: ToolCall, origin: Origin, form: TemplateForm): Value {
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
function callId(id: string, { ids }: TemplateForm): string {
  if (ids === 'free' || /^[a-zA-Z0-9]{9}$/.test(id)) return id
  let hash = 0x811c9dc5
  for (const char of id) hash = Math.imul(hash ^ (char.codePointAt(0) ?? 0), 0x01000193) >>> 0
  return hash.toString(36).padStart(9, '0')
}

// The form in which a template takes messages, tools and calls.

/** How a template wants its messages; found out once, by trying (capabilities.ts). */
export interface TemplateForm {
  /** `merged`: the template knows no system role, so the first user message opens with the system's text. */
  readonly system: 'native' | 'merged'
  /** What templates that want to be told see when there are no tools. */
  readonly absent: 'none' | 'undefined'
  /** `described`: the template ignores tools, so the system message describes them. */
  readonly tools: 'native' | 'described'
  /** Arguments as an object or as JSON text; `text`: the template ignores calls, so they are written into the content. */
  readonly calls: 'object' | 'string' | 'text'
  /** `split`: the template takes one call a message, so a message with several becomes several. */
  readonly parallel: 'together' | 'split'
  /** `user`: the template knows no tool role, so results are user messages. */
  readonly results: 'native' | 'user'
  /** `nine`: call ids must be nine letters and digits. */
  readonly ids: 'free' | 'nine'
  /** `either`: a message with calls may have content or reasoning, so its reasoning is left out when it has both. */
  readonly reasoning: 'both' | 'either'
  /** `space`: the template refuses answers without content and calls, so they are shown as one space. */
  readonly empty: 'kept' | 'space'
  /** True when neighbouring messages of one role must be one. */
  readonly merge: boolean
}

export const nativeForm: TemplateForm = {
  system: 'native',
  absent: 'none',
  tools: 'native',
  calls: 'object',
  parallel: 'together',
  results: 'native',
  ids: 'free',
  reasoning: 'both',
  empty: 'kept',
  merge: false,
}

// Conversation turns on their way to a template, and how they are joined for templates that take fewer kinds of them.

/** A turn on its way to the template. */
export interface TemplateTurn {
  readonly index: number
  readonly role: string
  readonly content: Tracked
  readonly rest: readonly (readonly [string, Value])[]
}

/** Text at the end of the system turn, which is made when there is none. */
export function withPreamble(turns: readonly TemplateTurn[], text: Tracked): TemplateTurn[] {
  const [first, ...rest] = turns
  if (first?.role === 'system') return [{ ...first, content: paragraphs(first.content, text, first.index) }, ...rest]
  return [{ index: first?.index ?? 0, role: 'system', content: text, rest: [] }, ...turns]
}

/** System turns joined to the next user turn (or made one). */
export function withoutSystem(turns: readonly TemplateTurn[]): TemplateTurn[] {
  const made: TemplateTurn[] = []
  let waiting: TemplateTurn | null = null
  for (const turn of turns) {
    if (turn.role === 'system') waiting = waiting === null ? { ...turn, role: 'user' } : joined(waiting, turn)
    else if (waiting === null) made.push(turn)
    else {
      made.push(...(turn.role === 'user' ? [joined(waiting, turn)] : [waiting, turn]))
      waiting = null
    }
  }
  return waiting === null ? made : [...made, waiting]
}

/** Neighbouring user turns, and neighbouring assistant turns without calls, as one. */
export function merged(turns: readonly TemplateTurn[]): TemplateTurn[] {
  const made: TemplateTurn[] = []
  for (const turn of turns) {
    const last = made.at(-1)
    if (last !== undefined && last.role === turn.role && turn.role !== 'tool' && last.rest.length === 0)
      made[made.length - 1] = joined(last, turn)
    else made.push(turn)
  }
  return made
}

/** One turn out of two; each part keeps its owner, the second's role wins. */
function joined(first: TemplateTurn, second: TemplateTurn): TemplateTurn {
  const content = paragraphs(first.content.owned(first.index), second.content.owned(second.index), second.index)
  return { index: first.index, role: second.role, content, rest: second.rest }
}

/** Two texts with a blank line between; the blank line belongs to `owner`. */
function paragraphs(first: Tracked, second: Tracked, owner: number): Tracked {
  const parts = [first, second].filter(({ length }) => length > 0)
  return Tracked.join(parts.flatMap((part, at) => (at === 0 ? [part] : [literal('\n\n').owned(owner), part])))
}

// Calls and tools as text, for templates that have no place for them.

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

/** JSON with Python's spacing, which is what models were trained on. Numbers and keys stand as they were written. */
export function pythonJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return value === undefined ? 'null' : JSON.stringify(value)
  const entries = writtenEntries(value).map(({ key, value: item, text }) => ({ key, item, json: text ?? pythonJson(item) }))
  if (Array.isArray(value)) return `[${entries.map(({ json }) => json).join(', ')}]`
  return `{${entries
    .filter(({ item }) => item !== undefined)
    .map(({ key, json }) => `${JSON.stringify(key)}: ${json}`)
    .join(', ')}}`
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
