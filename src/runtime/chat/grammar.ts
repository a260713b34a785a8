/**
 * Writes GBNF grammars of tool calls, forced or optional, which constrain tool names and arguments. Also writes grammars of answers that
 * must follow a schema.
 */
import { KvfoldError } from '../core/errors.js'
import type { ToolDefinition } from './message.js'
import { type AnySchema, type LeaveOut, MOST_WORK, type Schema, Work } from './schema/merge.js'
import { patternRule, wholePattern } from './schema/pattern.js'
import { FREE_JSON, GrammarRules, literal, PYTHON_JSON, PYTHON_LITERALS, textWithout } from './schema/rules.js'
import { type SchemaOptions, SchemaWriter } from './schema/schema-grammar.js'

/** A GBNF literal with a space on each side. */
export const words = (text: string): string => ` ${literal(text)} `

/**
 * Writes a grammar of the texts that a regular expression matches as a whole.
 * @throws KvfoldError engine/bad-grammar; its message continues a sentence that begins with the expression's name
 */
export function grammarOfRegex(source: string): string {
  const rule = patternRule(wholePattern(source), 'raw')
  if (rule === null) throw new KvfoldError('engine/bad-grammar', 'matches no text')
  return `root ::= ${rule}`
}

/** Writes GBNF of `{"name": "tool", "arguments": {...}}` with Python's spacing. */
export function jsonCall(tool: string, args: string): string {
  return words(`{"name": ${JSON.stringify(tool)}, "arguments": `) + args + words('}')
}

/** The tags that a model puts around its reasoning. */
export interface ReasoningTags {
  readonly open: string
  readonly close: string
  /** Text that must follow `close` before the answer continues. Default: none. */
  readonly then?: string
  /** Whether reasoning can only begin the answer. Behind other text the tags are text. Default: it may come anywhere. */
  readonly isFirst?: boolean
}

/** The tags of reasoning that are assumed when the template shows none. */
export const USUAL_TAGS: ReasoningTags = { open: '<think>', close: '</think>', isFirst: true }

/** The way in which a syntax family writes calls. */
export interface CallForm {
  /** Writes GBNF of one call. `args` is the name of the rule of its arguments. */
  readonly write: (tool: string, args: string) => string
  /** GBNF between two calls; null when only one call is allowed. */
  readonly between: string | null
  /** GBNF of the text before all calls, and of the text after them. */
  readonly around?: { readonly before: string; readonly after: string }
  /** Whether parsers also accept calls without the texts of `around`. */
  readonly isAroundOptional?: boolean
  /** The tags of reasoning that may come before a call; null when no reasoning may come. */
  readonly reasoning: ReasoningTags | null
  /** Texts that begin a call at any place outside reasoning. */
  readonly triggers: readonly string[]
  /** How arguments are written. Default: JSON. */
  readonly style?: 'python' | TaggedArguments
}

/** A grammar that applies from the first trigger in the answer on. */
export interface LazyGrammar {
  /** GBNF, root rule `root`, of everything from the trigger on. */
  readonly grammar: string
  /** Texts from which on the grammar applies. When `triggers` and `spaced` are both empty, it applies from the beginning. */
  readonly triggers: readonly string[]
  /** More triggers. A space in them matches any whitespace or none. */
  readonly spaced: readonly string[]
  /** Triggers within these tags are ignored. */
  readonly reasoning: readonly ReasoningTags[]
  /** The trigger or reasoning tag with which the prompt ends; empty when it ends with none. */
  readonly opened: string
}

/**
 * Makes a grammar that forces at least one call, or exactly one when `single`; null without tools. When the prompt has opened reasoning,
 * the answer finishes the reasoning first. When the prompt has not, reasoning may come before the calls.
 */
export function forcedCalls(form: CallForm, tools: readonly ToolDefinition[], prompt: string, single: boolean): string | null {
  if (tools.length === 0) return null
  const { around = { before: '', after: '' }, reasoning } = form
  const rules = new GrammarRules(form.style === 'python' ? PYTHON_LITERALS : PYTHON_JSON)
  const calls = addCalls(rules, form, tools, single)
  rules.add('root', `${reasoning === null ? '' : opening(rules, prompt, reasoning)}${around.before}${calls}${around.after}`)
  return rules.text()
}

/**
 * Makes a grammar of the answer from the beginning of a call on: calls of these tools, then the end. Without tools it allows no call. With
 * `bare` it also applies to bare calls (syntax/bare-calls.ts), from the field `"name"` of their JSON on. Text may follow a bare call, and
 * more bare calls in it must be calls of these tools, too.
 */
export function lazyCalls(
  form: CallForm,
  tools: readonly ToolDefinition[],
  prompt: string,
  single: boolean,
  bare = false,
): LazyGrammar {
  const { around = { before: '', after: '' }, triggers, isAroundOptional = false } = form
  const rules = new GrammarRules(form.style === 'python' ? PYTHON_LITERALS : FREE_JSON)
  const calls = addCalls(rules, form, tools, single)
  const loose = isAroundOptional ? ` | ${calls} (${around.after})?` : ''
  const own = `( ${around.before}${calls}${around.after}${loose} ) [ \\n]{0,4}`
  // Arguments in another style than JSON have rules of their own, which bare calls (always JSON) cannot share.
  const isBare = bare && form.style === undefined && tools.length > 0
  rules.add('root', isBare ? `${own} | ${bareCalls(rules, tools)}` : own)
  const reasoning = [form.reasoning ?? USUAL_TAGS]
  const end = prompt.trimEnd()
  const opened = [...triggers, ...reasoning.map(({ open }) => open)].find((tag) => end.endsWith(tag)) ?? ''
  return { grammar: rules.text(), triggers, spaced: isBare ? tools.flatMap(spacedTriggers) : [], reasoning, opened }
}

/** Makes a lazy grammar for models whose own call syntax is unknown. It applies to bare calls only (syntax/bare-calls.ts). */
export function lazyBareCalls(tools: readonly ToolDefinition[], reasoning: ReasoningTags): LazyGrammar {
  const rules = new GrammarRules(FREE_JSON)
  addArguments(rules, tools)
  rules.add('root', bareCalls(rules, tools))
  return { grammar: rules.text(), triggers: [], spaced: tools.flatMap(spacedTriggers), reasoning: [reasoning], opened: '' }
}

/**
 * Matches GBNF's literals, classes, token references and comments, and names of rules in its group. A part that is not closed goes on to
 * the end, so that each character is looked at once.
 */
const GBNF_PARTS = /"(?:\\[^]|[^"\\])*(?:"|\\?$)|\[(?:\\[^]|[^\]\\])*(?:\]|\\?$)|<[^>\s]*>?|#[^\r\n]*|([a-zA-Z][a-zA-Z0-9-]*)/g

const renamed = (grammar: string, prefix: string): string =>
  grammar.replace(GBNF_PARTS, (part: string, name?: string) => (name === undefined ? part : prefix + name))

/** Makes a grammar of the texts of `grammar` behind reasoning that the prompt has opened. */
export function afterThought(grammar: string, { open, close }: ReasoningTags): string {
  const rules = new GrammarRules(FREE_JSON)
  rules.add('root', `${opening(rules, open, { open, close })}a-root`)
  return `${rules.text()}\n${renamed(grammar, 'a-')}`
}

/** Makes a grammar of the texts of either grammar. */
export function eitherOf(one: string, other: string): string {
  return `root ::= a-root | b-root\n${renamed(one, 'a-')}\n${renamed(other, 'b-')}`
}

/** The keys that the arguments of a bare call may have if the grammar is to apply to it. */
const ARGUMENT_KEYS = ['arguments', 'parameters']

const spacedTriggers = ({ name }: ToolDefinition): readonly string[] =>
  ARGUMENT_KEYS.map((key) => `"name" : ${JSON.stringify(name)} , "${key}" :`)

/** Returns the expression of bare calls, from the `"name"` of the first one on. It uses the rules that `addArguments` adds. */
function bareCalls(rules: GrammarRules, tools: readonly ToolDefinition[]): string {
  const other = textWithout(rules, 'other', '"name"')
  const key = `( ${ARGUMENT_KEYS.map((each) => literal(`"${each}"`)).join(' | ')} )`
  rules.add('space', '[ \\t\\n\\r]{0,64}')
  const calls = tools.map(
    ({ name }, index) => `${literal(JSON.stringify(name))} space "," space ${key} space ":" space args-${index}`,
  )
  rules.add('bare', `${literal('"name"')} space ":" space ( ${calls.join(' | ')} ) space "}"`)
  return `bare ( ${other} bare )* ${other}`
}

/** Adds one rule for each tool's call, and returns the expression for one call or several. */
export function addCalls(
  rules: GrammarRules,
  { write, between, style }: CallForm,
  tools: readonly ToolDefinition[],
  single: boolean,
): string {
  addArguments(rules, tools, style)
  tools.forEach(({ name }, index) => {
    rules.add(`call-${index}`, write(name, `args-${index}`))
  })
  // No answer contains this character, so the rule matches nothing.
  rules.add('call', tools.length === 0 ? '[\\x00]' : tools.map((_, index) => `call-${index}`).join(' | '))
  return between === null || single ? 'call' : `call (${between}call )*`
}

/** Adds the rule `args-N` of each tool's arguments. */
function addArguments(rules: GrammarRules, tools: readonly ToolDefinition[], style?: CallForm['style']): void {
  shared(tools, (tool, index, work) => {
    const args = `args-${index}`
    rules.add(args, argumentsOf(rules, tool, { prefix: args, work }, style))
  })
}

/** The most steps of work for all tools of a request together, and (next constant) the least for each tool. */
const MOST_TOOL_WORK = 250_000
const LEAST_TOOL_WORK = 1000
/** When a whole schema is too much work, the second attempt leaves out bounds of repetitions above this number. */
const SMALL = 100

/**
 * Calls `write` for every tool, small ones first. Each tool gets an equal share of the remaining work, so that no tool uses up the work of
 * the others.
 */
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

/**
 * Writes GBNF of a tool's arguments. `leaveOut` is called with each place of the schema that the grammar does not enforce.
 * @throws KvfoldError engine/bad-grammar for a strict tool whose schema is invalid or cannot be enforced
 */
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
    // The second attempt leaves out large bounds. When it fails too, the grammar allows any object: an invalid schema constrains nothing
    // unless the tool is strict.
    attempt({ work: work.part(1 / 3), most: SMALL }, () => {
      leaveOut('#')
      return written({ type: 'object' }, {})
    }),
  )
}

/**
 * Lists the parts of the tools' schemas that the grammar of these tools does not enforce. Each entry has the tool's name and the place.
 * @throws KvfoldError engine/bad-grammar with the tool and the place, when a strict tool's schema is invalid or cannot be enforced
 */
export function leftOutOfTools(tools: readonly ToolDefinition[]): readonly string[] {
  const left = tools.map(() => new Set<string>())
  shared(tools, (tool, index, work) => {
    const leaveOut = (place: string) => left[index]!.add(`${tool.name}: ${place}`)
    argumentsOf(new GrammarRules(FREE_JSON), tool, { prefix: `args-${index}`, work }, undefined, leaveOut)
  })
  return left.flatMap((places) => [...places])
}

/** Returns the schema of a tool's arguments. Parameters without a `type` allow any object. */
const parametersOf = (parameters: Schema): Schema =>
  parameters['type'] === undefined ? { type: 'object', ...parameters } : parameters

/** Writes arguments as `key=value, key=value`. */
function namedArguments(rules: GrammarRules, schema: Schema, options: SchemaOptions): string {
  const name = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'
  const body = new SchemaWriter(rules, schema, options).arguments('", "', (key, value) =>
    key === null || !/^\w+$/.test(key) ? null : `${literal(`${key}=`)} ${value}`,
  )
  return body === 'any' ? `( ${name} "=" value ( ", " ${name} "=" value )* )?` : body === '' ? '""' : body
}

function opening(rules: GrammarRules, prompt: string, { open, close }: ReasoningTags): string {
  // The prompt has already closed its reasoning, or has said that the answer has none.
  if (prompt.trimEnd().endsWith(close)) return ''
  const rest = `${textWithout(rules, 'thought', close)} ${literal(close)} [ \\n]{0,4} `
  return prompt.trimEnd().endsWith(open) ? rest : `( ${literal(open)} ${rest})? `
}

// Grammars of answers that must follow a JSON schema.

/**
 * Makes a GBNF grammar, root rule `root`, of a JSON schema's values. Properties come in the schema's order. An object has only the
 * properties that the schema names, unless the schema names none or allows others. docs/serving.md lists the supported keywords. With
 * `leaveOut`, other keywords are ignored, and it is called with their places.
 * @throws KvfoldError engine/bad-grammar with the keyword that is wrong or unsupported, and its place in the schema
 */
export function jsonSchemaGrammar(schema: unknown, leaveOut?: LeaveOut): string {
  const rules = new GrammarRules(FREE_JSON)
  const options = { prefix: 's', ...(leaveOut === undefined ? {} : { leaveOut }) }
  rules.add('root', new SchemaWriter(rules, schema as AnySchema, options).whole())
  return rules.text()
}

/** GBNF for one JSON object of any shape. */
export const anyObject = jsonSchemaGrammar({ type: 'object' })

// Arguments written as tags, with raw text as values: Qwen3-Coder, GLM, Seed.

interface TaggedArguments {
  /** Returns the text before the value of the argument `key`; `after` is the text behind the value. */
  readonly before: (key: string) => string
  readonly after: string
  /** The text at which parsers end an argument's value. */
  readonly end: string
}

const NAME = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'

/** Writes GBNF of arguments whose values are raw text between tags. */
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
