/** Line numbers of tool results, and which spans of the conversation to hide. Pure. */
import type { ChatMessage } from '../../chat/message.js'
import type { Stretch } from '../../context/stretch.js'
import { span, type Span } from '../../core/span.js'

// Lines of tool results and their numbers.

/** One line of a tool result. */
interface ResultLine {
  /** The line's number. Counted from 1 over all tool results of the conversation. */
  readonly number: number
  /** Index of the message, from 0. */
  readonly message: number
  /** Characters of the message's content, line end included. The lines of one message together cover its content. */
  readonly span: Span
}

/** A range of line numbers, both ends included. */
export interface Range {
  readonly first: number
  readonly last: number
}

/**
 * Returns the lines of all tool results, in order. JSON that is all on one line is split after each field, so that a helper can choose
 * single fields; no character changes.
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

/** Returns a line's text without the line end. */
export const textOf = (messages: readonly ChatMessage[], { message, span: { start, end } }: ResultLine): string =>
  (messages[message]?.content ?? '').slice(start, end).replace(/\r?\n$/, '')

/** Writes lines for a helper, each after its number. */
export const numbered = (messages: readonly ChatMessage[], lines: readonly ResultLine[]): string =>
  lines.map((line) => `${line.number}| ${textOf(messages, line)}`).join('\n')

/** Returns the end offset of each line. The last one is the end of the content. */
function endsOf(content: string): number[] {
  const ends = content.includes('\n') || !isJson(content) ? lineEnds(content) : fieldEnds(content)
  return ends.at(-1) === content.length ? ends : [...ends, content.length]
}

const lineEnds = (content: string): number[] => Array.from(content.matchAll(/\n/g), ({ index }) => index + 1)

/**
 * Returns the offsets after each comma and opening bracket of JSON text. Strings are skipped; white space after the mark belongs to the
 * line before.
 */
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
 * Writes a tool result with line numbers, for helpers to name lines by. JSON gets one field per line, not indented, because indents cost
 * tokens. The first line carries its number, and so does every line whose number is a multiple of `every`.
 *
 * @param before how many lines the conversation's tool results have so far
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
  /** Ranges of lines that stay visible. */
  readonly selected: readonly Range[]
  /** Indexes of messages that are hidden as a whole already. */
  readonly omitted: ReadonlySet<number>
  /** Index of the message that is being answered, if it comes before `before`. It stays visible. Default: none. */
  readonly question?: number
  /** Index of the first message that may not be hidden. Later messages may not be hidden either. */
  readonly before: number
  /** The shortest span, in characters, that is hidden. A marker takes characters itself. */
  readonly least: number
  /** Widens a span of a message to the token borders around it. */
  readonly snap: (message: number, chars: Span) => Span
}

/**
 * Returns the spans to hide, in order. Of tool results, all lines that were not selected. Of other messages, all but system messages, the
 * last answer and the question.
 * Visible lines are widened to token borders first, so no hidden span takes a character of a visible line.
 */
export function hiddenIn(
  lines: readonly ResultLine[],
  { messages, selected, omitted, question, before, least, snap }: ViewOptions,
): Stretch[] {
  const answer = messages
    .slice(0, before)
    .findLastIndex(({ role, content }, message) => role === 'assistant' && content !== '' && !omitted.has(message))
  const hidden: Stretch[] = []
  const hide = (message: number, start: number, end: number) => {
    if (end - start >= least) hidden.push({ message, span: span(start, end) })
  }
  messages.slice(0, before).forEach(({ role, content }, message) => {
    if (role === 'system' || message === answer || message === question || omitted.has(message)) return
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

/** Returns the spans of a message's selected lines. Adjacent lines become one span. */
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
