/** Owns the client's tools and calls as every dialect of JSON schemas has them: names, choices, arguments as text. */
import type { ToolCall, ToolDefinition } from '../../chat/message.js'
import type { Ask } from '../ask.js'
import { FieldError } from '../problem.js'
import { fieldOf, isRecord, listAt } from '../../core/json.js'
import { inTurns, type Steps } from '../../core/turns.js'
import { readJson, writeJson } from '../../core/written-json.js'
import { tooDeep } from '../json-body.js'
import { isLong, JsonFault, jsonInSteps, TooManyMembers, writtenInSteps } from '../json-slices.js'

/** What every template and grammar can write. */
const NAME = /^[A-Za-z0-9_.:-]{1,128}$/

const MOST_TOOLS = 512
/** Those that are not shown until they are found. */
const MOST_DEFERRED = 10_000

/** Checks tools for what schemas cannot say. `deferred`: how many of them are. @throws FieldError server/bad-request */
export function checkTools<Tool extends Pick<ToolDefinition, 'name'>>(
  tools: readonly Tool[],
  place: (index: number) => string,
  deferred = 0,
): readonly Tool[] {
  const shown = tools.length - deferred
  if (shown > MOST_TOOLS)
    throw new FieldError('tools', `tools has ${shown} entries that are shown; the most is ${MOST_TOOLS}. Defer some of them.`)
  if (deferred > MOST_DEFERRED)
    throw new FieldError('tools', `tools has ${deferred} entries that are deferred; the most is ${MOST_DEFERRED}.`)
  const seen = new Set<string>()
  tools.forEach(({ name }, index) => {
    if (!NAME.test(name))
      throw new FieldError(
        place(index),
        `${place(index)} must be 1 to 128 letters, digits, dots, colons, hyphens or underscores.`,
      )
    if (seen.has(name)) throw new FieldError(place(index), `${place(index)}: another tool is called ${name} already.`)
    seen.add(name)
  })
  return tools
}

/** Checks a choice against the tools there are. @throws FieldError server/bad-request */
export function checkChoice(choice: Ask['toolChoice'], tools: readonly Pick<ToolDefinition, 'name'>[]): Ask['toolChoice'] {
  if (typeof choice === 'object' && !tools.some(({ name }) => name === choice.name))
    throw new FieldError(
      'tool_choice',
      `tool_choice names ${JSON.stringify(choice.name.slice(0, 80))}, which is not among the tools.`,
    )
  if (choice === 'required' && tools.length === 0)
    throw new FieldError('tool_choice', 'tool_choice asks for a call, but there are no tools.')
  return choice
}

/** Arguments of a call as a message has them. */
type Arguments = Pick<ToolCall, 'arguments' | 'malformed'>

/** Values that arguments may have in them, so that each of a message's calls is gone through in a few milliseconds. */
const MOST_VALUES = 8192

/** Characters of arguments that are read at once. */
const AT_ONCE = 64 * 1024

/**
 * A call with the arguments that `of` has in a body. They are a text or an object. A text that is no JSON object, that nests deeper than a body may, or has
 * more than `MOST_VALUES` values, is kept as it is; of such an object its text is kept.
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
    // Kept as it is below.
  }
  return asText(text)
}

const asText = (text: string): Arguments => ({ arguments: {}, malformed: text })

const asObject = (value: Readonly<Record<string, unknown>>): Arguments =>
  countOf(value) <= MOST_VALUES ? { arguments: value } : asText(writeJson(value))

/** The values in a value, itself among them; it looks at not many more than `MOST_VALUES`. */
function countOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 1
  let count = 1
  for (const each of Array.isArray(value) ? (value as readonly unknown[]) : Object.values(value)) {
    count += countOf(each)
    if (count > MOST_VALUES) break
  }
  return count
}

/** Long arguments that were read before they are asked for, by what has them in a body. */
const ahead = new WeakMap<object, { readonly given: unknown; readonly made: Arguments }>()

/** A hook that reads the long arguments of a body's calls in turns of the event loop. `callOf` finds them. */
export function argumentsAhead({ body }: { readonly body: unknown }, _reply: unknown, done: (error?: Error) => void): void {
  const long = isLong(body) ? [...longIn(body)] : []
  if (long.length === 0) {
    done()
    return
  }
  inTurns(readingAhead(long)).then(() => {
    done()
  }, done)
}

/** What has arguments in a body of any dialect, and these, where they are long. */
function* longIn(body: unknown): Generator<readonly [of: object, given: unknown]> {
  for (const item of [...listAt(body, 'messages'), ...listAt(body, 'input')]) {
    const calls = listAt(item, 'tool_calls').map((call) => fieldOf(call, 'function'))
    for (const of of [item, ...listAt(item, 'content'), ...calls])
      for (const given of isRecord(of) ? [of['arguments'], of['input']] : [])
        if (typeof given === 'string' ? given.length > AT_ONCE : isLong(given)) yield [of as object, given]
  }
}

function* readingAhead(long: readonly (readonly [of: object, given: unknown])[]): Steps<void> {
  for (const [of, given] of long) {
    if (typeof given === 'string') ahead.set(of, { given, made: yield* readInSteps(given) })
    else if (isRecord(given) && countOf(given) > MOST_VALUES)
      ahead.set(of, { given, made: asText((yield* writtenInSteps(given)).toString()) })
    yield
  }
}

/** As `read`, in steps. */
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

/** There is more in arguments than is read. */
class Unread extends Error {}

/** The arguments as text, as the model wrote them where they are no JSON. */
export const argumentsOf = ({ arguments: args, malformed, text }: ToolCall): string => malformed ?? text ?? writeJson(args)

/** What `call` has that was not told of its arguments yet; nothing where they turned out to be another text than what was told. */
export function restOf(call: ToolCall, told: string): string {
  const text = argumentsOf(call)
  return text.startsWith(told) ? text.slice(told.length) : ''
}

/** What `strict` of a tool means. */
export const STRICT = 'true: calls keep to all that the schema says, and a schema that cannot be kept to is refused'

/** Parameters of a tool that has none. */
export const NO_PARAMETERS = { type: 'object', properties: {} } as const
