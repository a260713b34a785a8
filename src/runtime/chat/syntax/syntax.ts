/** A family's way of writing tool calls: how to read it, and how to force it; and replies in which tags open and close, as most families have it. */
import type { ToolCall, ToolDefinition } from '../message.js'
import { type ReplyParser, StreamParser } from '../parser.js'
import { forcedCalls, lazyCalls, USUAL_TAGS, type CallForm, type LazyGrammar, type ReasoningTags } from '../grammar.js'
import type { BegunCall, RawCall } from './call.js'

export type { ReasoningTags }

export interface ToolSyntax {
  /** e.g. `hermes`; `none` when the template shows no syntax we know. */
  readonly name: string
  /** `prompt`: the generation prompt's text; it may have opened a reasoning or a call. */
  parser(prompt: string, tools?: readonly ToolDefinition[]): ReplyParser
  /** GBNF with root rule `root` that forces at least one call, or exactly one when `single`; null without tools, or when the family has none. */
  grammar(tools: readonly ToolDefinition[], prompt: string, single?: boolean): string | null
  /** Lets an answer be anything until a call begins, and then only calls of these tools; null when the family has none. */
  lazy(tools: readonly ToolDefinition[], prompt: string, single?: boolean): LazyGrammar | null
  /** The tags of its reasoning; null: it has none that can be told. */
  readonly reasoning: ReasoningTags | null
  /** How calls are written where the template itself ignores them; default: Hermes. */
  readonly writer?: CallWriter
}

/** Calls as text; everything but what `call` makes is ours and may be control tokens. */
export interface CallWriter {
  readonly before: string
  readonly open: string
  readonly call: (call: ToolCall) => string
  readonly close: string
  readonly between: string
  readonly after: string
}

/** What a family looks at in a template. */
export interface TemplateTraits {
  readonly source: string
  /** Null: the template shows no reasoning; the usual tags are still read, but a forced call allows none. */
  readonly tags: ReasoningTags | null
}

export type SyntaxFamily = (traits: TemplateTraits) => ToolSyntax

/** Both grammars of a family that writes its calls alike everywhere, and its reasoning. */
export const callGrammars = (form: CallForm): Pick<ToolSyntax, 'grammar' | 'lazy' | 'reasoning'> => ({
  reasoning: form.reasoning ?? USUAL_TAGS,
  grammar: (tools, prompt, single = false) => forcedCalls(form, tools, prompt, single),
  lazy: (tools, prompt, single = false) => lazyCalls(form, tools, prompt, single),
})

export function reasoningBlocks(tags: ReasoningTags | null): readonly TagBlock[] {
  return [{ kind: 'reasoning', ...(tags ?? USUAL_TAGS) }]
}

// Replies in which tags open and close reasoning and calls: the syntax of most families.

/** Reads what stands after a call's opening tag; made anew for every block, so it may remember how far it got. */
export interface BlockReader {
  /** The calls, and how much of `body` they took, closing tag included; null when more text is needed (never when `final`). */
  read(body: string, final: boolean): { readonly end: number; readonly calls: readonly RawCall[] } | null
  /** The call that `body` begins with, as soon as its name is known and its arguments are JSON; what it says stays so with more text. */
  begun?(body: string): BegunCall | null
}

export type TagBlock =
  | { readonly kind: 'reasoning'; readonly open: string; readonly close: string }
  | { readonly kind: 'calls'; readonly open: string; readonly reader: () => BlockReader }
  /** A tag that only groups. */
  | { readonly kind: 'skip'; readonly open: string }

type Mode =
  | { readonly name: 'text' }
  | { readonly name: 'reasoning'; readonly close: string }
  | { readonly name: 'calls'; readonly reader: BlockReader }

export class BlockParser extends StreamParser {
  #mode: Mode = { name: 'text' }

  /** `prompt`: a reasoning or call that it ends in is open from the beginning. */
  constructor(
    private readonly blocks: readonly TagBlock[],
    prompt: string,
  ) {
    super()
    const end = prompt.trimEnd()
    const opened = blocks.find(({ open }) => end.endsWith(open))
    if (opened !== undefined) this.#enter(opened)
  }

  protected override drain(final: boolean): void {
    while (this.buffer !== '' && this.#step(final));
    if (final && this.#mode.name === 'calls' && this.buffer === '') this.#mode = { name: 'text' }
  }

  /** False when it needs more text. */
  #step(final: boolean): boolean {
    const mode = this.#mode
    switch (mode.name) {
      case 'text': {
        const next = this.#nextBlock()
        const tags = this.blocks.map(({ open }) => open)
        this.say(this.consume(next?.at ?? (final ? this.buffer.length : this.clear(tags))))
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

  #nextBlock(): { readonly at: number; readonly block: TagBlock } | null {
    let first: { at: number; block: TagBlock } | null = null
    for (const block of this.blocks) {
      const at = this.buffer.indexOf(block.open)
      if (at !== -1 && (first === null || at < first.at)) first = { at, block }
    }
    return first
  }
}
