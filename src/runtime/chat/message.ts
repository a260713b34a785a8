/** Messages, tools and calls as every layer passes them; the shapes follow OpenAI's chat API with our names. */
import type { Contract } from '../core/contract.js'
import type { Span } from '../core/span.js'

export type Role = 'system' | 'user' | 'assistant' | 'tool'

export interface ToolCall {
  readonly id: string
  readonly name: string
  /**
   * Empty when `malformed` is set. Numbers are JavaScript's; `readJson` keeps their digits beside them, so that they are shown and told as they were
   * written.
   */
  readonly arguments: Readonly<Record<string, unknown>>
  /** The raw text of arguments that were not a JSON object. */
  readonly malformed?: string
  /** The arguments as JSON text, where writing them gives another: a key stood there twice. */
  readonly text?: string
}

export interface ChatMessage {
  readonly role: Role
  readonly content: string
  /** Shown right after the content and no part of it: tokenized apart, out of reach of edits and not in its spans. */
  readonly note?: string
  /** Assistant only. */
  readonly reasoning?: string
  readonly toolCalls?: readonly ToolCall[]
  /** Tool only: the call it answers, and the tool's name. */
  readonly toolCallId?: string
  readonly name?: string
  /** Assistant messages we generated: exactly what was sampled after the generation prompt (end-of-turn token excluded), kept so that the cache stays valid. */
  readonly sampled?: Sampled
  /** Assistant only: the answer was cancelled here. A client that read it as a stream may have less of its text. */
  readonly cut?: true
}

/** What a model said, as it was drawn. */
export interface Sampled {
  readonly text: string
  readonly tokens: Int32Array
  /** The text of the generation prompt that it came after; default: the template's own, without variables. */
  readonly prompt?: string
}

/** What a chat template is told beside messages and tools, such as `enable_thinking`; names that it does not read change nothing. */
export type TemplateVariables = Readonly<Record<string, unknown>>

export interface ToolDefinition {
  readonly name: string
  readonly description: string
  /** JSON schema of the arguments object. */
  readonly parameters: Readonly<Record<string, unknown>>
  /** Arguments keep to all that the schema says, and a schema that no grammar can say is refused. Default false: they keep to what can be said. */
  readonly strict?: boolean
}

export type ToolChoice = 'auto' | 'required' | 'none'

/** A stretch of one message's content that is shown as other text. Edits of one message are disjoint and ordered; on token borders (see ChatFormat.snap) they leave all other text its tokens. */
export interface Edit {
  /** Index of the message. */
  readonly message: number
  /** Characters (UTF-16 units) of the message's original content. */
  readonly span: Span
  readonly replacement: string
  /** What this edit asks of the cache as long as it is shown; default: what the step does. The strictest of all counts. */
  readonly contract?: Contract
  /** The hidden text is to be forgotten: nothing of the cache that holds it or has read it stays, in any tier. Asks for `exact`. */
  readonly forget?: true
}

/** What the assistant says, as a message: without the fields that it has nothing for. */
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
