/** Reads tools, tool choice and tool calls, for the dialects that describe tools by JSON schemas. */
import type { ToolCall, ToolDefinition } from '../../chat/message.js'
import type { Ask } from '../ask.js'
import { FieldError, unsupported } from '../problem.js'
import { fieldOf, isRecord, listAt, weightOf } from '../../core/json.js'
import { inTurns, type Steps } from '../../core/turns.js'
import { readJson, writeJson } from '../../core/written-json.js'
import { tooDeep } from '../json-body.js'
import { isLong, JsonFault, jsonInSteps, TooManyMembers, writtenInSteps } from '../json-slices.js'

/** The most characters of a tool name. */
export const LONGEST_NAME = 128
/** Characters that every template and grammar can express. */
const NAME = /^[A-Za-z0-9_.:-]+$/

const MOST_TOOLS = 512
/** The most deferred tools. */
const MOST_DEFERRED = 10_000
/** For one tool's definition: the most characters and values together, and the most values. */
const MOST_OF_TOOL = 2 ** 18
const MOST_VALUES_OF_TOOL = 8192
/** The same for all shown tools together. Every prompt begins with these definitions, and they cannot be folded. */
const MOST_OF_SHOWN = 2 ** 20
const MOST_VALUES_OF_SHOWN = 2 ** 15

/**
 * Checks names, sizes and number of tools, as far as JSON schemas cannot.
 * @param isDeferred whether the tool at an index is deferred
 * @throws FieldError server/bad-request
 */
export function checkTools<Tool extends GivenTool>(
  tools: readonly Tool[],
  place: (index: number) => string,
  isDeferred: (index: number) => boolean = () => false,
): readonly Tool[] {
  checkSizes(tools, place, isDeferred)
  checkNumbers(tools.length, tools.filter((_, index) => isDeferred(index)).length)
  const seen = new Set<string>()
  tools.forEach(({ name }, index) => {
    if (name.length > LONGEST_NAME || !NAME.test(name))
      throw new FieldError(
        place(index),
        `${place(index)} must be 1 to ${LONGEST_NAME} letters, digits, dots, colons, hyphens or underscores.`,
      )
    if (seen.has(name)) throw new FieldError(place(index), `${place(index)}: another tool is called ${name} already.`)
    seen.add(name)
  })
  return tools
}

type GivenTool = Pick<ToolDefinition, 'name'> & Partial<Pick<ToolDefinition, 'description' | 'parameters'>>

function checkSizes(tools: readonly GivenTool[], place: (index: number) => string, isDeferred: (index: number) => boolean): void {
  let [size, values] = [0, 0]
  for (const [index, { description, parameters }] of tools.entries()) {
    const own = weightOf([description, parameters], MOST_OF_TOOL + 1)
    const count = countOf(parameters, MOST_VALUES_OF_TOOL)
    if (own > MOST_OF_TOOL || count > MOST_VALUES_OF_TOOL)
      throw new FieldError(
        place(index),
        `${place(index)}: the definition has more than ${MOST_OF_TOOL} characters or ${MOST_VALUES_OF_TOOL} values; shorten it.`,
      )
    if (isDeferred(index)) continue
    size += own
    values += count
    if (size > MOST_OF_SHOWN || values > MOST_VALUES_OF_SHOWN)
      throw new FieldError(
        'tools',
        `tools has more than ${MOST_OF_SHOWN} characters or ${MOST_VALUES_OF_SHOWN} values that are shown. Shorten or defer some of them.`,
      )
  }
}

function checkNumbers(all: number, deferred: number): void {
  const shown = all - deferred
  if (shown > MOST_TOOLS)
    throw new FieldError('tools', `tools has ${shown} entries that are shown; the most is ${MOST_TOOLS}. Defer some of them.`)
  if (deferred > MOST_DEFERRED)
    throw new FieldError('tools', `tools has ${deferred} entries that are deferred; the most is ${MOST_DEFERRED}.`)
}

/** Checks that a tool choice names existing tools. @throws FieldError server/bad-request */
export function checkChoice(choice: Ask['toolChoice'], tools: readonly Pick<ToolDefinition, 'name'>[]): Ask['toolChoice'] {
  const named = typeof choice !== 'object' ? [] : 'names' in choice ? choice.names : [choice.name]
  const unknown = named.find((name) => !tools.some((tool) => tool.name === name))
  if (unknown !== undefined)
    throw new FieldError(
      'tool_choice',
      `tool_choice names ${JSON.stringify(unknown.slice(0, 80))}, which is not among the tools.`,
    )
  if (choice === 'required' && tools.length === 0)
    throw new FieldError('tool_choice', 'tool_choice asks for a call, but there are no tools.')
  return choice
}

/**
 * Reads OpenAI's `allowed_tools`, `{mode, tools}`. The model still sees all tools.
 * @param functionOf returns the part of an entry that has the function's name
 * @throws FieldError
 */
export function allowedTools(
  given: unknown,
  place: string,
  functionOf: (tool: unknown) => unknown,
): Exclude<Ask['toolChoice'], string> {
  const [mode, tools] = [fieldOf(given, 'mode'), fieldOf(given, 'tools')]
  if (mode !== 'auto' && mode !== 'required') throw new FieldError(`${place}.mode`, `${place}.mode must be auto or required.`)
  if (!Array.isArray(tools) || tools.length === 0)
    throw new FieldError(`${place}.tools`, `${place}.tools must be a list of at least one tool.`)
  const names = tools.map((tool: unknown, index) => {
    const at = `${place}.tools[${index}]`
    if (fieldOf(tool, 'type') !== 'function') throw unsupported(`${at}.type`, `${at}.type must be "function".`)
    const name = fieldOf(functionOf(tool), 'name')
    if (typeof name !== 'string') throw new FieldError(`${at}.name`, `${at} must name a function.`)
    return name
  })
  return { mode, names }
}

/** The fields of a `ToolCall` that hold its arguments. */
type Arguments = Pick<ToolCall, 'arguments' | 'malformed'>

/** The most values in a call's arguments, so that checking a call takes only a few milliseconds. Arguments with more are kept as text. */
const MOST_VALUES = 8192

/** Arguments with up to this many characters in total are parsed without a yield. */
const AT_ONCE = 64 * 1024

/**
 * Makes a call. Its arguments stay text (`malformed`) if they are no JSON object, nest deeper than a body may, or have more than
 * `MOST_VALUES` values. Arguments that `inputOf` wrapped in `INVALID_JSON` become that text again.
 * @param of the object in the request's body that contains the arguments
 * @param given the arguments, as text or object
 */
export function callOf(id: string, name: string, of: object, given: string | Readonly<Record<string, unknown>>): ToolCall {
  const known = ahead.get(of)
  const made = known?.given === given ? known.made : typeof given === 'string' ? read(given) : asObject(given)
  return { id, name, ...made }
}

function read(text: string): Arguments {
  try {
    const value: unknown = text.trim() === '' ? {} : tooDeep(text) ? null : readJson(text)
    if (isRecord(value) && countOf(value) <= MOST_VALUES) return { arguments: value }
  } catch {
    // Text that is no JSON is kept as text below.
  }
  return asText(text)
}

const asText = (text: string): Arguments => ({ arguments: {}, malformed: text })

function asObject(value: Readonly<Record<string, unknown>>): Arguments {
  const invalid = Object.hasOwn(value, INVALID_JSON) ? value[INVALID_JSON] : undefined
  if (typeof invalid === 'string') return asText(invalid)
  return countOf(value) <= MOST_VALUES ? { arguments: value } : asText(writeJson(value))
}

/** Key for arguments that are no JSON, in dialects whose arguments are objects. The name is from Anthropic's documentation. */
const INVALID_JSON = 'INVALID_JSON'

/** Returns a call's arguments as an object. Text that is no JSON object is wrapped as `{ INVALID_JSON: text }`. */
export const inputOf = ({ arguments: args, malformed }: ToolCall): ToolCall['arguments'] =>
  malformed === undefined ? args : { [INVALID_JSON]: malformed }

/** Counts a value and all values inside it; stops soon after `most`. */
function countOf(value: unknown, most = MOST_VALUES): number {
  if (typeof value !== 'object' || value === null) return 1
  let count = 1
  for (const each of Array.isArray(value) ? (value as readonly unknown[]) : Object.values(value)) {
    count += countOf(each, most)
    if (count > most) break
  }
  return count
}

/**
 * Long arguments, parsed before the body is translated, so that the event loop runs in between. Key: the object in the body that contains
 * them. `given`: as sent; `made`: parsed.
 */
const ahead = new WeakMap<object, { readonly given: unknown; readonly made: Arguments }>()

/** A Fastify hook that parses long arguments of a body in advance, with yields to the event loop. `callOf` then finds them. */
export function argumentsAhead({ body }: { readonly body: unknown }, _reply: unknown, done: (error?: Error) => void): void {
  if (!isLong([listAt(body, 'messages'), listAt(body, 'input')])) {
    done()
    return
  }
  inTurns(readingAhead(body)).then(() => {
    done()
  }, done)
}

/** Parses the long arguments in a body of any dialect, and also short ones once they exceed `AT_ONCE` together. */
function* readingAhead(body: unknown): Steps<void> {
  let characters = 0
  for (const item of [...listAt(body, 'messages'), ...listAt(body, 'input')]) {
    yield
    const calls = listAt(item, 'tool_calls').map((call) => fieldOf(call, 'function'))
    for (const of of [item, ...listAt(item, 'content'), ...calls])
      for (const given of isRecord(of) ? [of['arguments'], of['input']] : [])
        if (typeof given === 'string' ? (characters += given.length) > AT_ONCE : isLong(given))
          yield* readAhead(of as object, given)
  }
}

function* readAhead(of: object, given: unknown): Steps<void> {
  if (typeof given === 'string') ahead.set(of, { given, made: yield* readInSteps(given) })
  else if (isRecord(given) && countOf(given) > MOST_VALUES)
    ahead.set(of, { given, made: asText((yield* writtenInSteps(given)).toString()) })
  yield
}

/** Parses arguments as `read` does, with yields to the event loop. */
function* readInSteps(text: string): Steps<Arguments> {
  let values = 0
  const part = (json: string, depth: number): unknown => {
    if (tooDeep(json, depth)) throw new Unread()
    const value = readJson(json)
    if ((values += countOf(value)) > MOST_VALUES) throw new Unread()
    return value
  }
  try {
    const value = yield* jsonInSteps(text, part, () => undefined)
    return isRecord(value) ? { arguments: value } : asText(text)
  } catch (error) {
    if (error instanceof Unread || error instanceof JsonFault || error instanceof TooManyMembers) return asText(text)
    throw error
  }
}

/** Arguments exceed a limit, and are kept as text. */
class Unread extends Error {}

/** Returns a call's arguments as text. Text that is no JSON stays as the model wrote it. */
export const argumentsOf = ({ arguments: args, malformed, text }: ToolCall): string => malformed ?? text ?? writeJson(args)

/** Returns the part of a call's arguments that was not streamed yet; empty if the final text does not begin with the streamed one. */
export function restOf(call: ToolCall, told: string): string {
  const text = argumentsOf(call)
  return text.startsWith(told) ? text.slice(told.length) : ''
}

/**
 * Returns the part of `inputOf`, as JSON text, that was not streamed yet. Streamed arguments may turn out to be no JSON. Then the rest
 * completes them to a valid object that contains the call's whole text.
 */
export function inputRest(call: ToolCall, told: string): string {
  const { malformed } = call
  if (malformed === undefined) return restOf(call, told)
  if (told === '') return writeJson(inputOf(call))
  const open: ('}' | ']')[] = []
  let [last, isQuoted, isKey] = ['', false, false]
  for (let at = 0; at < told.length; at++) {
    const char = told.charAt(at)
    if (isQuoted) {
      if (char === '\\') at++
      else if (char === '"') isQuoted = false
      continue
    }
    if (char === '"') [isQuoted, isKey] = [true, open.at(-1) === '}' && last !== ':']
    else if (char === '{') open.push('}')
    else if (char === '[') open.push(']')
    else if (char === '}' || char === ']') open.pop()
    last = char
  }
  if (open.length === 0) return ''
  const text = JSON.stringify(malformed)
  const member = open.at(-1) === '}' ? `"${INVALID_JSON}":${text}` : text
  const added = last === '"' && isKey ? `:${text}` : last === ':' ? text : '{[,'.includes(last) ? member : `,${member}`
  return (isQuoted ? '"' : '') + added + open.reverse().join('')
}

/** Description of a tool's field `strict`, for the OpenAPI document. */
export const STRICT = 'true: calls keep to all that the schema says, and a schema that cannot be kept to is refused'

/** Parameters of a tool without arguments. */
export const NO_PARAMETERS = { type: 'object', properties: {} } as const
