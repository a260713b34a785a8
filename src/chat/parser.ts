/** What every reply parser does: takes the model's raw text as it comes, hands out text, reasoning and tool calls. */
import type { ToolCall } from './message.js'

export type ReplyEvent =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** A call has begun; its name is known when the syntax gives it first. */
  | { readonly type: 'call-start'; readonly name: string | null }
  /** More of the arguments of the call that is being made; together they are the whole call's. Where the syntax writes them otherwise than as JSON, and where they turn out to be none, there are fewer of them or none. */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  | { readonly type: 'call'; readonly call: ToolCall }

export interface ParsedReply {
  readonly content: string
  readonly reasoning?: string
  readonly toolCalls: readonly ToolCall[]
}

export interface FinishedReply extends ParsedReply {
  /** What `push` had held back. */
  readonly events: readonly ReplyEvent[]
}

export interface ReplyParser {
  /** Text may be split anywhere. */
  push(text: string): ReplyEvent[]
  /** The whole reply; what was held back or unfinished is in it. Call once. */
  finish(): FinishedReply
}

/** Of an answer that had to be a call and was cut off: what was held back as it might begin one does, and is no text. */
export function withoutHeld(parsed: FinishedReply): FinishedReply {
  const held = parsed.events.reduce((sum, event) => sum + (event.type === 'text' ? event.text.length : 0), 0)
  const { content } = parsed
  return {
    ...parsed,
    content: content.slice(0, content.length - held),
    events: parsed.events.filter(({ type }) => type !== 'text'),
  }
}
