/** Converts messages and tool definitions into the variables of a chat template. */
import { atOnce, type Steps } from '../core/turns.js'
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

/** Converts a JSON-like value for the template. Every string in it is marked with `origin` (tracked.ts). */
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

/** Returns the value of the template variable `tools`; null when the variable must be undefined. */
export const toolsValue = (...given: Parameters<typeof toolsValueSteps>): Value | null => atOnce(toolsValueSteps(...given))

/** Like `toolsValue`, but a generator that yields to the event loop before each tool. */
export function* toolsValueSteps(tools: readonly ToolDefinition[], form: TemplateForm): Steps<Value | null> {
  if (tools.length === 0 || form.tools !== 'native') return form.absent === 'none' ? new NullValue() : null
  const origin: Origin = { field: 'tool', message: 0 }
  const values: Value[] = []
  for (const { name, description, parameters } of tools) {
    yield
    values.push(
      mapping([
        ['type', written('function')],
        ['function', toValue({ name, description, parameters }, origin)],
      ]),
    )
  }
  return new ArrayValue(values)
}

/** Converts messages for the template. A converted message carries the index of its original, because one original may become several. */
export const templateMessages = (...given: Parameters<typeof templateMessageSteps>): TemplateMessage[] =>
  atOnce(templateMessageSteps(...given))

/** How many messages are converted between two yields to the event loop. */
const STEP = 128

/** Like `templateMessages`, but a generator that yields to the event loop after every STEP messages. */
export function* templateMessageSteps(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  form: TemplateForm,
  writer: CallWriter = hermesWriter,
): Steps<TemplateMessage[]> {
  const places = placesOfResults(messages)
  const converted: TemplateTurn[] = []
  for (const [index, message] of messages.entries()) {
    if (index % STEP === STEP - 1) yield
    converted.push(...turnsOf(message, index, places.get(index), form, writer))
  }
  let turns: readonly TemplateTurn[] = converted
  yield
  if (form.system !== 'anywhere') turns = withLateSystems(turns)
  if (form.system === 'first' || form.system === 'merged') turns = withOneSystem(turns)
  if (form.tools === 'described' && tools.length > 0) turns = withPreamble(turns, describeTools(tools))
  if (form.system === 'merged') turns = withoutSystem(turns)
  if (form.opening === 'user') turns = opened(turns)
  if (form.alternates) turns = alternating(turns, noAnswer(form))
  const values: TemplateMessage[] = []
  for (const { index, role, content, rest } of turns) {
    if (values.length % STEP === STEP - 1) yield
    values.push({ index, value: mapping([['role', written(role)], ['content', string(content)], ...rest]) })
  }
  return values
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

/** Returns a message's reasoning under each name that templates read it by. */
function reasoningEntries(reasoning: string, index: number): (readonly [string, Value])[] {
  const value = string(Tracked.of(reasoning, { field: 'reasoning', message: index }))
  return ['reasoning_content', 'reasoning', 'thinking'].map((name) => [name, value] as const)
}

/** The parameter under which broken arguments are shown, if the template reads arguments as an object. */
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

// Matching tool results to calls. The match depends only on messages before the result, so it stays the same when the conversation grows.

/** Placeholder result for a call that has none, when a result of a later call follows. */
const NO_RESULT = 'No result.'

interface ResultPlace {
  /** The call that the result answers; undefined when no call fits. */
  readonly call: ToolCall | undefined
  /**
   * Calls before `call` in the same message that have no result yet. Templates without ids match results to calls by order, so each of
   * these calls needs a placeholder result.
   */
  readonly missing: readonly ToolCall[]
  /** Whether the result comes too late to stand after its call: other messages came between, or the result of a later call did. */
  readonly isLate: boolean
}

/**
 * Returns for each tool message, by its index, the call that it answers. A result with no id or an unknown id goes to the first call that
 * still has no result.
 */
function placesOfResults(messages: readonly ChatMessage[]): ReadonlyMap<number, ResultPlace> {
  const places = new Map<number, ResultPlace>()
  const known = new Map<string, ToolCall>()
  let calls: readonly ToolCall[] = []
  /** Index of the first call that may still get a result. Each call before it has one, or the result of a later call came first. */
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
    // A late result is shown as a user message. The results after it then follow a user message, so they are late too.
    next = isLate ? at : at + 1
  })
  return places
}

/** Makes a user message's content for a late result. It names the call that the result answers. */
function lateResult(content: Tracked, call: ToolCall | undefined, origin: Origin): Tracked {
  const heading =
    call === undefined
      ? [literal('Result of an unknown call:\n')]
      : [literal('Late result of '), Tracked.of(namedJson(call), origin), literal(':\n')]
  return Tracked.join([...heading, tagged('tool_response', content)])
}

/** Converts a call id to a form that the template accepts. The same id always gives the same result. */
function callId(id: string, { ids }: TemplateForm): string {
  if (ids === 'free' || /^[a-zA-Z0-9]{9}$/.test(id)) return id
  let hash = 0x811c9dc5
  for (const char of id) hash = Math.imul(hash ^ (char.codePointAt(0) ?? 0), 0x01000193) >>> 0
  return hash.toString(36).padStart(9, '0')
}

/** How a chat template takes messages, tools and calls. Found once per template by probing it (capabilities.ts). */
export interface TemplateForm {
  /**
   * Which system messages the template can show as system messages. `anywhere`: all. `leading`: those before all other messages. `first`: a
   * single one at the start, so leading ones are joined. `merged`: none, so their text goes before that of the first user message.
   * A system message in a later position that the template cannot show becomes a user message, its text between tags.
   */
  readonly system: 'anywhere' | 'leading' | 'first' | 'merged'
  /** The template variable `tools` when a request has no tools: None, or undefined. */
  readonly absent: 'none' | 'undefined'
  /** `native`: the template shows tool definitions. `described`: it ignores them, so kvfold describes them in the system message. */
  readonly tools: 'native' | 'described'
  /**
   * `object`, `string`: the template takes arguments as an object, or as JSON text. `text`: it ignores calls, so kvfold writes them into
   * the content.
   */
  readonly calls: 'object' | 'string' | 'text'
  /** `together`: the template takes several calls in one message. `split`: it takes one, so kvfold splits a message with several calls. */
  readonly parallel: 'together' | 'split'
  /** `native`: the template has a role for tool results. `user`: it has none, so they become user messages. */
  readonly results: 'native' | 'user'
  /** `free`: any text may be a call id. `nine`: ids must be nine letters and digits. */
  readonly ids: 'free' | 'nine'
  /** `either`: the template refuses a message that has calls, content and reasoning. Then the reasoning is left out. */
  readonly reasoning: 'both' | 'either'
  /** `space`: the template refuses an answer with neither content nor calls. Then its content becomes one space. */
  readonly empty: 'kept' | 'space'
  /**
   * How arguments that are not valid JSON are shown. `parameter`: as one text parameter, because the template reads arguments as an object.
   */
  readonly broken: 'text' | 'parameter'
  /** `user`: the first message after leading system messages must be a user message. If it is not, an empty user message is added. */
  readonly opening: 'any' | 'user'
  /**
   * Whether the template wants user messages and answers to alternate. If so, neighbours of the same role are joined; where that is
   * impossible, an empty message goes between.
   */
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

/** Returns the content that stands for an empty answer. */
const noAnswer = ({ empty }: TemplateForm): Tracked => (empty === 'space' ? literal(' ') : Tracked.empty)

// Calls and tools as text, for templates that do not show them.

/** Writes a call as `{"name": ..., "arguments": ...}`. */
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

/** Writes JSON with Python's spacing, as in the models' training data. Numbers and keys are written as they were read. */
export function pythonJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return value === undefined ? 'null' : JSON.stringify(value)
  const entries = writtenEntries(value).map(({ key, value: item, text }) => ({ key, item, json: text ?? pythonJson(item) }))
  if (Array.isArray(value)) return `[${entries.map(({ json }) => json).join(', ')}]`
  return `{${entries
    .filter(({ item }) => item !== undefined)
    .map(({ key, json }) => `${JSON.stringify(key)}: ${json}`)
    .join(', ')}}`
}

/** Writes tool definitions and calling instructions, for templates that ignore tools. */
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
