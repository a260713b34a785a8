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

/** What is new of an answer whose beginning was given: the parser has read that, and may have held some of its end back. */
export class News {
  /** Characters of the beginning that come with what is new. */
  #held: number

  constructor(beginning: string, parser: ReplyParser) {
    const read = beginning === '' ? [] : parser.push(beginning)
    const told = read.reduce((text, event) => (event.type === 'text' ? text + event.text : text), '')
    this.#held = beginning.startsWith(told) ? beginning.length - told.length : 0
  }

  of(events: readonly ReplyEvent[]): readonly ReplyEvent[] {
    if (this.#held === 0) return events
    return events.flatMap((event): ReplyEvent[] => {
      if (event.type !== 'text') return [event]
      const text = event.text.slice(this.#held)
      this.#held = Math.max(0, this.#held - event.text.length)
      return text === '' ? [] : [{ ...event, text }]
    })
  }
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
