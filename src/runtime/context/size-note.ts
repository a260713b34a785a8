/** The length hint on long messages. It helps the model choose into how many fragments to cut them. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { fragmentContext } from './tools.js'

/** Messages with at least this many characters (UTF-16 units) get the hint. */
const NOTED_FROM = 2000

const known = new WeakMap<ChatMessage, ChatMessage>()

/**
 * Returns the messages as a model with `tools` must see them. If the context tools are among `tools`, long user messages and tool results
 * get a length hint.
 * The hint does not depend on folds, so it never changes a prompt later. The same message object always gives the same result object.
 */
export function noted(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): readonly ChatMessage[] {
  return managesContext(tools) ? messages.map(withNote) : messages
}

/** Returns the length hint that follows the content of `message`; empty when `tools` has no context tools or the message is short. */
export function sizeNote(message: ChatMessage, tools: readonly ToolDefinition[]): string {
  return managesContext(tools) ? noteOf(message) : ''
}

/**
 * Returns the length hint of one message; empty when it gets none. The built-in model was trained on this sentence: change it only with
 * new weights.
 */
function noteOf({ role, content }: ChatMessage): string {
  if ((role !== 'user' && role !== 'tool') || content.length < NOTED_FROM) return ''
  return `\n\n[This message has about ${Math.round(content.length / 1000)} thousand characters.]`
}

function withNote(message: ChatMessage): ChatMessage {
  const note = noteOf(message)
  if (note === '') return message
  let made = known.get(message)
  if (made === undefined) known.set(message, (made = { ...message, note }))
  return made
}

const managesContext = (tools: readonly ToolDefinition[]): boolean =>
  tools.some(({ name }) => name === fragmentContext.definition.name)
