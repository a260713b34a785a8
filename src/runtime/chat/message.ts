/** Messages, tools and tool calls as all layers pass them. The shapes follow OpenAI's chat API, with our names. */
import type { Contract } from '../core/contract.js'
import type { Span } from '../core/span.js'

export type Role = 'system' | 'user' | 'assistant' | 'tool'

export interface ToolCall {
  readonly id: string
  readonly name: string
  /**
   * The arguments of the call; empty when `malformed` is set. Numbers are JavaScript numbers. `readJson` keeps their original digits beside
   * them, so that they are written as they were read.
   */
  readonly arguments: Readonly<Record<string, unknown>>
  /** The raw text of arguments that were not a JSON object. */
  readonly malformed?: string
  /** The arguments as JSON text. Set when writing `arguments` would give another text, because a key occurred twice. */
  readonly text?: string
}

export interface ChatMessage {
  readonly role: Role
  readonly content: string
  /**
   * Text shown right after the content. It is not part of the content: it is tokenized separately, edits cannot touch it, and the
   * content's spans exclude it.
   */
  readonly note?: string
  /** The reasoning of an answer. Only assistant messages have it. */
  readonly reasoning?: string
  readonly toolCalls?: readonly ToolCall[]
  /** Only tool messages have these: the id of the call that the result answers, and (next field) the tool's name. */
  readonly toolCallId?: string
  readonly name?: string
  /**
   * The text and tokens that the model sampled after the generation prompt, without the end-of-turn token. Set on answers that we
   * generated, so that their cells stay valid.
   */
  readonly sampled?: Sampled
  /** Set on a summary that a server wrote in place of messages: how many of the client's messages the summary replaces. */
  readonly stands?: number
  /** Set on an answer that this server cancelled. A client that read the answer as a stream may have less of its text. */
  readonly cut?: true
}

/** An answer as the model sampled it. */
export interface Sampled {
  readonly text: string
  readonly tokens: Int32Array
  /** The text of the generation prompt after which the answer was sampled. Default: that of the template without variables. */
  readonly prompt?: string
}

/**
 * Variables for a chat template beside messages and tools, such as `enable_thinking`. Names that the template does not read have no
 * effect.
 */
export type TemplateVariables = Readonly<Record<string, unknown>>

export interface ToolDefinition {
  readonly name: string
  readonly description: string
  /** JSON schema of the arguments object. */
  readonly parameters: Readonly<Record<string, unknown>>
  /**
   * Whether arguments must follow the whole schema; a schema that no grammar can express is then refused. By default (false), arguments
   * follow the part of the schema that a grammar can express.
   */
  readonly strict?: boolean
}

export type ToolChoice = 'auto' | 'required' | 'none'

/**
 * Replaces a stretch of one message's content by other text, or leaves out a part of the message that is not its content (`omits`). The
 * edits of one message are disjoint and ordered. When an edit lies on token borders (`ChatFormat.snap`), all other text keeps its tokens.
 */
export interface Edit {
  /** Index of the message. */
  readonly message: number
  /** Characters (UTF-16 units) of the message's original content; empty with `omits`. */
  readonly span: Span
  /** The text that is shown in place of the span; empty with `omits`. */
  readonly replacement: string
  /** The part that is left out. The rest of the message is shown as the template shows a message without that part. */
  readonly omits?: OmittedPart
  /**
   * The contract of this edit while it is in effect. Default: that of the step. When edits have several contracts, the strictest one
   * counts.
   */
  readonly contract?: Contract
  /**
   * Set when the cache must forget the hidden text: no cell that holds the text or has attended to it stays in any tier. Implies `exact`.
   */
  readonly forget?: true
}

/** A part of a message beside its content: the whole message, its reasoning, or the arguments of the calls with these ids. */
export type OmittedPart =
  { readonly part: 'message' } | { readonly part: 'reasoning' } | { readonly part: 'inputs'; readonly calls: readonly string[] }

/**
 * Returns the message without these parts; null when it is left out as a whole. Its calls stay, but have empty arguments if these are left
 * out.
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
 * Applies the edits that leave out parts (`omits`) to the messages, for engines that take messages instead of tokens. Returns the remaining
 * messages, and their other edits with the indexes that the messages have now.
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

/** Makes an assistant message, without reasoning and calls if it has none. */
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
