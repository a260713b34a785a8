/**
 * GBNF grammars for tool calls, forced or optional, which constrain tool names and arguments. Also grammars for answers that must follow a
 * JSON schema.
 */
import { KvfoldError } from '../core/errors.js'
import type { ToolDefinition } from './message.js'
import { type AnySchema, type LeaveOut, MOST_WORK, type Schema, Work } from './schema/merge.js'
import { patternRule, wholePattern } from './schema/pattern.js'
import { FREE_JSON, GrammarRules, literal, PYTHON_JSON, PYTHON_LITERALS, textWithout } from './schema/rules.js'
import { type SchemaOptions, SchemaWriter } from './schema/schema-grammar.js'

/** Makes a GBNF literal with a space on each side. */
export const words = (text: string): string => ` ${literal(text)} `

/**
 * Makes a grammar for texts that a regular expression matches from beginning to end.
 * @throws KvfoldError engine/bad-grammar; its message continues a sentence that begins with the expression's name
 */
export function grammarOfRegex(source: string): string {
  const rule = patternRule(wholePattern(source), 'raw')
  if (rule === null) throw new KvfoldError('engine/bad-grammar', 'matches no text')
  return `root ::= ${rule}`
}

/** Writes GBNF for `{"name": "tool", "arguments": {...}}` with Python's spacing. */
export function jsonCall(tool: string, args: string): string {
  return words(`{"name": ${JSON.stringify(tool)}, "arguments": `) + args + words('}')
}

/** The tags that a model puts around its reasoning. */
export interface ReasoningTags {
  readonly open: string
  readonly close: string
  /** Text that must follow `close` before the answer continues. Default: none. */
  readonly then?: string
  /** Whether reasoning can only come at the very beginning of the answer. If so, the tags count as plain text elsewhere. Default false. */
  readonly isFirst?: boolean
}

/** The reasoning tags to assume when the template shows none. */
export const USUAL_TAGS: ReasoningTags = { open: '<think>', close: '</think>', isFirst: true }

/** How a tool-call syntax writes calls. */
export interface CallForm {
  /** Writes GBNF for one call. `args` is the name of the rule for its arguments. */
  readonly write: (tool: string, args: string) => string
  /** GBNF between two calls; null when the syntax allows only one. */
  readonly between: string | null
  /** GBNF for the text before the first call, and for the text after the last. */
  readonly around?: { readonly before: string; readonly after: string }
  /** Whether parsers also accept calls without the text of `around`. */
  readonly isAroundOptional?: boolean
  /** The tags of reasoning that may come before the calls; null when there must be none. */
  readonly reasoning: ReasoningTags | null
  /** Texts that begin a call wherever they occur outside reasoning. */
  readonly triggers: readonly string[]
  /** How arguments are written. Default: JSON. */
  readonly style?: 'python' | TaggedArguments
}

/** A grammar that starts to apply at the first trigger in the answer. */
export interface LazyGrammar {
  /** GBNF for everything from the trigger on. Its root rule is `root`. */
  readonly grammar: string
  /** Texts at which the grammar starts to apply. If `triggers` and `spaced` are both empty, it applies from the beginning of the answer. */
  readonly triggers: readonly string[]
  /** Further triggers, in which a space matches any white space, or none. */
  readonly spaced: readonly string[]
  /** Triggers between these tags do not count. */
  readonly reasoning: readonly ReasoningTags[]
  /** The trigger or reasoning tag that the prompt ends with, so that the answer begins inside it. Empty when there is none. */
  readonly opened: string
}

/**
 * Makes a grammar that forces at least one call, or exactly one with `single`. Returns null without tools. If the prompt leaves reasoning
 * open, the answer must close it first; if not, the answer may reason before the calls.
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
 * Makes a grammar that applies from the beginning of a call: calls of these tools, then the end of the answer. Without tools it allows no
 * call.
 * With `bare`, it also applies to bare calls (syntax/bare-calls.ts), from the field `"name"` of their JSON on. After a bare call, text may
 * follow, and further bare calls of these tools.
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
  // Arguments in another style than JSON have their own rules. Bare calls are always JSON and cannot share them.
  const isBare = bare && form.style === undefined && tools.length > 0
  rules.add('root', isBare ? `${own} | ${bareCalls(rules, tools)}` : own)
  const reasoning = [form.reasoning ?? USUAL_TAGS]
  const end = prompt.trimEnd()
  const opened = [...triggers, ...reasoning.map(({ open }) => open)].find((tag) => end.endsWith(tag)) ?? ''
  return { grammar: rules.text(), triggers, spaced: isBare ? tools.flatMap(spacedTriggers) : [], reasoning, opened }
}

/** Makes a lazy grammar for a model whose call syntax is unknown. It applies only to bare calls (syntax/bare-calls.ts). */
export function lazyBareCalls(tools: readonly ToolDefinition[], reasoning: ReasoningTags): LazyGrammar {
  const rules = new GrammarRules(FREE_JSON)
  addArguments(rules, tools)
  rules.add('root', bareCalls(rules, tools))
  return { grammar: rules.text(), triggers: [], spaced: tools.flatMap(spacedTriggers), reasoning: [reasoning], opened: '' }
}

/**
 * Matches the tokens of GBNF: literals, classes, token references, comments; rule names are in the group. An unclosed token extends to the
 * end of the text, so that the time stays linear.
 */
const GBNF_PARTS = /"(?:\\[^]|[^"\\])*(?:"|\\?$)|\[(?:\\[^]|[^\]\\])*(?:\]|\\?$)|<[^>\s]*>?|#[^\r\n]*|([a-zA-Z][a-zA-Z0-9-]*)/g

const renamed = (grammar: string, prefix: string): string =>
  grammar.replace(GBNF_PARTS, (part: string, name?: string) => (name === undefined ? part : prefix + name))

/** Makes a grammar for an answer that first closes the reasoning that the prompt opened, then follows `grammar`. */
export function afterThought(grammar: string, { open, close }: ReasoningTags): string {
  const rules = new GrammarRules(FREE_JSON)
  rules.add('root', `${opening(rules, open, { open, close })}a-root`)
  return `${rules.text()}\n${renamed(grammar, 'a-')}`
}

/** Makes a grammar for texts that either grammar allows. */
export function eitherOf(one: string, other: string): string {
  return `root ::= a-root | b-root\n${renamed(one, 'a-')}\n${renamed(other, 'b-')}`
}

/** Keys of a bare call that may hold its arguments. The grammar applies only to bare calls with one of them. */
const ARGUMENT_KEYS = ['arguments', 'parameters']

const spacedTriggers = ({ name }: ToolDefinition): readonly string[] =>
  ARGUMENT_KEYS.map((key) => `"name" : ${JSON.stringify(name)} , "${key}" :`)

/** Returns the GBNF expression for bare calls, from the first one's `"name"` on. Uses the rules that `addArguments` adds. */
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

/** Adds a rule for each tool's call. Returns the expression for one call, or for several if allowed. */
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
  // No answer contains a NUL character, so without tools the rule matches nothing.
  rules.add('call', tools.length === 0 ? '[\\x00]' : tools.map((_, index) => `call-${index}`).join(' | '))
  return between === null || single ? 'call' : `call (${between}call )*`
}

/** Adds a rule `args-N` for the arguments of the tool with index N. */
function addArguments(rules: GrammarRules, tools: readonly ToolDefinition[], style?: CallForm['style']): void {
  shared(tools, (tool, index, work) => {
    const args = `args-${index}`
    rules.add(args, argumentsOf(rules, tool, { prefix: args, work }, style))
  })
}

/** The most steps of work for the grammars of all tools of a request. `LEAST_TOOL_WORK`: what each tool gets at least. */
const MOST_TOOL_WORK = 250_000
const LEAST_TOOL_WORK = 1000
/** If a tool's schema takes too much work, the second attempt drops repetition bounds above this number. */
const SMALL = 100

/**
 * Calls `write` for each tool, tools with small schemas first. Each gets an equal share of the work that is left, so that one large schema
 * cannot use up the work of others.
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
 * Writes GBNF for a tool's arguments. `leaveOut` is called with each position in the schema that the grammar does not enforce.
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
    // If the attempt without large bounds fails too, the grammar allows any JSON object. So an invalid schema constrains nothing, unless
    // the tool is strict.
    attempt({ work: work.part(1 / 3), most: SMALL }, () => {
      leaveOut('#')
      return written({ type: 'object' }, {})
    }),
  )
}

/**
 * Lists what the grammar of these tools does not enforce. Each entry has the tool's name and the position in its schema.
 * @throws KvfoldError engine/bad-grammar with the tool and the position, when a strict tool's schema is invalid or cannot be enforced
 */
export function leftOutOfTools(tools: readonly ToolDefinition[]): readonly string[] {
  const left = tools.map(() => new Set<string>())
  shared(tools, (tool, index, work) => {
    const leaveOut = (place: string) => left[index]!.add(`${tool.name}: ${place}`)
    argumentsOf(new GrammarRules(FREE_JSON), tool, { prefix: `args-${index}`, work }, undefined, leaveOut)
  })
  return left.flatMap((places) => [...places])
}

/** Returns the schema of a tool's arguments. Without a `type` it is an object. */
const parametersOf = (parameters: Schema): Schema =>
  parameters['type'] === undefined ? { type: 'object', ...parameters } : parameters

/** Writes GBNF for arguments as `key=value, key=value`. */
function namedArguments(rules: GrammarRules, schema: Schema, options: SchemaOptions): string {
  const name = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'
  const body = new SchemaWriter(rules, schema, options).arguments('", "', (key, value) =>
    key === null || !/^\w+$/.test(key) ? null : `${literal(`${key}=`)} ${value}`,
  )
  return body === 'any' ? `( ${name} "=" value ( ", " ${name} "=" value )* )?` : body === '' ? '""' : body
}

function opening(rules: GrammarRules, prompt: string, { open, close }: ReasoningTags): string {
  // The prompt has closed the reasoning already, or says that the answer must have none.
  if (prompt.trimEnd().endsWith(close)) return ''
  const rest = `${textWithout(rules, 'thought', close)} ${literal(close)} [ \\n]{0,4} `
  return prompt.trimEnd().endsWith(open) ? rest : `( ${literal(open)} ${rest})? `
}

// Grammars for answers that must follow a JSON schema.

/**
 * Makes a GBNF grammar (root rule `root`) for the values of a JSON schema. Properties come in the schema's order. An object may have only
 * the properties that the schema names, unless it names none or allows others. docs/serving.md lists the supported keywords.
 * With `leaveOut`, unsupported keywords are ignored, and it is called with the position of each.
 * @throws KvfoldError engine/bad-grammar with the keyword that is wrong or unsupported, and its position in the schema
 */
export function jsonSchemaGrammar(schema: unknown, leaveOut?: LeaveOut): string {
  const rules = new GrammarRules(FREE_JSON)
  const options = { prefix: 's', ...(leaveOut === undefined ? {} : { leaveOut }) }
  rules.add('root', new SchemaWriter(rules, schema as AnySchema, options).whole())
  return rules.text()
}

/** GBNF for one JSON object of any shape. */
export const anyObject = jsonSchemaGrammar({ type: 'object' })

// Arguments as tags around raw text, as in Qwen3-Coder, GLM and Seed.

interface TaggedArguments {
  /** Returns the text before the value of argument `key`; `after` is the text behind the value. */
  readonly before: (key: string) => string
  readonly after: string
  /** The text at which a parser ends the value of an argument. */
  readonly end: string
}

const NAME = '[a-zA-Z_] [a-zA-Z0-9_]{0,60}'

/** Writes GBNF for arguments whose values are raw text between tags. */
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
