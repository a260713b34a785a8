/** Owns the view of a dialogue: which stretches of its log are hidden when only chosen lines are to be seen. Pure. */
import type { ChatMessage } from '../../chat/message.js'
import type { Stretch } from '../../context/stretch.js'
import { span, type Span } from '../../core/span.js'
import type { Line, Range } from './lines.js'

export interface ViewOptions {
  readonly messages: readonly ChatMessage[]
  /** Lines that stay in sight. */
  readonly selected: readonly Range[]
  /** The first message that stays as it is, with all after it. */
  readonly before: number
  /** Characters that a stretch must have to be hidden: a marker takes some itself. */
  readonly least: number
  /** Widens characters of a message to the token borders around them. */
  readonly snap: (message: number, chars: Span) => Span
}

/**
 * What to hide, in order: of tool results all that was not selected, of what was said all but the first message and the last answer. What is to be
 * seen is widened to its token borders and the rest is hidden, never the other way round: a hidden stretch takes no character of a line in sight.
 */
export function hiddenIn(lines: readonly Line[], { messages, selected, before, least, snap }: ViewOptions): Stretch[] {
  const answer = messages.slice(0, before).findLastIndex(({ role, content }) => role === 'assistant' && content !== '')
  const hidden: Stretch[] = []
  const hide = (message: number, start: number, end: number) => {
    if (end - start >= least) hidden.push({ message, span: span(start, end) })
  }
  messages.slice(0, before).forEach(({ role, content }, message) => {
    if (role === 'system' || message === answer) return
    if (role !== 'tool') {
      hide(message, 0, content.length)
      return
    }
    let at = 0
    for (const seen of seenIn(lines, message, selected)) {
      const { start, end } = snap(message, seen)
      hide(message, at, start)
      at = Math.max(at, end)
    }
    hide(message, at, content.length)
  })
  return hidden
}

/** Selected stretches of a message, those beside each other as one. */
function seenIn(lines: readonly Line[], message: number, selected: readonly Range[]): Span[] {
  const spans: Span[] = []
  for (const line of lines) {
    if (line.message !== message || !selected.some(({ first, last }) => first <= line.number && line.number <= last)) continue
    const last = spans.at(-1)
    if (last?.end === line.span.start) spans[spans.length - 1] = span(last.start, line.span.end)
    else spans.push(line.span)
  }
  return spans
}
