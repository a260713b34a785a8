/** Functionary: `<function=name>{...}</function>` (v3.1), and `>>>name` with the arguments on the next line (v3.2). */
import { addCalls, forcedCalls, words, type CallForm } from '../grammar.js'
import { FREE_JSON, GrammarRules, textWithout } from '../schema/rules.js'
import { type BegunCall, JsonScanner, type RawCall } from './call.js'
import type { ToolDefinition } from '../message.js'
import { StreamParser } from '../parser.js'
import { BlockParser, type BlockReader, callGrammars, type SyntaxFamily } from './syntax.js'

const CLOSE = '</function>'

class FunctionReader implements BlockReader {
  #scanner: JsonScanner | null = null

  begun(body: string): BegunCall | null {
    const header = body.indexOf('>')
    const name = body.slice(0, Math.max(0, header)).trim()
    return name === '' ? null : { name, text: body.slice(header + 1) }
  }

  read(body: string, final: boolean): { end: number; calls: readonly RawCall[] } | null {
    const header = body.indexOf('>')
    if (header === -1) return final ? { end: body.length, calls: [{ name: '', arguments: body }] } : null
    const json = (this.#scanner ??= new JsonScanner(header + 1)).scan(body, final)
    if (json.state === 'incomplete' && !final) return null
    const from = json.state === 'complete' ? json.end : header + 1
    const close = body.indexOf(CLOSE, from)
    if (close === -1 && !final) return null
    const end = close === -1 ? body.length : close
    return {
      end: close === -1 ? end : end + CLOSE.length,
      calls: [{ name: body.slice(0, header).trim(), arguments: body.slice(header + 1, end).trim() }],
    }
  }
}

export const functionary31: SyntaxFamily = () => ({
  name: 'functionary-v3.1',
  parser: (prompt, tools) =>
    new BlockParser([{ kind: 'calls', open: '<function=', reader: () => new FunctionReader() }], prompt, tools),
  ...callGrammars({
    write: (tool, args) => words(`<function=${tool}>`) + args + words(CLOSE),
    between: ' ',
    reasoning: null,
    triggers: ['<function='],
  }),
})

const MARK = '>>>'
/** Matches the mark `>>>`. In a longer run of `>`, the last three are the mark, because no name begins with `>`. */
const MARK_ITSELF = />>>(?!>)/

/** Parses an answer that consists of messages to recipients: `all` is the user, any other recipient is a function. */
class RecipientParser extends StreamParser {
  #recipient: string | null
  /** The mark before the recipient, if the model wrote one. */
  #passed = ''
  #body = ''
  #scanner = new JsonScanner(0)
  /** Whether the text so far ends inside JSON arguments. */
  #isInside = false

  /** @param tools the declared tools; a message to any other recipient is text. Undefined: any name may be a tool */
  constructor(
    opened: boolean,
    private readonly tools: readonly ToolDefinition[] | undefined,
  ) {
    super()
    this.#recipient = opened ? null : 'all'
  }

  protected override drain(final: boolean): void {
    while (this.buffer !== '' && this.#step(final));
    if (final) this.#end()
  }

  #step(final: boolean): boolean {
    if (this.#recipient === null) {
      const line = this.buffer.indexOf('\n')
      if (line === -1 && !final) return false
      const header = this.consume(line === -1 ? this.buffer.length : line + 1)
      const name = header.trim()
      const isTool = this.tools?.some((tool) => tool.name === name) ?? true
      this.#recipient = isTool ? name : 'all'
      if (this.#recipient !== 'all') this.begin(name)
      else if (name !== 'all') this.say(this.#passed + header)
      return true
    }
    const next = this.#mark(final)
    const text = this.consume(next ?? (final || this.#isInside ? this.buffer.length : this.clear([MARK])))
    if (this.#recipient === 'all') this.say(text)
    else {
      this.#body += text
      if (this.#recipient !== '') this.goOn({ name: this.#recipient, text: this.#body })
    }
    if (next === null) return false
    // If another `>` follows, the mark is not these three characters but the last three.
    if (!final && this.buffer.length === MARK.length) return false
    this.#passed = this.consume(MARK.length)
    this.#end()
    this.#recipient = null
    return true
  }

  /** Returns the offset of the mark that ends the text or the arguments. Marks inside JSON arguments do not count. */
  #mark(final: boolean): number | null {
    let from = 0
    if (this.#recipient !== 'all') {
      const json = this.#scanner.scan(this.#body + this.buffer, final)
      this.#isInside = json.state === 'incomplete'
      if (this.#isInside && !final) return null
      if (json.state === 'complete') from = Math.max(0, json.end - this.#body.length)
    }
    const at = this.buffer.slice(from).search(MARK_ITSELF)
    return at === -1 ? null : from + at
  }

  #end(): void {
    if (this.#recipient !== null && this.#recipient !== 'all') this.call({ name: this.#recipient, arguments: this.#body.trim() })
    this.#recipient = 'all'
    this.#body = ''
    this.#scanner = new JsonScanner(0)
    this.#isInside = false
  }
}

const recipients: CallForm = {
  write: (tool, args) => words(`${tool}\n`) + args,
  between: words(MARK),
  reasoning: null,
  triggers: [],
}

export const functionary32: SyntaxFamily = () => ({
  name: 'functionary-v3.2',
  reasoning: null,
  parser: (prompt, tools) => new RecipientParser(prompt.endsWith(MARK), tools),
  grammar: (tools, prompt, single = false) => {
    const around = { before: prompt.endsWith(MARK) ? '' : words(MARK), after: '' }
    return forcedCalls({ ...recipients, around }, tools, prompt, single)
  },
  lazy: (tools, prompt, single = false) => {
    const rules = new GrammarRules(FREE_JSON)
    const text = textWithout(rules, 'text', MARK)
    const calls = addCalls(rules, recipients, tools, single)
    const marked = `( ${words(MARK)}${calls} )?`
    rules.add(
      'root',
      prompt.endsWith(MARK) ? `( "all\\n" ${text} ${marked} | ${calls} ) [ \\n]{0,4}` : `${text} ${marked} [ \\n]{0,4}`,
    )
    return { grammar: rules.text(), triggers: [], spaced: [], reasoning: [], opened: '' }
  },
})
