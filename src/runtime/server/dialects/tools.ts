/** Owns the client's tools and calls as every dialect of JSON schemas has them: names, choices, arguments as text. */
import type { ToolCall, ToolDefinition } from '../../chat/message.js'
import type { Ask } from '../ask.js'
import { FieldError } from '../problem.js'
import { isRecord } from '../../core/json.js'
import { readJson, writeJson } from '../../core/written-json.js'
import { tooDeep } from '../json-body.js'

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

/** A call whose arguments are text; what is no JSON object, or none that a body could have, is kept as it is. */
export function callOf(id: string, name: string, text: string): ToolCall {
  try {
    const value: unknown = text.trim() === '' ? {} : tooDeep(text) ? null : readJson(text)
    if (isRecord(value)) return { id, name, arguments: value }
  } catch {
    // Kept as it is below.
  }
  return { id, name, arguments: {}, malformed: text }
}

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
