/**
 * Adapts messages to chat templates that refuse some conversations: with system messages, with two messages of one role in a row, or
 * without a user message at the beginning. Joins messages, or adds empty ones.
 */
import type { Value } from './jinja/values.js'
import { Tracked } from './tracked.js'

/** Text that kvfold itself writes into a prompt. */
export const literal = (text: string): Tracked => Tracked.of(text, 'template')

/** Puts text between tags that are on lines of their own. */
export const tagged = (tag: string, content: Tracked): Tracked =>
  Tracked.join([literal(`<${tag}>\n`), content, literal(`\n</${tag}>`)])

/** A message as the template gets it. */
export interface TemplateTurn {
  readonly index: number
  readonly role: string
  readonly content: Tracked
  readonly rest: readonly (readonly [string, Value])[]
}

/** Appends text to the leading system message. If there is none, adds one. */
export function withPreamble(turns: readonly TemplateTurn[], text: Tracked): TemplateTurn[] {
  const [first, ...rest] = turns
  if (first?.role === 'system')
    return [
      {
        ...first,
        content: paragraphs([first.content, text].filter(({ length }) => length > 0).map((part) => [part, first.index])),
      },
      ...rest,
    ]
  return [{ index: first?.index ?? 0, role: 'system', content: text, rest: [] }, ...turns]
}

/** Joins the leading system message to the user message after it. If none follows at once, makes it a user message. */
export function withoutSystem(turns: readonly TemplateTurn[]): readonly TemplateTurn[] {
  const [first, second, ...rest] = turns
  if (first?.role !== 'system') return turns
  const user = { ...first, role: 'user' }
  if (second === undefined) return [user]
  return second.role === 'user' ? [joined([user, second]), ...rest] : [user, second, ...rest]
}

/** Makes user messages of system messages that follow other messages. Their text goes between tags. */
export function withLateSystems(turns: readonly TemplateTurn[]): TemplateTurn[] {
  const leading = leadingSystems(turns)
  return turns.map((turn, at) =>
    at < leading || turn.role !== 'system' ? turn : { ...turn, role: 'user', content: tagged('system_message', turn.content) },
  )
}

/** Joins several leading system messages to one. */
export function withOneSystem(turns: readonly TemplateTurn[]): readonly TemplateTurn[] {
  const leading = leadingSystems(turns)
  return leading < 2 ? turns : [joined(turns.slice(0, leading)), ...turns.slice(leading)]
}

/** Returns how many system messages come before all other messages. */
function leadingSystems(turns: readonly TemplateTurn[]): number {
  const other = turns.findIndex(({ role }) => role !== 'system')
  return other === -1 ? turns.length : other
}

const emptyTurn = (index: number, role: string, content = Tracked.empty): TemplateTurn => ({ index, role, content, rest: [] })

/** Adds an empty user message after the leading system messages if another role follows them. It counts as text of the message after it. */
export function opened(turns: readonly TemplateTurn[]): readonly TemplateTurn[] {
  const leading = leadingSystems(turns)
  const first = turns[leading]
  if (first?.role === 'user') return turns
  const index = (first ?? turns.at(-1))?.index ?? 0
  return [...turns.slice(0, leading), emptyTurn(index, 'user'), ...turns.slice(leading)]
}

/**
 * Makes user messages and answers alternate. Neighbours of one role are joined. Where that is impossible, an empty message of the other
 * role goes between; `answer` is the content of an empty answer. System messages and results are left alone, but a message with calls must
 * follow a user message.
 * An empty message counts as text of the message after it. It depends only on earlier messages, so it stays the same when the conversation
 * grows.
 */
export function alternating(turns: readonly TemplateTurn[], answer: Tracked): TemplateTurn[] {
  const groups: TemplateTurn[][] = []
  let last = 'assistant'
  for (const turn of turns) {
    const { role, rest, index } = turn
    const group = groups.at(-1)
    const isNeighbour = group?.[0]?.role === role && group[0].rest.length === 0 && rest.length === 0
    if (role === 'system' || role === 'tool') groups.push([turn])
    else if (isNeighbour) group.push(turn)
    else {
      if (role === last) groups.push([role === 'user' ? emptyTurn(index, 'assistant', answer) : emptyTurn(index, 'user')])
      groups.push([turn])
      last = rest.some(([name]) => name === 'tool_calls') ? 'user' : role
    }
  }
  return groups.map(joined)
}

/** Joins messages of one role to one. Each text still belongs to its own message. */
function joined(turns: readonly TemplateTurn[]): TemplateTurn {
  const first = turns[0]!
  if (turns.length === 1) return first
  const parts = turns.map(({ content, index }) => [content.owned(index), index] as const).filter(([{ length }]) => length > 0)
  return { ...first, content: paragraphs(parts) }
}

/** Joins texts with blank lines. A blank line belongs to the owner of the text after it. */
const paragraphs = (parts: readonly (readonly [Tracked, number])[]): Tracked =>
  Tracked.join(parts.flatMap(([part, owner], at) => (at === 0 ? [part] : [literal('\n\n').owned(owner), part])))
