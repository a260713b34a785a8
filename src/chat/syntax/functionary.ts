/** Functionary: `<function=name>{...}</function>` (v3.1) and `>>>name` with the arguments on the next line (v3.2). */
import { addCalls, forcedCalls, words, type CallForm } from '../grammar.js'
import { FREE_JSON, GrammarRules, textWithout } from '../schema/rules.js'
import type { BegunCall } from './arguments.js'
import { BlockParser, type BlockReader } from './blocks.js'
import { JsonScanner, type RawCall } from './call.js'
import { StreamParser } from './stream.js'
import { callGrammars, type SyntaxFamily } from './syntax.js'

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
  parser: (prompt) => new BlockParser([{ kind: 'calls', open: '<function=', reader: () => new FunctionReader() }], prompt),
  ...callGrammars({
    write: (tool, args) => words(`<function=${tool}>`) + args + words(CLOSE),
    between: ' ',
    reasoning: null,
    triggers: ['<function='],
  }),
})

const MARK = '>>>'

/** Recipients: `all` is for the reader, everything else is a function. */
class RecipientParser extends StreamParser {
  #recipient: string | null
  #body = ''

  constructor(opened: boolean) {
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
      const name = this.consume(line === -1 ? this.buffer.length : line + 1).trim()
      this.#recipient = name
      if (name !== 'all') this.begin(name)
      return true
    }
    const next = this.buffer.indexOf(MARK)
    const text = this.consume(next !== -1 ? next : final ? this.buffer.length : this.clear([MARK]))
    if (this.#recipient === 'all') this.say(text)
    else {
      this.#body += text
      if (this.#recipient !== '') this.goOn({ name: this.#recipient, text: this.#body })
    }
    if (next === -1) return false
    this.consume(MARK.length)
    this.#end()
    this.#recipient = null
    return true
  }

  #end(): void {
    if (this.#recipient !== null && this.#recipient !== 'all') this.call({ name: this.#recipient, arguments: this.#body.trim() })
    this.#recipient = 'all'
    this.#body = ''
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
  parser: (prompt) => new RecipientParser(prompt.endsWith(MARK)),
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
    return { grammar: rules.text(), triggers: [], reasoning: [], opened: '' }
  },
})
