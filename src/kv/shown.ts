/** What a sequence is asked to hold: the tokens a step shows the model, divided among the messages they belong to. */
import type { Span } from '../core/span.js'

/** The stretch of tokens that belongs to one message, its role header and end-of-turn included. */
export interface ShownMessage {
  /** Place in the conversation, from 0; messages never change in number or order, so it names the message. The answer being generated is the last. */
  readonly index: number
  readonly role: string
  /** Tokens, half-open; the messages of one `Shown` are in order and cover all its tokens. */
  readonly span: Span
}

export interface Shown {
  readonly tokens: Int32Array
  readonly messages: readonly ShownMessage[]
}
