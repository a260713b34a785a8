/**
 * Llama 3: the whole answer is `{"name": ..., "parameters": ...}`, alone or after `<|python_tag|>`. `"type": "function"` may come first. A
 * `;` separates several calls.
 */
import type { ToolDefinition } from '../message.js'
import { addCalls, forcedCalls, words, type CallForm } from '../grammar.js'
import { otherKeys } from '../schema/properties.js'
import { FREE_JSON, GrammarRules, type JsonPunctuation, literal, textWithout } from '../schema/rules.js'
import { begunNamed, JsonScanner, namedCallOf, parseJson } from './call.js'
import { StreamParser } from '../parser.js'
import type { SyntaxFamily } from './syntax.js'

const TAG = '<|python_tag|>'

/** Matches the beginning of an object whose first field is `name`, possibly after `"type": "function"`. */
const NAMED = /^\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:/
/** Captures the tool's name in an object that NAMED matches. */
const NAME = new RegExp(`${NAMED.source}\\s*"([^"\\\\]*)"`)

class Llama3Parser extends StreamParser {
  /** `start`: only calls so far. `text`: the answer has prose, and from then on only the tag begins a call. */
  #mode: 'start' | 'text' = 'start'
  #scanner: JsonScanner | null = null
  /** Skipped separators and tags. They become text if no call follows. */
  #passed = ''
  #calls = 0

  /** @param tools the declared tools; an object that names another tool is text. Undefined: any name may be a tool */
  constructor(private readonly tools: readonly ToolDefinition[] | undefined) {
    super()
  }

  protected override drain(final: boolean): void {
    while (this.buffer !== '' && (this.#mode === 'start' ? this.#start(final) : this.#prose(final)));
  }

  #start(final: boolean): boolean {
    if (this.#scanner === null) {
      const [separator = ''] = /^[\s;]*/.exec(this.buffer) ?? []
      const rest = this.buffer.slice(separator.length)
      if (rest === '' && !final) return false
      if (!final && rest.length < TAG.length && TAG.startsWith(rest)) return false
      if (rest.startsWith(TAG)) {
        this.#passed += this.consume(separator.length + TAG.length)
        return true
      }
      if (!rest.startsWith('{')) return this.#giveUp()
      this.#passed += this.consume(separator.length)
      this.#scanner = new JsonScanner(0)
    }
    const [, name] = NAME.exec(this.buffer) ?? []
    if (name !== undefined && !this.#isTool(name)) return this.#isText()
    const begun = begunNamed(this.buffer)
    if (begun !== null) this.goOn(begun)
    const json = this.#scanner.scan(this.buffer, final)
    if (json.state === 'incomplete' && !final) return false
    this.#scanner = null
    const call = json.state === 'complete' ? namedCallOf(parseJson(this.buffer.slice(0, json.end))) : null
    if (json.state === 'complete' && call !== null && !this.#isTool(call.name)) return this.#isText()
    if (json.state !== 'complete' || call === null) return this.#giveUp()
    this.consume(json.end)
    this.#passed = ''
    this.#calls++
    this.begin(call.name)
    this.call(call)
    return true
  }

  /** Handles an object or text that cannot be read as a call: it becomes a malformed call, or text. */
  #giveUp(): boolean {
    const isNamed = (this.tools === undefined ? NAMED : NAME).test(this.buffer)
    const broken = this.#passed.includes(TAG) || isNamed
    if (broken && this.buffer.startsWith('{')) return this.#malformed()
    return this.#isText()
  }

  #isTool(name: string): boolean {
    return this.tools?.some((tool) => tool.name === name) ?? true
  }

  /** Treats the skipped text and the rest as text. */
  #isText(): boolean {
    this.#scanner = null
    this.#mode = 'text'
    if (this.#calls > 0) this.consume(/^[\s;]*/.exec(this.buffer)?.[0].length ?? 0)
    this.say(this.#calls > 0 ? this.#passed.replace(/^[\s;]+/, '') : this.#passed)
    this.#passed = ''
    return true
  }

  /** Treats the rest of the answer as one malformed call. */
  #malformed(): boolean {
    const text = this.consume(this.buffer.length)
    this.#mode = 'text'
    this.#passed = ''
    this.#broken += text
    return false
  }

  #broken = ''

  #prose(final: boolean): boolean {
    if (this.#broken !== '') {
      this.#broken += this.consume(this.buffer.length)
      return false
    }
    const at = this.buffer.indexOf(TAG)
    this.say(this.consume(at !== -1 ? at : final ? this.buffer.length : this.clear([TAG])))
    if (at === -1) return false
    this.#passed = this.consume(TAG.length)
    this.#mode = 'start'
    return true
  }

  override finish() {
    this.drain(true)
    if (this.#broken !== '') this.call(brokenCall(this.#broken))
    else if (this.#passed.includes(TAG)) this.say(this.#passed)
    return super.finish()
  }
}

function brokenCall(text: string) {
  const [, name = ''] = /"name"\s*:\s*"([^"]*)"/.exec(text) ?? []
  return { name, arguments: text }
}

const form: CallForm = {
  write: (tool, args) =>
    `"{" ( ${literal('"type": "function", ')} )?${words(`"name": ${JSON.stringify(tool)}, "parameters": `)}${args} "}"`,
  between: words('; '),
  reasoning: null,
  triggers: [],
}

/** A call form with all the white space that `style` allows. Without it, a model that writes JSON without spaces could not call a tool. */
const formIn = ({ comma, colon, openObject, closeObject }: JsonPunctuation): CallForm => ({
  ...form,
  write: (tool, args) =>
    `${openObject} ( ${literal('"type"')} ${colon} ${literal('"function"')} ${comma} )? ` +
    `${literal('"name"')} ${colon} ${literal(JSON.stringify(tool))} ${comma} ${literal('"parameters"')} ${colon} ${args} ${closeObject}`,
})

/** Writes GBNF for objects that name none of these tools. The parser reads those as text. */
function otherObject(rules: GrammarRules, tools: readonly ToolDefinition[]): string {
  const { comma, colon, openObject, closeObject } = rules.style
  const other = (names: readonly string[], rule: string) =>
    otherKeys((body) => {
      rules.add(rule, body)
      return rule
    }, names)
  const value = `( object | array | number | boolean | null | ${other(
    tools.map(({ name }) => name),
    'other-name',
  )} )`
  rules.add('other-pair', `${other(['name'], 'other-key')} ${colon} value | "\\"name\\"" ${colon} ${value}`)
  return `( "{}" | ${openObject} other-pair ( ${comma} other-pair )* ${closeObject} )`
}

export const llama3: SyntaxFamily = () => ({
  name: 'llama3',
  reasoning: null,
  parser: (_, tools) => new Llama3Parser(tools),
  grammar: (tools, prompt, single = false) => forcedCalls(form, tools, prompt, single),
  lazy: (tools, _, single = false) => {
    const rules = new GrammarRules(FREE_JSON)
    const calls = addCalls(rules, formIn(rules.style), tools, single)
    const text = textWithout(rules, 'text', TAG)
    const other = otherObject(rules, tools)
    const called = `( ${words(TAG)} ${calls} )?`
    rules.add('space', '[ \\t\\n\\r\\x0b\\x0c;\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff]')
    rules.add(
      'first',
      `( [^ \\t\\n\\r\\x0b\\x0c;\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff{<] text-0 | "<" text-1 )?`,
    )
    rules.add('root', `space* ( ${words(TAG)}? ${calls} [ \\n]{0,4} | first ${called} | ${other} ${text} ${called} )`)
    return { grammar: rules.text(), triggers: [], spaced: [], reasoning: [], opened: '' }
  },
})
