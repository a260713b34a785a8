/** From our messages to what a template is given, in the form that this template works with. */
import { writtenEntries } from '../core/written-json.js'
import type { TemplateMessage } from './jinja/template.js'
import { ArrayValue, MappingValue, NullValue, numberValue, TrackedString, TruthValue, type Value } from './jinja/values.js'
import type { ChatMessage, ToolCall, ToolDefinition } from './message.js'
import type { CallWriter } from './syntax/syntax.js'
import { type Origin, Tracked } from './tracked.js'
import {
  alternating,
  literal,
  opened,
  tagged,
  type TemplateTurn,
  withLateSystems,
  withOneSystem,
  withoutSystem,
  withPreamble,
} from './turns.js'

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
  const places = placesOfResults(messages)
  let turns: readonly TemplateTurn[] = messages.flatMap((message, index) =>
    turnsOf(message, index, places.get(index), form, writer),
  )
  if (form.system !== 'anywhere') turns = withLateSystems(turns)
  if (form.system === 'first' || form.system === 'merged') turns = withOneSystem(turns)
  if (form.tools === 'described' && tools.length > 0) turns = withPreamble(turns, describeTools(tools))
  if (form.system === 'merged') turns = withoutSystem(turns)
  if (form.opening === 'user') turns = opened(turns)
  if (form.alternates) turns = alternating(turns, noAnswer(form))
  return turns.map(({ index, role, content, rest }) => ({
    index,
    value: mapping([['role', written(role)], ['content', string(content)], ...rest]),
  }))
}

function turnsOf(
  message: ChatMessage,
  index: number,
  place: ResultPlace | undefined,
  form: TemplateForm,
  writer: CallWriter,
): TemplateTurn[] {
  const note = Tracked.of(message.note ?? '', { field: 'note', message: index })
  const content = Tracked.join([Tracked.of(message.content, { field: 'content', message: index }), note])
  const callOrigin: Origin = { field: 'call', message: index }
  const turn = (given: Partial<TemplateTurn>): TemplateTurn => ({ index, role: message.role, content, rest: [], ...given })
  if (message.role === 'tool') {
    const { call, missing = [], isLate = false } = place ?? {}
    if (isLate) return [turn({ role: 'user', content: lateResult(content, call, callOrigin) })]
    const result = (body: Tracked, id: string | undefined, name: string | undefined): TemplateTurn =>
      form.results === 'user'
        ? turn({ role: 'user', content: tagged('tool_response', body) })
        : turn({
            content: body,
            rest: [
              ...(id === undefined ? [] : [['tool_call_id', string(Tracked.of(callId(id, form), callOrigin))] as const]),
              ...(name === undefined ? [] : [['name', string(Tracked.of(name, callOrigin))] as const]),
            ],
          })
    return [
      ...missing.map(({ id, name }) => result(literal(NO_RESULT), id, name)),
      result(content, message.toolCallId ?? call?.id, message.name ?? call?.name),
    ]
  }
  if (message.role !== 'assistant') return [turn({})]
  const calls = message.toolCalls ?? []
  const crowded = form.reasoning === 'either' && calls.length > 0 && message.content !== ''
  const thought = crowded ? '' : (message.reasoning ?? '')
  const reasoning = thought === '' ? [] : reasoningEntries(thought, index)
  if (calls.length === 0)
    return [turn({ content: message.content === '' ? Tracked.join([noAnswer(form), note]) : content, rest: reasoning })]
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

/** The name of the one parameter that broken arguments are shown as. */
const BROKEN_PARAMETER = 'arguments'

function callValue(call: ToolCall, origin: Origin, form: TemplateForm): Value {
  const { malformed } = call
  const text = () => string(Tracked.of(malformed ?? pythonJson(call.arguments), origin))
  const given = (): Value => {
    if (malformed !== undefined && form.broken === 'parameter') return mapping([[BROKEN_PARAMETER, text()]])
    return form.calls === 'string' || malformed !== undefined ? text() : toValue(call.arguments, origin)
  }
  return mapping([
    ['id', string(Tracked.of(callId(call.id, form), origin))],
    ['type', written('function')],
    [
      'function',
      mapping([
        ['name', string(Tracked.of(call.name, origin))],
        ['arguments', given()],
      ]),
    ],
  ])
}

// Where results stand beside their calls. It depends only on what comes before a result, so that a longer conversation shows it alike.

/** What stands instead of a result that is missing before another call's. */
const NO_RESULT = 'No result.'

interface ResultPlace {
  /** The call it answers; undefined: there is none. */
  readonly call: ToolCall | undefined
  /** Calls before that one of the same message that have no result. Templates without ids tell results by their order. */
  readonly missing: readonly ToolCall[]
  /** It stands neither right behind its call's message nor behind results of earlier calls there. */
  readonly isLate: boolean
}

/** By the index of each tool message. A result without an id, or with an unknown one, answers the first call that has none yet. */
function placesOfResults(messages: readonly ChatMessage[]): ReadonlyMap<number, ResultPlace> {
  const places = new Map<number, ResultPlace>()
  const known = new Map<string, ToolCall>()
  let calls: readonly ToolCall[] = []
  /** Calls before this one have a result, or a later one has: no further result stands with them. */
  let next = 0
  messages.forEach(({ role, toolCalls = [], toolCallId }, index) => {
    if (role !== 'tool') {
      calls = toolCalls
      next = 0
      for (const call of toolCalls) known.set(call.id, call)
      return
    }
    const earlier = toolCallId === undefined ? undefined : known.get(toolCallId)
    let at = next
    while (at < calls.length && calls[at]!.id !== toolCallId) at++
    if (at === calls.length && earlier === undefined) at = next
    const isLate = at === calls.length
    places.set(index, { call: calls[at] ?? earlier, missing: isLate ? [] : calls.slice(next, at), isLate })
    // A late one is a user turn, and results behind that are late, too.
    next = isLate ? at : at + 1
  })
  return places
}

/** A user turn that says which call it answers. */
function lateResult(content: Tracked, call: ToolCall | undefined, origin: Origin): Tracked {
  const heading =
    call === undefined
      ? [literal('Result of an unknown call:\n')]
      : [literal('Late result of '), Tracked.of(namedJson(call), origin), literal(':\n')]
  return Tracked.join([...heading, tagged('tool_response', content)])
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
  /**
   * Where the template shows system messages in their places: `anywhere`; `leading`: those before all other messages; `first`: one of those;
   * `merged`: none, so the first user message opens with them. What it shows as one message is joined; later ones are user messages that say so.
   */
  readonly system: 'anywhere' | 'leading' | 'first' | 'merged'
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
  /** `parameter`: the template reads arguments as an object, so those that are none are shown as one text parameter. */
  readonly broken: 'text' | 'parameter'
  /** `user`: behind leading system messages the template wants a user message, so an empty one stands there where the first is another's. */
  readonly opening: 'any' | 'user'
  /** The template wants user messages and answers in turn: neighbours of one role are one, and an empty turn stands where the other's is missing. */
  readonly alternates: boolean
}

export const nativeForm: TemplateForm = {
  system: 'anywhere',
  absent: 'none',
  tools: 'native',
  calls: 'object',
  parallel: 'together',
  results: 'native',
  ids: 'free',
  reasoning: 'both',
  empty: 'kept',
  broken: 'text',
  opening: 'any',
  alternates: false,
}

/** What an answer without words is shown as. */
const noAnswer = ({ empty }: TemplateForm): Tracked => (empty === 'space' ? literal(' ') : Tracked.empty)

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
