/** Owns the view of a dialogue: its numbered lines, and which stretches of its log are hidden when only chosen ones are to be seen. Pure. */
import type { ChatMessage } from '../../chat/message.js'
import type { Stretch } from '../../context/stretch.js'
import { span, type Span } from '../../core/span.js'

// The numbered lines of a dialogue: what a line of a tool result is, and which number it has. Pure.

/** A line of a tool result. */
interface ResultLine {
  /** From 1, over all tool results of the dialogue. */
  readonly number: number
  /** Index of the message. */
  readonly message: number
  /** Characters of the message's content, line end included; the lines of a message cover its content. */
  readonly span: Span
}

/** Lines, first and last included. */
export interface Range {
  readonly first: number
  readonly last: number
}

/**
 * The lines of all tool results, in order. Text has the lines that it has; JSON on one line has one a field, without a character of it changed,
 * so that a selection is not all or nothing.
 */
export function linesOf(messages: readonly ChatMessage[]): readonly ResultLine[] {
  const lines: ResultLine[] = []
  messages.forEach(({ role, content }, message) => {
    if (role !== 'tool' || content === '') return
    let start = 0
    for (const end of endsOf(content)) {
      lines.push({ number: lines.length + 1, message, span: span(start, end) })
      start = end
    }
  })
  return lines
}

/** The line's text without its end, as it stands in the log. */
export const textOf = (messages: readonly ChatMessage[], { message, span: { start, end } }: ResultLine): string =>
  (messages[message]?.content ?? '').slice(start, end).replace(/\r?\n$/, '')

/** Lines as a helper reads them: each behind its number. */
export const numbered = (messages: readonly ChatMessage[], lines: readonly ResultLine[]): string =>
  lines.map((line) => `${line.number}| ${textOf(messages, line)}`).join('\n')

/** Where each line ends; the last one at the end of the content. */
function endsOf(content: string): number[] {
  const ends = content.includes('\n') || !isJson(content) ? lineEnds(content) : fieldEnds(content)
  return ends.at(-1) === content.length ? ends : [...ends, content.length]
}

const lineEnds = (content: string): number[] => Array.from(content.matchAll(/\n/g), ({ index }) => index + 1)

/** Behind every comma and opening bracket that is not in a string, with the white space after it. */
function fieldEnds(content: string): number[] {
  const ends: number[] = []
  for (const { 0: token, index } of content.matchAll(/"(?:[^"\\]|\\.)*"|[,{[]\s*/g))
    if (!token.startsWith('"')) ends.push(index + token.length)
  return ends
}

function isJson(text: string): boolean {
  if (!/^\s*[[{]/.test(text)) return false
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/**
 * A tool result as a log that helpers read keeps it: JSON one field a line (not a character more, for an indent costs tokens), and a number in front
 * of its first line and of every one whose number is a multiple of `every`. Between them a reader counts.
 *
 * @param before lines of the dialogue so far
 */
export function written(result: string, before: number, every: number): string {
  const onOneLine = !result.includes('\n') && isJson(result)
  let at = 0
  const lines = onOneLine ? endsOf(result).map((end) => result.slice(at, (at = end))) : result.split('\n')
  return lines
    .map((line, index) => (index === 0 || (before + index + 1) % every === 0 ? `${before + index + 1}| ${line}` : line))
    .join('\n')
}

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
export function hiddenIn(lines: readonly ResultLine[], { messages, selected, before, least, snap }: ViewOptions): Stretch[] {
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
function seenIn(lines: readonly ResultLine[], message: number, selected: readonly Range[]): Span[] {
  const spans: Span[] = []
  for (const line of lines) {
    if (line.message !== message || !selected.some(({ first, last }) => first <= line.number && line.number <= last)) continue
    const last = spans.at(-1)
    if (last?.end === line.span.start) spans[spans.length - 1] = span(last.start, line.span.end)
    else spans.push(line.span)
  }
  return spans
}
