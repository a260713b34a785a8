/**
 * A tool-call syntax: how a family of models writes calls, how to parse them, and how to force them with a grammar. Also the parser for
 * replies with opening and closing tags, which most families use.
 */
import type { ToolCall, ToolDefinition } from '../message.js'
import { type ReplyParser, StreamParser } from '../parser.js'
import { forcedCalls, lazyCalls, USUAL_TAGS, type CallForm, type LazyGrammar, type ReasoningTags } from '../grammar.js'
import type { BegunCall, RawCall } from './call.js'

export type { ReasoningTags }

export interface ToolSyntax {
  /** The name of the syntax, for example `hermes`; `none` when the template shows no known one. */
  readonly name: string
  /** Makes a parser. `prompt`: the text of the generation prompt, which may have opened reasoning or a call. */
  parser(prompt: string, tools?: readonly ToolDefinition[]): ReplyParser
  /**
   * Returns GBNF (root rule `root`) that forces at least one call, or exactly one with `single`. Returns null without tools, or when the
   * syntax has no such grammar.
   */
  grammar(tools: readonly ToolDefinition[], prompt: string, single?: boolean): string | null
  /**
   * Returns a grammar that allows any answer until a call begins, and from there only calls of these tools. With `bare`, it also applies to
   * bare calls (bare-calls.ts), as far as the syntax supports that. Returns null when the syntax has no such grammar.
   */
  lazy(tools: readonly ToolDefinition[], prompt: string, single?: boolean, bare?: boolean): LazyGrammar | null
  /** The tags of reasoning; null when the syntax has none that can be recognised. */
  readonly reasoning: ReasoningTags | null
  /** How to write calls as text when the template itself ignores calls. Default: as Hermes does. */
  readonly writer?: CallWriter
}

/** How to write calls as text. All strings but the result of `call` are kvfold's own, so they may become control tokens. */
export interface CallWriter {
  readonly before: string
  readonly open: string
  readonly call: (call: ToolCall) => string
  readonly close: string
  readonly between: string
  readonly after: string
}

/** What a syntax depends on in a template. */
export interface TemplateTraits {
  readonly source: string
  /**
   * The reasoning tags that the template contains; null when it contains none. Then `<think>` is still parsed, but a forced call cannot be
   * preceded by reasoning.
   */
  readonly tags: ReasoningTags | null
}

export type SyntaxFamily = (traits: TemplateTraits) => ToolSyntax

/** Returns the grammars and reasoning tags for a syntax that writes calls in a single way. */
export const callGrammars = (form: CallForm): Pick<ToolSyntax, 'grammar' | 'lazy' | 'reasoning'> => ({
  reasoning: form.reasoning ?? USUAL_TAGS,
  grammar: (tools, prompt, single = false) => forcedCalls(form, tools, prompt, single),
  lazy: (tools, prompt, single = false, bare = false) => lazyCalls(form, tools, prompt, single, bare),
})

export function reasoningBlocks(tags: ReasoningTags | null): readonly TagBlock[] {
  return [{ kind: 'reasoning', ...(tags ?? USUAL_TAGS) }]
}

// Replies with opening and closing tags, the syntax of most families.

/** Parses what follows the opening tag of a call. Each block gets a new reader, so a reader may keep progress. */
export interface BlockReader {
  /**
   * Returns the calls, and how many characters of `body` they took, closing tag included. Returns null to wait for more text, which it must
   * not with `final`.
   */
  read(body: string, final: boolean): { readonly end: number; readonly calls: readonly RawCall[] } | null
  /** Returns the call that `body` begins with, once its name is known and its arguments are JSON. More text must not change the name. */
  begun?(body: string): BegunCall | null
}

export type TagBlock =
  | ({ readonly kind: 'reasoning' } & Omit<ReasoningTags, 'then'>)
  | { readonly kind: 'calls'; readonly open: string; readonly reader: () => BlockReader }
  /** A tag that only groups calls. The parser drops it. */
  | { readonly kind: 'skip'; readonly open: string }

type Mode =
  | { readonly name: 'text' }
  | { readonly name: 'reasoning'; readonly close: string }
  | { readonly name: 'calls'; readonly reader: BlockReader }

export class BlockParser extends StreamParser {
  #mode: Mode = { name: 'text' }
  readonly #blocks: readonly TagBlock[]
  /** Whether the answer has any text but white space so far. */
  #hasText = false

  /**
   * @param prompt if it ends with an opening tag, the answer begins inside that tag's block
   * @param tools the declared tools; if the list is empty, tags of calls are text. Undefined: any name may be a tool
   */
  constructor(blocks: readonly TagBlock[], prompt: string, tools?: readonly ToolDefinition[]) {
    super()
    this.#blocks = tools?.length === 0 ? blocks.filter(({ kind }) => kind !== 'calls') : blocks
    const end = prompt.trimEnd()
    const opened = this.#blocks.find(({ open }) => end.endsWith(open))
    if (opened !== undefined) this.#enter(opened)
  }

  protected override drain(final: boolean): void {
    while (this.buffer !== '' && this.#step(final));
    if (final && this.#mode.name === 'calls' && this.buffer === '') this.#mode = { name: 'text' }
  }

  /** Reads the next text or block from the buffer. Returns false when it needs more text. */
  #step(final: boolean): boolean {
    const mode = this.#mode
    switch (mode.name) {
      case 'text': {
        const next = this.#nextBlock()
        const tags = this.#blocks.map(({ open }) => open)
        const text = this.consume(next?.at ?? (final ? this.buffer.length : this.clear(tags)))
        this.#hasText ||= text.trim() !== ''
        this.say(text)
        if (next === null) return false
        this.consume(next.block.open.length)
        this.#enter(next.block)
        return true
      }
      case 'reasoning': {
        const end = this.buffer.indexOf(mode.close)
        this.think(this.consume(end !== -1 ? end : final ? this.buffer.length : this.clear([mode.close])))
        if (end === -1) return false
        this.consume(mode.close.length)
        this.#mode = { name: 'text' }
        return true
      }
      case 'calls': {
        const begun = mode.reader.begun?.(this.buffer) ?? null
        if (begun !== null) this.goOn(begun)
        const read = mode.reader.read(this.buffer, final)
        if (read === null) return false
        this.consume(read.end)
        for (const call of read.calls) this.call(call)
        this.#mode = { name: 'text' }
        return true
      }
    }
  }

  #enter(block: TagBlock): void {
    if (block.kind === 'reasoning') {
      this.think('')
      this.#mode = { name: 'reasoning', close: block.close }
    } else if (block.kind === 'calls') {
      this.begin(null)
      this.#mode = { name: 'calls', reader: block.reader() }
    } else this.separate()
  }

  #isBehindText(at: number): boolean {
    return this.#hasText || this.buffer.slice(0, Math.max(0, at)).trim() !== ''
  }

  #nextBlock(): { readonly at: number; readonly block: TagBlock } | null {
    let first: { at: number; block: TagBlock } | null = null
    for (const block of this.#blocks) {
      const at = this.buffer.indexOf(block.open)
      const isText = block.kind === 'reasoning' && block.isFirst === true && this.#isBehindText(at)
      if (at !== -1 && !isText && (first === null || at < first.at)) first = { at, block }
    }
    return first
  }
}
