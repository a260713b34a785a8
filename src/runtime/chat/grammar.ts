/**
 * GBNF of tool calls, forced or free to begin anywhere: names restricted to the tools, arguments to their parameters; and of answers that keep to a
 * schema.
 */
import { KvfoldError } from '../core/errors.js'
import type { ToolDefinition } from './message.js'
import { type AnySchema, type LeaveOut, MOST_WORK, type Schema, Work } from './schema/merge.js'
import { FREE_JSON, GrammarRules, literal, PYTHON_JSON, PYTHON_LITERALS, textWithout } from './schema/rules.js'
import { type SchemaOptions, SchemaWriter } from './schema/schema-grammar.js'

/** A literal in GBNF, with spaces around. */
export const words = (text: string): string => ` ${literal(text)} `

/** `{"name": "tool", "arguments": {...}}` with Python's spacing. `key`: what the family calls the arguments. */
export function jsonCall(tool: string, args: string, key = 'arguments'): string {
  return words(`{"name": ${JSON.stringify(tool)}, "${key}": `) + args + words('}')
}

/** The tags a model puts around its reasoning. */
export interface ReasoningTags {
  readonly open: string
  readonly close: string
  /** What must stand behind `close` before the answer goes on. Default: nothing. */
  readonly then?: string
}

/** Of models whose template shows none. */
export const USUAL_TAGS: ReasoningTags = { open: '<think>', close: '</think>' }

/** How a family writes calls. */
export interface CallForm {
  /** One call around the rule of its arguments. */
  readonly write: (tool: string, args: string) => string
  /** Between two calls, as GBNF; null: there is only one. */
  readonly between: string | null
  /** Around all of them, as GBNF. */
  readonly around?: { readonly before: string; readonly after: string }
  /** Whether readers know calls without what is around them, too. */
  readonly isAroundOptional?: boolean
  /** The tags of reasoning where there may be some before a call. */
  readonly reasoning: ReasoningTags | null
  /** Texts with which readers begin to read a call wherever they stand outside of reasoning. */
  readonly triggers: readonly string[]
  /** How arguments are written. Default: JSON. */
  readonly style?: 'python' | TaggedArguments
}

/** A grammar that holds from where one of the triggers stands. */
export interface LazyGrammar {
  /** GBNF, root rule `root`, of everything from the trigger on. */
  readonly grammar: string
  /** None: it holds from the beginning. */
  readonly triggers: readonly string[]
  /** Within these tags nothing triggers. */
  readonly reasoning: readonly ReasoningTags[]
  /** What the prompt ends with of all these. */
  readonly opened: string
}

/**
 * Forces at least one call, or exactly one when `single`; null without tools. An open reasoning in the prompt is finished first; where the prompt opened
 * none, one may come first.
 */
export function forcedCalls(form: CallForm, tools: readonly ToolDefinition[], prompt: string, single: boolean): string | null {
  if (tools.length === 0) return null
  const { around = { before: '', after: '' }, reasoning } = form
  const rules = new GrammarRules(form.style === 'python' ? PYTHON_LITERALS : PYTHON_JSON)
  const calls = addCalls(rules, form, tools, single)
  rules.add('root', `${reasoning === null ? '' : opening(rules, prompt, reasoning)}${around.before}${calls}${around.after}`)
  return rules.text()
}

/** What may follow from where a call begins: calls of these tools, of none when there are none, and the end. */
export function lazyCalls(form: CallForm, tools: readonly ToolDefinition[], prompt: string, single: boolean): LazyGrammar {
  const { around = { before: '', after: '' }, triggers, isAroundOptional = false } = form
  const rules = new GrammarRules(form.style === 'python' ? PYTHON_LITERALS : FREE_JSON)
  const calls = addCalls(rules, form, tools, single)
  const bare = isAroundOptional ? ` | ${calls} (${around.after})?` : ''
  rules.add('root', `( ${around.before}${calls}${around.after}${bare} ) [ \\n]{0,4}`)
  const reasoning = [form.reasoning ?? USUAL_TAGS]
  const end = prompt.trimEnd()
  const opened = [...triggers, ...reasoning.map(({ open }) => open)].find((tag) => end.endsWith(tag)) ?? ''
  return { grammar: rules.text(), triggers, reasoning, opened }
}

/** Adds a rule a tool, and gives the expression of one call or several. */
export function addCalls(
  rules: GrammarRules,
  { write, between, style }: CallForm,
  tools: readonly ToolDefinition[],
  single: boolean,
): string {
  shared(tools, (tool, index, work) => {
    const args = `args-${index}`
    rules.add(args, argumentsOf(rules, tool, { prefix: args, work }, style))
    rules.add(`call-${index}`, write(tool.name, args))
  })
  // There is no such character in any answer.
  rules.add('call', tools.length === 0 ? '[\\x00]' : tools.map((_, index) => `call-${index}`).join(' | '))
  return between === null || single ? 'call' : `call (${between}call )*`
}

/** Steps that all tools of a request may take together, and how many each has at least. */
const MOST_TOOL_WORK = 250_000
const LEAST_TOOL_WORK = 1000
/** Bounds above this are left out where they are too much together. */
const SMALL = 100

/** Calls `write` for every tool, small ones first: each has a fair share of the work that is left, so that no other one takes it. */
function shared(tools: readonly ToolDefinition[], write: (tool: ToolDefinition, index: number, work: Work) => void): void {
  let left = Math.max(MOST_TOOL_WORK, LEAST_TOOL_WORK * tools.length)
  const bySize = tools
    .map((tool, index) => ({ tool, index, size: JSON.stringify(tool.parameters).length }))
    .sort((a, b) => a.size - b.size)
  bySize.forEach(({ tool, index }, at) => {
    const work = new Work(Math.min(MOST_WORK, left / (bySize.length - at)))
    write(tool, index, work)
    left -= work.spent
  })
}

/** GBNF of a tool's arguments. `leaveOut` hears what of its schema they are not held to. @throws KvfoldError engine/bad-grammar where the tool is strict */
function argumentsOf(
  rules: GrammarRules,
  { name, parameters, strict = false }: ToolDefinition,
  { prefix, work }: Required<Pick<SchemaOptions, 'prefix' | 'work'>>,
  style?: CallForm['style'],
  leaveOut: LeaveOut = () => undefined,
): string {
  const written = (schema: Schema, options: Omit<SchemaOptions, 'prefix'>) =>
    typeof style === 'object'
      ? taggedArguments(rules, schema, style, { prefix, ...options })
      : style === 'python'
        ? namedArguments(rules, schema, { prefix, ...options })
        : new SchemaWriter(rules, schema, { prefix, ...options }).whole()
  const given = parametersOf(parameters)
  if (strict)
    try {
      return written(given, { work })
    } catch (error) {
      if (!(error instanceof KvfoldError)) throw error
      throw new KvfoldError(error.code, `The tool ${JSON.stringify(name)}: ${error.message}`, { cause: error })
    }
  const attempt = (options: Omit<SchemaOptions, 'prefix' | 'leaveOut'>, otherwise: () => string) => {
    const left: string[] = []
    return rules.attempt(() => {
      const body = written(given, { ...options, leaveOut: (place) => left.push(place) })
      for (const place of left) leaveOut(place)
      return body
    }, otherwise)
  }
  return attempt({ work: work.part(2 / 3) }, () =>
    // With smaller repetitions; a schema that is none says nothing of what a call may be, unless somebody relies on it.
    attempt({ work: work.part(1 / 3), most: SMALL }, () => {
      leaveOut('#')
      return written({ type: 'object' }, {})
    }),
  )
}

/**
 * What calls of these tools are not held to, as names of tools with places in their schemas.
 * @throws KvfoldError engine/bad-grammar naming the tool and the place, where a strict tool's schema is none or cannot be kept to
 */
export function leftOutOfTools(tools: readonly ToolDefinition[]): readonly string[] {
  const left = tools.map(() => new Set<string>())
  shared(tools, (tool, index, work) => {
    const leaveOut = (place: string) => left[index]!.add(`${tool.name}: ${place}`)
    argumentsOf(new GrammarRules(FREE_JSON), tool, { prefix: `args-${index}`, work }, undefined, leaveOut)
  })
  return left.flatMap((places) => [...places])
}

/** Parameters that say no more than that allow any object. */
const parametersOf = (parameters: Schema): Schema =>
  parameters['type'] === undefined ? { type: 'object', ...parameters } : parameters

/** `key=value, key=value`. */
function namedArguments(rules: GrammarRules, schema: Schema, options: SchemaOptions): string {
  const name = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'
  const body = new SchemaWriter(rules, schema, options).arguments('", "', (key, value) =>
    key === null || !/^\w+$/.test(key) ? null : `${literal(`${key}=`)} ${value}`,
  )
  return body === 'any' ? `( ${name} "=" value ( ", " ${name} "=" value )* )?` : body === '' ? '""' : body
}

function opening(rules: GrammarRules, prompt: string, { open, close }: ReasoningTags): string {
  // The prompt has thought already, or says that there is nothing to think.
  if (prompt.trimEnd().endsWith(close)) return ''
  const rest = `${textWithout(rules, 'thought', close)} ${literal(close)} [ \\n]{0,4} `
  return prompt.trimEnd().endsWith(open) ? rest : `( ${literal(open)} ${rest})? `
}

// Answers that keep to a schema.

/**
 * GBNF, root rule `root`, of a JSON schema's values. Properties stand in the schema's order, and there are no others where the schema names some and
 * does not say that there may be. docs/serving.md says which keywords it takes. `leaveOut`: others are left out, and it hears of their places.
 * @throws KvfoldError engine/bad-grammar naming the keyword that is wrong or outside of that, and its place in the schema
 */
export function jsonSchemaGrammar(schema: unknown, leaveOut?: LeaveOut): string {
  const rules = new GrammarRules(FREE_JSON)
  const options = { prefix: 's', ...(leaveOut === undefined ? {} : { leaveOut }) }
  rules.add('root', new SchemaWriter(rules, schema as AnySchema, options).whole())
  return rules.text()
}

/** GBNF for one JSON object of any shape. */
export const anyObject = jsonSchemaGrammar({ type: 'object' })

// Arguments that are written as tags, where texts stand as they are: Qwen3-Coder, GLM, Seed.

interface TaggedArguments {
  /** Around the value of this key. */
  readonly before: (key: string) => string
  readonly after: string
  /** Where readers see that a value ends. */
  readonly end: string
}

const NAME = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'

/** GBNF of arguments as tags. */
function taggedArguments(
  rules: GrammarRules,
  schema: Schema,
  { before, after, end }: TaggedArguments,
  options: SchemaOptions,
): string {
  const text = textWithout(rules, 'text', end)
  const writer = new SchemaWriter(rules, schema, options)
  const body = writer.arguments('', (key, value, inner) =>
    key === null ? null : `${literal(before(key))} ${writer.rawValue(inner as AnySchema, text, '#') ?? value} ${literal(after)}`,
  )
  const [open = '', rest = ''] = before('\0').split('\0')
  return body === 'any' ? `( ${literal(open)} ${NAME} ${literal(rest)} ${text} ${literal(after)} )*` : body === '' ? '""' : body
}
