/** Owns the note that tells a model how long a long message is, so that it can choose into how many fragments to cut it. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { fragmentContext } from './tools.js'

/** Characters of the content (UTF-16 units) from which on a message has a note. */
const NOTED_FROM = 2000

const known = new WeakMap<ChatMessage, ChatMessage>()

/**
 * The messages as a model that has `tools` is to be shown them: with context tools among these, long user messages and tool results carry a note
 * of their size. It says nothing of folds, so it never changes; the same message gives the same object again.
 */
export function noted(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): readonly ChatMessage[] {
  return managesContext(tools) ? messages.map(withNote) : messages
}

/** What stands after the content of `message` as a model that has `tools` sees it; empty when there is nothing. */
export function sizeNote(message: ChatMessage, tools: readonly ToolDefinition[]): string {
  return managesContext(tools) ? noteOf(message) : ''
}

/** The built-in model knows this sentence: not to be changed without it. */
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
