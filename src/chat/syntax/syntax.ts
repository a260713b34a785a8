/** A family's way of writing tool calls: how to read it, and how to force it. */
import type { ToolCall, ToolDefinition } from '../message.js'
import type { ReplyParser } from '../parser.js'
import { forcedCalls, lazyCalls, USUAL_TAGS, type CallForm, type LazyGrammar, type ReasoningTags } from '../grammar.js'
import type { Block } from './blocks.js'

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

export function reasoningBlocks(tags: ReasoningTags | null): readonly Block[] {
  return [{ kind: 'reasoning', ...(tags ?? USUAL_TAGS) }]
}
