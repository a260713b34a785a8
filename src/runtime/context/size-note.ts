/** Adds the length hint to long messages. From it the model chooses the number of fragments to cut them into. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { fragmentContext } from './tools.js'

/** Messages with at least this many characters (UTF-16 units) get a note. */
const NOTED_FROM = 2000

const known = new WeakMap<ChatMessage, ChatMessage>()

/**
 * Returns the messages as a model with `tools` must see them. When the context tools are among `tools`, long user messages and tool
 * results get a note of their size. The note does not mention folds, so it never changes. The same message gives the same object again.
 */
export function noted(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): readonly ChatMessage[] {
  return managesContext(tools) ? messages.map(withNote) : messages
}

/** Returns the note that follows the content of `message` for a model with `tools`; empty when there is none. */
export function sizeNote(message: ChatMessage, tools: readonly ToolDefinition[]): string {
  return managesContext(tools) ? noteOf(message) : ''
}

/**
 * Returns the note of one message; empty when it gets none. The built-in model was trained on this sentence: keep it without new weights.
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
