/** Owns what of a prompt is counted: for every message its text as shown, and what that weighs. */
import type { ChatMessage, Edit, ToolDefinition } from '../../chat/message.js'
import type { Row } from './books.js'
import { AROUND, type TextCounts } from './text-counts.js'
import { bodyOf, contentOf, editsByMessage } from './wire.js'

/** One row a message; tools stand before the first message, so they are counted with it. */
export function rowsOf(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  edits: readonly Edit[],
  counts: TextCounts,
): Row[] {
  const before = toolsText(tools)
  const around = before === '' ? 0 : counts.of(before)
  return bodiesOf(messages, edits).map((body, index) => ({
    role: messages[index]?.role ?? '',
    text: index === 0 ? before + body : body,
    weight: counts.of(body) + (index === 0 ? around : 0) + AROUND,
  }))
}

/** The text of one row under these edits of its message. */
export function rowText(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  index: number,
  edits: readonly Edit[],
): string {
  const message = messages[index]
  const body = message === undefined ? '' : bodyOf(message, contentOf(message, edits))
  return index === 0 ? toolsText(tools) + body : body
}

/** The texts that are counted apart. */
export const textsOf = (messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[]): string[] => [
  ...bodiesOf(messages, edits),
  toolsText(tools),
]

/** Tokens of a prompt with these rows, about. */
export const weightOf = (rows: readonly Row[]): number => rows.reduce((sum, { weight }) => sum + weight, AROUND)

/** Characters of a prompt with these rows. */
export const charactersOf = (rows: readonly Row[]): number => rows.reduce((sum, { text }) => sum + text.length, 0)

const bodiesOf = (messages: readonly ChatMessage[], edits: readonly Edit[]): string[] => {
  const changes = editsByMessage(edits)
  return messages.map((message, index) => bodyOf(message, contentOf(message, changes.get(index) ?? [])))
}

const toolsText = (tools: readonly ToolDefinition[]): string => (tools.length === 0 ? '' : JSON.stringify(tools))
