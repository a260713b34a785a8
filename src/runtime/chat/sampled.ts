/** Replaces the template's rendering of an answer by the answer's sampled tokens, if both say the same. Then its cells stay valid. */
import type { Span } from '../core/span.js'
import { comparableJson } from '../core/written-json.js'
import type { ChatMessage, ToolCall } from './message.js'
import type { FinishedReply, ParsedReply } from './parser.js'
import { type Field, type Origin, Tracked } from './tracked.js'
import type { Encoder, Fixed } from './tokens/encoder.js'

export interface Substituted {
  readonly text: Tracked
  readonly fixed: readonly Fixed[]
  /** Indexes of messages whose `sampled` cannot be used, because the template shows something else. */
  readonly refused: readonly number[]
}

interface SampledContext {
  readonly encoder: Encoder
  /** The text of the generation prompt, for answers that do not store their own. */
  readonly prompt: string
  /** The text after an answer, for templates that do not end answers with a control token. */
  readonly ending: string
  /** Parses an answer's text again. `message` is the message that it was parsed to the first time. */
  readonly parse: (text: string, message: ChatMessage) => FinishedReply
  /** Indexes of messages with edits. These keep the template's rendering, unless it equals the sampled text exactly. */
  readonly edited: ReadonlySet<number>
}

/**
 * Replaces the template's rendering of each answer by its sampled tokens, if both say the same. `starts`: where each message begins in the
 * text (`messageStarts`).
 */
export function substitute(
  text: Tracked,
  starts: readonly number[],
  messages: readonly ChatMessage[],
  context: SampledContext,
): Substituted {
  const parts: Tracked[] = []
  const fixed: Fixed[] = []
  const refused: number[] = []
  let at = 0
  let shift = 0
  messages.forEach((message, index) => {
    if (message.sampled === undefined || message.sampled.tokens.length === 0) return
    const region: Span = { start: starts[index] ?? 0, end: starts[index + 1] ?? 0 }
    const found = place(text.slice(region.start, region.end), message, index, context)
    if (found === null) {
      refused.push(index)
      return
    }
    const start = region.start + found.header
    parts.push(text.slice(at, start), found.text)
    at = region.start + found.end
    const from = start + shift + found.opened
    shift += found.text.length - (at - start)
    fixed.push({ start: from, end: at + shift, tokens: message.sampled.tokens })
  })
  if (parts.length === 0) return { text, fixed, refused }
  return { text: Tracked.join([...parts, text.slice(at)]), fixed, refused }
}

interface PlacedAnswer {
  /** Offset in the message's text at which the answer begins. `end`: offset of the text that ends the answer. Both in characters. */
  readonly header: number
  readonly end: number
  /** The new text between `header` and `end`: first `opened` characters that belong to the generation prompt, then the sampled text. */
  readonly text: Tracked
  readonly opened: number
}

function place(
  region: Tracked,
  message: ChatMessage,
  index: number,
  { encoder, ending, parse, edited, ...context }: SampledContext,
): PlacedAnswer | null {
  const { text: sampled = '', prompt = context.prompt } = message.sampled ?? {}
  const header = region.value.startsWith(prompt) ? prompt.length : headerLength(prompt)
  if (!region.value.startsWith(prompt.slice(0, header))) return null
  const end = endOfAnswer(region, index, encoder, ending)
  if (end < header) return null
  const body = region.slice(header, end)
  const opened = prompt.slice(header)
  const full = opened + sampled
  if (body.value === full) return { header, end, text: body, opened: opened.length }
  if (edited.has(index)) return null
  const parsed = parse(full, message)
  // Templates write a bare call (syntax/bare-calls.ts) in their own syntax, which not every parser reads. So a bare call is compared with
  // the message instead.
  const isBare = parsed.isBareClosed !== undefined && sameReply(parsed, readAs(message), '') && showsAll(body, message, index)
  if (!isBare && !sameReply(parsed, parse(body.value, message), body.value)) return null
  const before = commonPrefix(full, body.value)
  const after = commonSuffix(full.slice(before), body.value.slice(before))
  const origin: Origin = 'unknown'
  const between = Tracked.of(full.slice(before, full.length - after), origin)
  const made = Tracked.join([body.slice(0, before), between.owned(index), body.slice(body.length - after)])
  return { header, end, text: made, opened: opened.length }
}

const readAs = ({ content, reasoning, toolCalls = [] }: ChatMessage): ParsedReply => ({
  content,
  toolCalls,
  ...(reasoning === undefined ? {} : { reasoning }),
})

/** Whether the template shows the answer's content, its reasoning and the names of its calls. */
function showsAll(body: Tracked, { content, reasoning = '', toolCalls = [] }: ChatMessage, index: number): boolean {
  const shown = (field: Field) =>
    body.pieces.flatMap(({ text, origin }) =>
      typeof origin !== 'string' && origin.field === field && origin.message === index ? [text] : [],
    )
  const calls = shown('call')
  return (
    (content.trim() === '' || shown('content').length > 0) &&
    (reasoning.trim() === '' || shown('reasoning').length > 0) &&
    toolCalls.every(({ name }) => calls.some((text) => text.includes(name)))
  )
}

/**
 * Returns how many characters of the generation prompt come before a tag that opens reasoning; all if there is no such tag. A template may
 * leave out that tag and what follows when it shows the answer later.
 */
function headerLength(prompt: string): number {
  const opens = prompt.search(/<think>|\[THINK\]|<\|channel\|>/)
  return opens === -1 ? prompt.length : opens
}

/** Returns the offset of the text that ends an answer: the last control token after the message's own text, or the known ending. */
function endOfAnswer(region: Tracked, index: number, encoder: Encoder, ending: string): number {
  let copied = 0
  let at = 0
  for (const { text, origin } of region.pieces) {
    at += text.length
    if (typeof origin !== 'string' && origin.message === index) copied = at
  }
  const control = encoder.controls(region).findLast((occurrence) => occurrence.at >= copied)
  if (control !== undefined) return control.at
  return ending !== '' && region.value.endsWith(ending) ? region.length - ending.length : region.length
}

function commonPrefix(a: string, b: string): number {
  let length = 0
  while (length < a.length && length < b.length && a.charCodeAt(length) === b.charCodeAt(length)) length++
  return length
}

function commonSuffix(a: string, b: string): number {
  let length = 0
  while (length < a.length && length < b.length && a.charCodeAt(a.length - 1 - length) === b.charCodeAt(b.length - 1 - length))
    length++
  return length
}

/** Compares content, reasoning and calls, ignoring call ids and white space at the ends. `text`: what `shown` was parsed from. */
function sameReply(sampled: ParsedReply, shown: ParsedReply, text: string): boolean {
  const same = (a = '', b = '') => a.trim() === b.trim()
  const bare = (text: string) => text.replaceAll(/\s+/g, '')
  return (
    (same(sampled.content, shown.content) || (sampled.toolCalls.length > 0 && bare(sampled.content) === bare(shown.content))) &&
    same(sampled.reasoning, shown.reasoning) &&
    sampled.toolCalls.length === shown.toolCalls.length &&
    sampled.toolCalls.every((call, index) => sameCall(call, shown.toolCalls[index], text))
  )
}

/**
 * Whether two calls say the same. A malformed call counts as the same if the template shows its raw text, in another malformed call or as a
 * parameter of the same tool.
 */
function sameCall(sampled: ToolCall, shown: ToolCall | undefined, text: string): boolean {
  if (shown === undefined) return false
  if (sampled.malformed !== undefined) {
    const raw = sampled.malformed.trim()
    return shown.malformed?.includes(raw) === true || (shown.name === sampled.name && text.includes(raw))
  }
  return (
    sampled.name === shown.name &&
    shown.malformed === undefined &&
    comparableJson(sampled.arguments) === comparableJson(shown.arguments)
  )
}
