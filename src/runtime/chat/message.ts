/** Messages, tools and tool calls as all layers pass them. Shaped like OpenAI's chat API, with our names. */
import type { Contract } from '../core/contract.js'
import type { Span } from '../core/span.js'

export type Role = 'system' | 'user' | 'assistant' | 'tool'

export interface ToolCall {
  readonly id: string
  readonly name: string
  /**
   * The arguments of the call; empty when `malformed` is set. `readJson` keeps the original digits of numbers, so they are written as they
   * were read.
   */
  readonly arguments: Readonly<Record<string, unknown>>
  /** The raw text of the arguments when it is not a JSON object. */
  readonly malformed?: string
  /** The arguments as JSON text. Set when `arguments` cannot reproduce it, because a key occurs twice. */
  readonly text?: string
}

export interface ChatMessage {
  readonly role: Role
  readonly content: string
  /**
   * Text that the prompt shows right after the content, such as the length hint. Not part of the content: it has tokens of its own, and
   * edits cannot touch it.
   */
  readonly note?: string
  /** The reasoning before an answer. Only on assistant messages. */
  readonly reasoning?: string
  readonly toolCalls?: readonly ToolCall[]
  /** Only on tool messages: the id of the call that the result answers. `name`: the tool's name. */
  readonly toolCallId?: string
  readonly name?: string
  /**
   * What the model sampled after the generation prompt, without the end-of-turn token. Set on answers that kvfold generated, so that later
   * prompts have the same tokens and the answers' cells stay valid.
   */
  readonly sampled?: Sampled
  /** Set on a summary that a server wrote in place of messages: how many of the client's messages it replaces. */
  readonly stands?: number
  /** Set on an answer that this server cancelled. A client that read it as a stream may have received less of its text. */
  readonly cut?: true
}

/** An answer as the model sampled it. */
export interface Sampled {
  readonly text: string
  readonly tokens: Int32Array
  /** The generation prompt's text before the answer. Default: what the template writes without variables such as `enable_thinking`. */
  readonly prompt?: string
}

/** Variables for the chat template, such as `enable_thinking`. Variables that the template does not read have no effect. */
export type TemplateVariables = Readonly<Record<string, unknown>>

export interface ToolDefinition {
  readonly name: string
  readonly description: string
  /** JSON schema of the arguments object. */
  readonly parameters: Readonly<Record<string, unknown>>
  /**
   * Whether a call's arguments must follow the whole schema. If true, a schema that no grammar can express is refused. If false, arguments
   * follow what a grammar can express. Default false.
   */
  readonly strict?: boolean
}

export type ToolChoice = 'auto' | 'required' | 'none'

/**
 * Replaces a span of one message's content, or omits something else of the message (`omits`). The edits of one message must be disjoint and
 * in order. If an edit lies on token borders (`ChatFormat.snap`), all text outside it keeps its tokens.
 */
export interface Edit {
  /** Index of the message, from 0. */
  readonly message: number
  /** In characters (UTF-16 units) of the message's original content. Empty with `omits`. */
  readonly span: Span
  /** The text to show in place of the span. Empty with `omits`. */
  readonly replacement: string
  /** What the prompt omits. The rest of the message is shown as if the message had never had it. */
  readonly omits?: OmittedPart
  /** The cache contract of this edit. Default: that of the step. If edits have several contracts, the strictest counts. */
  readonly contract?: Contract
  /**
   * Set when the cache must forget the hidden text: then no tier keeps a cell that holds the text or has attended to it. Implies `exact`.
   */
  readonly forget?: true
}

/** What an edit omits: the whole message, its reasoning, or the arguments of the calls with these ids. */
export type OmittedPart =
  { readonly part: 'message' } | { readonly part: 'reasoning' } | { readonly part: 'inputs'; readonly calls: readonly string[] }

/**
 * Returns the message without what is omitted; null when that is the whole message. Omitting inputs leaves the calls, with empty arguments.
 */
export function without(message: ChatMessage, parts: readonly OmittedPart[]): ChatMessage | null {
  if (parts.some(({ part }) => part === 'message')) return null
  const rest: { -readonly [K in keyof ChatMessage]: ChatMessage[K] } = { ...message }
  delete rest.sampled
  if (parts.some(({ part }) => part === 'reasoning')) delete rest.reasoning
  const emptied = new Set(parts.flatMap((each) => (each.part === 'inputs' ? each.calls : [])))
  if (rest.toolCalls !== undefined)
    rest.toolCalls = rest.toolCalls.map(({ id, name, ...call }) =>
      emptied.has(id) ? { id, name, arguments: {} } : { id, name, ...call },
    )
  return rest
}

/**
 * Applies edits with `omits` to the messages, for engines that take messages instead of tokens. Returns the messages that are left, and the
 * other edits, whose message indexes count those.
 */
export function omitting(
  messages: readonly ChatMessage[],
  edits: readonly Edit[],
): { readonly messages: readonly ChatMessage[]; readonly edits: readonly Edit[] } {
  const omitted = edits.filter(({ omits }) => omits !== undefined)
  if (omitted.length === 0) return { messages, edits }
  const left: ChatMessage[] = []
  const places = messages.map((message, index) => {
    const parts = omitted.flatMap((edit) => (edit.message === index && edit.omits !== undefined ? [edit.omits] : []))
    const rest = parts.length === 0 ? message : without(message, parts)
    return rest === null ? null : left.push(rest) - 1
  })
  const others = edits.flatMap((edit) => {
    const place = places[edit.message] ?? null
    return edit.omits !== undefined || place === null ? [] : [{ ...edit, message: place }]
  })
  return { messages: left, edits: others }
}

/** Returns the indexes of the messages that `omitting` leaves, in order. */
export function indexesLeft(messages: readonly ChatMessage[], edits: readonly Edit[]): readonly number[] {
  const gone = new Set(edits.flatMap((edit) => (edit.omits?.part === 'message' ? [edit.message] : [])))
  return messages.flatMap((_, index) => (gone.has(index) ? [] : [index]))
}

/** Joins the texts of one answer: those of its steps, and those with reasoning or calls between them. */
export const BLANK_LINE = '\n\n'

/** Makes an assistant message. Undefined reasoning and an empty list of calls are left out. */
export const assistantMessage = ({
  content = '',
  reasoning,
  toolCalls = [],
}: Partial<Pick<ChatMessage, 'content' | 'reasoning' | 'toolCalls'>>): ChatMessage => ({
  role: 'assistant',
  content,
  ...(reasoning === undefined ? {} : { reasoning }),
  ...(toolCalls.length === 0 ? {} : { toolCalls }),
})
