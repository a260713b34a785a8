/** Conversation turns on their way to a template, and how they are joined for templates that take fewer kinds of them. */
import type { Value } from './jinja/library.js'
import { Tracked } from './text/tracked.js'

const literal = (text: string) => Tracked.of(text, 'template')

/** A turn on its way to the template. */
export interface Turn {
  readonly index: number
  readonly role: string
  readonly content: Tracked
  readonly rest: readonly (readonly [string, Value])[]
}

/** Text at the end of the system turn, which is made when there is none. */
export function withPreamble(turns: readonly Turn[], text: Tracked): Turn[] {
  const [first, ...rest] = turns
  if (first?.role === 'system') return [{ ...first, content: paragraphs(first.content, text, first.index) }, ...rest]
  return [{ index: first?.index ?? 0, role: 'system', content: text, rest: [] }, ...turns]
}

/** System turns joined to the next user turn (or made one). */
export function withoutSystem(turns: readonly Turn[]): Turn[] {
  const made: Turn[] = []
  let waiting: Turn | null = null
  for (const turn of turns) {
    if (turn.role === 'system') waiting = waiting === null ? { ...turn, role: 'user' } : joined(waiting, turn)
    else if (waiting === null) made.push(turn)
    else {
      made.push(...(turn.role === 'user' ? [joined(waiting, turn)] : [waiting, turn]))
      waiting = null
    }
  }
  return waiting === null ? made : [...made, waiting]
}

/** Neighbouring user turns, and neighbouring assistant turns without calls, as one. */
export function merged(turns: readonly Turn[]): Turn[] {
  const made: Turn[] = []
  for (const turn of turns) {
    const last = made.at(-1)
    if (last !== undefined && last.role === turn.role && turn.role !== 'tool' && last.rest.length === 0)
      made[made.length - 1] = joined(last, turn)
    else made.push(turn)
  }
  return made
}

/** One turn out of two; each part keeps its owner, the second's role wins. */
function joined(first: Turn, second: Turn): Turn {
  const content = paragraphs(first.content.owned(first.index), second.content.owned(second.index), second.index)
  return { index: first.index, role: second.role, content, rest: second.rest }
}

/** Two texts with a blank line between; the blank line belongs to `owner`. */
function paragraphs(first: Tracked, second: Tracked, owner: number): Tracked {
  const parts = [first, second].filter(({ length }) => length > 0)
  return Tracked.join(parts.flatMap((part, at) => (at === 0 ? [part] : [literal('\n\n').owned(owner), part])))
}
