/** GBNF that forces tool calls: names restricted to the tools, arguments to their parameters. */
import type { ToolDefinition } from './message.js'
import type { ReasoningTags } from './syntax/syntax.js'

/** A literal in GBNF, with spaces around. */
export function words(text: string): string {
  const escaped = text.replace(/[\\"]/g, '\\$&').replace(/\n/g, '\\n').replace(/\r/g, '\\r').replace(/\t/g, '\\t')
  return ` "${escaped}" `
}

/** `{"name": "tool", "arguments": {...}}` with Python's spacing. `key`: what the family calls the arguments. */
export function jsonCall(tool: string, args: string, key = 'arguments'): string {
  return words(`{"name": ${JSON.stringify(tool)}, "${key}": `) + args + words('}')
}

const JSON_RULES = `
string ::= "\\"" ( [^"\\\\\\x00-\\x1f] | "\\\\" ( ["\\\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\\""
integer ::= "-"? ( "0" | [1-9] [0-9]{0,15} )
number ::= integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,3} )?
boolean ::= "true" | "false"
object ::= "{" ( string ": " value ( ", " string ": " value )* )? "}"
array ::= "[" ( value ( ", " value )* )? "]"
value ::= object | array | string | number | boolean | "null"
`

/** GBNF for one JSON object of any shape. */
export const anyObject = `root ::= object${JSON_RULES}`

/**
 * Root, one call rule a tool, and the JSON rules. `write` writes one call around the rule of its arguments; calls are separated
 * by `between` (null: only one) and all of them stand inside `around`. An open reasoning in the prompt is finished first; where the prompt opened none, one may come first.
 */
export function forcedCalls(
  tools: readonly ToolDefinition[],
  prompt: string,
  reasoning: ReasoningTags | null,
  write: (tool: string, args: string) => string,
  between: string | null,
  around: { readonly before: string; readonly after: string } = { before: '', after: '' },
): string | null {
  if (tools.length === 0) return null
  const lines: string[] = []
  tools.forEach(({ name, parameters }, index) => {
    lines.push(`call-${index} ::= ${write(name, `args-${index}`)}`, ...argumentRules(index, parameters))
  })
  const first = reasoning === null ? '' : opening(prompt, reasoning)
  lines.unshift(
    `root ::= ${first}calls`,
    `calls ::= ${around.before}call${between === null ? '' : ` (${between}call )*`}${around.after}`,
    `call ::= ${tools.map((_, index) => `call-${index}`).join(' | ')}`,
    ...(reasoning === null ? [] : [`thought ::= ${thought(reasoning.close)}`, 'gap ::= [ \\n]{0,4}']),
  )
  return lines.join('\n') + JSON_RULES
}

function opening(prompt: string, { open, close }: ReasoningTags): string {
  const rest = `thought${words(close)}gap `
  return prompt.trimEnd().endsWith(open) ? rest : `( ${words(open)}${rest})? `
}

/** Any text that does not contain the closing tag's first two characters together. */
function thought(close: string): string {
  const [first = '<', second = '/'] = close
  const inside = (char: string) => (char === ']' || char === '\\' || char === '^' || char === '[' ? `\\${char}` : char)
  return `( [^${inside(first)}] |${words(first)}[^${inside(second)}] )*`
}

/**
 * The rule `args-<index>`: every key at most once. The required ones come first, all of them, in the schema's order; then those of the others
 * that there are, in the same order.
 */
function argumentRules(index: number, schema: Readonly<Record<string, unknown>>): string[] {
  const { properties, required: listed } = schema
  const known = typeof properties === 'object' && properties !== null ? Object.entries(properties) : []
  const names = new Set(Array.isArray(listed) ? listed.filter((name) => typeof name === 'string') : [])
  const unknown = [...names].filter((name) => !known.some(([key]) => key === name)).map((name) => [name, true] as const)
  const entries: readonly (readonly [string, unknown])[] = [...known, ...unknown]
  if (entries.length === 0) return [`args-${index} ::= "{}"${properties === undefined ? ' | object' : ''}`]
  const pair = ([key, property]: readonly [string, unknown]) => `${words(`${JSON.stringify(key)}: `)}${valueRule(property)}`
  const first = entries.filter(([key]) => names.has(key)).map(pair)
  const others = entries.filter(([key]) => !names.has(key)).map(pair)
  const behind = (pairs: readonly string[]) => pairs.map((each) => ` ( ", "${each} )?`).join('')
  if (first.length > 0) return [`args-${index} ::= "{"${first.join(' ", "')}${behind(others)} "}"`]
  // Without a key that is always there, the first of those there are has no comma before it.
  const rest = (at: number) => `rest-${index}-${at}`
  return [
    `args-${index} ::= "{" ( ${others.map((each, at) => each + (at + 1 < others.length ? ` ${rest(at + 1)}` : '')).join(' | ')} )? "}"`,
    ...others
      .slice(1)
      .map((each, at) => `${rest(at + 1)} ::= ( ", "${each} )?${at + 2 < others.length ? ` ${rest(at + 2)}` : ''}`),
  ]
}

/** The rule for one parameter; schemas we do not know allow any value. */
function valueRule(schema: unknown): string {
  if (typeof schema !== 'object' || schema === null) return 'value'
  const { type, enum: options, items } = schema as { readonly type?: unknown; readonly enum?: unknown; readonly items?: unknown }
  if (Array.isArray(options) && options.length > 0)
    return `( ${options.map((option) => words(JSON.stringify(option))).join('|')} )`
  if (Array.isArray(type)) return `( ${type.map((each) => valueRule({ ...schema, type: each as unknown })).join(' | ')} )`
  switch (type) {
    case 'string':
    case 'integer':
    case 'number':
    case 'boolean':
    case 'object':
      return type
    case 'null':
      return '"null"'
    case 'array':
      return items === undefined ? 'array' : `( "[" ( ${valueRule(items)} ( ", " ${valueRule(items)} )* )? "]" )`
    default:
      return 'value'
  }
}
