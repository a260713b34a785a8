/**
 * gpt-oss / harmony: an answer consists of messages on channels. `analysis` is reasoning, `final` is content, and a message with a
 * recipient is a call.
 */
import { addCalls, forcedCalls, words, type CallForm } from '../grammar.js'
import { FREE_JSON, GrammarRules } from '../schema/rules.js'
import { StreamParser } from '../parser.js'
import type { SyntaxFamily } from './syntax.js'

const START = '<|start|>'
const MESSAGE = '<|message|>'
const END = '<|end|>'
/** Matches the beginning of a header. */
const HEADER = /^\s*(?:<\|(?:start|channel)\|>|to=)/
const ENDS = [END, '<|call|>', '<|return|>', START]

type Channel =
  | { readonly kind: 'header' }
  | { readonly kind: 'text' }
  | { readonly kind: 'reasoning' }
  | { readonly kind: 'call'; readonly name: string; body: string }

class HarmonyParser extends StreamParser {
  #channel: Channel
  #first: boolean

  /** @param open whether the prompt ends inside a header */
  constructor(open: boolean) {
    super()
    this.#channel = open ? { kind: 'header' } : { kind: 'text' }
    this.#first = open
  }

  protected override drain(final: boolean): void {
    while (this.buffer !== '' && this.#step(final));
    if (final && this.#channel.kind === 'call') this.#end()
  }

  #step(final: boolean): boolean {
    return this.#channel.kind === 'header' ? this.#header(final) : this.#body(final)
  }

  #header(final: boolean): boolean {
    const at = this.buffer.indexOf(MESSAGE)
    if (this.#first && !/^\s*(?:<|to=|to?$|$)/.test(this.buffer)) {
      // The answer does not begin like a header, so the model left the header out.
      this.#channel = { kind: 'text' }
      return true
    }
    if (at === -1) {
      if (!final) return false
      const rest = this.consume(this.buffer.length)
      // A cut-off header is not content.
      if (!HEADER.test(rest)) this.say(rest)
      return false
    }
    this.#first = false
    const header = this.consume(at + MESSAGE.length)
    const [, recipient] = /to=(?:functions\.)?([^\s<]+)/.exec(header) ?? []
    const [, channel] = /<\|channel\|>\s*(\w+)/.exec(header) ?? []
    if (recipient !== undefined && recipient !== 'assistant' && recipient !== 'user') {
      this.begin(recipient)
      this.#channel = { kind: 'call', name: recipient, body: '' }
    } else if (channel === 'analysis') {
      this.think('')
      this.#channel = { kind: 'reasoning' }
    } else {
      this.separate()
      this.#channel = { kind: 'text' }
    }
    return true
  }

  #body(final: boolean): boolean {
    const found = ENDS.map((tag) => ({ tag, at: this.buffer.indexOf(tag) })).filter(({ at }) => at !== -1)
    const end = found.reduce<{ tag: string; at: number } | null>(
      (first, each) => (first === null || each.at < first.at ? each : first),
      null,
    )
    this.#put(this.consume(end?.at ?? (final ? this.buffer.length : this.clear(ENDS))))
    if (end === null) return false
    this.consume(end.tag === START ? 0 : end.tag.length)
    this.#end()
    return true
  }

  #put(text: string): void {
    if (this.#channel.kind === 'call') {
      this.#channel.body += text
      this.goOn({ name: this.#channel.name, text: this.#channel.body })
    } else if (this.#channel.kind === 'reasoning') this.think(text)
    else this.say(text)
  }

  #end(): void {
    if (this.#channel.kind === 'call') this.call({ name: this.#channel.name, arguments: this.#channel.body.trim() })
    this.#channel = { kind: 'header' }
  }
}

/** GBNF for the text of one message. It ends at a control token, that is, at `<|` and a letter. */
const BODY = '( [^<] | "<" [^|] | "<|" [^a-z] )*'

const commentary: CallForm = {
  write: (tool, args) =>
    `( ${words(`<|channel|>commentary to=functions.${tool}`)} (" "? "<|constrain|>json" | " json")? | ${words(` to=functions.${tool}<|channel|>commentary`)} (" "? "<|constrain|>json" | " json")? ) "<|message|>" ${args}`,
  between: null,
  reasoning: null,
  triggers: [],
}

export const harmony: SyntaxFamily = () => ({
  name: 'harmony',
  reasoning: { open: '<|channel|>analysis<|message|>', close: END, then: `${START}assistant` },
  parser: (prompt) => new HarmonyParser(!prompt.trimEnd().endsWith(MESSAGE)),
  grammar: (tools, prompt) => {
    const written = prompt.trimEnd()
    // The prompt closes the reasoning, so the call must come at once.
    const isEnded = written.endsWith(END)
    if (!(isEnded ? written.slice(0, -END.length).trimEnd() : written).endsWith('assistant')) return null
    const before = words('<|channel|>analysis<|message|>')
    const rest = words(`${END}<|start|>assistant`)
    const around = { before: isEnded ? '' : `(${before}${BODY}${rest})? `, after: '' }
    return forcedCalls({ ...commentary, around }, tools, prompt, true)
  },
  lazy: (tools, prompt) => {
    if (!prompt.trimEnd().endsWith('assistant')) return null
    const rules = new GrammarRules(FREE_JSON)
    const calls = addCalls(rules, commentary, tools, true)
    rules.add('said', `"<|channel|>" ( "analysis" | "final" | "commentary" ) "<|message|>" ${BODY}`)
    rules.add('root', `said ( "<|end|><|start|>assistant" said )* ( "<|end|><|start|>assistant" ${calls} )? | ${calls}`)
    return { grammar: rules.text(), triggers: [], spaced: [], reasoning: [], opened: '' }
  },
})
