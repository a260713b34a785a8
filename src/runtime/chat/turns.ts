/** Conversation turns on their way to a template, and how they are joined for templates that take fewer kinds of them. */
import type { Value } from './jinja/values.js'
import { Tracked } from './tracked.js'

/** Text that we write into a prompt ourselves. */
export const literal = (text: string): Tracked => Tracked.of(text, 'template')

/** Text between tags on lines of their own. */
export const tagged = (tag: string, content: Tracked): Tracked =>
  Tracked.join([literal(`<${tag}>\n`), content, literal(`\n</${tag}>`)])

/** A turn on its way to the template. */
export interface TemplateTurn {
  readonly index: number
  readonly role: string
  readonly content: Tracked
  readonly rest: readonly (readonly [string, Value])[]
}

/** Text at the end of the system turn, which is made when there is none. */
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

/** A leading system turn joined to the user turn behind it, or made one. */
export function withoutSystem(turns: readonly TemplateTurn[]): readonly TemplateTurn[] {
  const [first, second, ...rest] = turns
  if (first?.role !== 'system') return turns
  const user = { ...first, role: 'user' }
  if (second === undefined) return [user]
  return second.role === 'user' ? [joined([user, second]), ...rest] : [user, second, ...rest]
}

/** System turns behind other turns, as user turns that say so. */
export function withLateSystems(turns: readonly TemplateTurn[]): TemplateTurn[] {
  const leading = leadingSystems(turns)
  return turns.map((turn, at) =>
    at < leading || turn.role !== 'system' ? turn : { ...turn, role: 'user', content: tagged('system_message', turn.content) },
  )
}

/** Leading system turns as one. */
export function withOneSystem(turns: readonly TemplateTurn[]): readonly TemplateTurn[] {
  const leading = leadingSystems(turns)
  return leading < 2 ? turns : [joined(turns.slice(0, leading)), ...turns.slice(leading)]
}

/** How many system turns stand before all others. */
function leadingSystems(turns: readonly TemplateTurn[]): number {
  const other = turns.findIndex(({ role }) => role !== 'system')
  return other === -1 ? turns.length : other
}

const emptyTurn = (index: number, role: string, content = Tracked.empty): TemplateTurn => ({ index, role, content, rest: [] })

/** With an empty user turn behind leading system turns, where none stands there. It belongs to the message that follows. */
export function opened(turns: readonly TemplateTurn[]): readonly TemplateTurn[] {
  const leading = leadingSystems(turns)
  const first = turns[leading]
  if (first?.role === 'user') return turns
  const index = (first ?? turns.at(-1))?.index ?? 0
  return [...turns.slice(0, leading), emptyTurn(index, 'user'), ...turns.slice(leading)]
}

/**
 * User turns and answers in turn: neighbours of one role are joined, and an empty turn of the other role (`answer`: the answer's content) stands between
 * those that cannot be. Calls and results do not count, but calls follow a user turn. An empty turn belongs to the message that it stands before and
 * depends only on what comes before that, so that a longer conversation shows it alike.
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

/** One turn of one or more of a role; each part keeps its owner. */
function joined(turns: readonly TemplateTurn[]): TemplateTurn {
  const first = turns[0]!
  if (turns.length === 1) return first
  const parts = turns.map(({ content, index }) => [content.owned(index), index] as const).filter(([{ length }]) => length > 0)
  return { ...first, content: paragraphs(parts) }
}

/** Texts with blank lines between; a blank line belongs to the owner of the text behind it. */
const paragraphs = (parts: readonly (readonly [Tracked, number])[]): Tracked =>
  Tracked.join(parts.flatMap(([part, owner], at) => (at === 0 ? [part] : [literal('\n\n').owned(owner), part])))
