/** Pure functions for the views of a thread: pieces of a message, descriptions of fragments, and the timeline of steps and edits. */
import { count, plural } from '../figures/numbers.js'
import type { ToolCall } from '../chat/message.js'
import { writeJson, writtenEntries } from '../core/written-json.js'
import type { ThreadEvent } from '../store/port.js'
import type { Fragment, LedgerEntry, ThreadDetail, ThreadMessage } from './wire.js'

type MessagePiece =
  | { readonly kind: 'text'; readonly start: number; readonly end: number }
  | { readonly kind: 'fragment'; readonly fragment: Fragment }

/**
 * Divides a message into its fragments and the text between them. The pieces are in order, not empty, and together cover the whole content.
 */
export function piecesOf({ message: { content }, fragments }: Pick<ThreadMessage, 'message' | 'fragments'>): MessagePiece[] {
  const pieces: MessagePiece[] = []
  let at = 0
  const upTo = (end: number) => {
    if (at < end) pieces.push({ kind: 'text', start: at, end })
  }
  for (const fragment of fragments) {
    upTo(fragment.span.start)
    pieces.push({ kind: 'fragment', fragment })
    at = fragment.span.end
  }
  upTo(content.length)
  return pieces
}

/** Returns the omission that hides the message as a whole from the model; undefined when none does. */
export const wholeOmissionOf = ({ omitted }: Pick<ThreadMessage, 'omitted'>): ThreadMessage['omitted'][number] | undefined =>
  omitted.find(({ omits }) => omits.part === 'message')

/** Whether folding the whole message would hide anything. */
export const isFoldable = (of: Pick<ThreadMessage, 'message' | 'fragments' | 'omitted'>): boolean =>
  of.message.role !== 'system' &&
  of.message.content !== '' &&
  wholeOmissionOf(of) === undefined &&
  (of.fragments.length === 0 || of.fragments.some(({ state }) => state.kind === 'open'))

/**
 * Returns the line that opened the code block in which the text ends; null when it ends outside of code. What follows the text is then
 * code, too.
 */
export function openFence(text: string): string | null {
  let open: { readonly line: string; readonly mark: string } | null = null
  for (const line of text.split('\n')) {
    const [, mark, info = ''] = /^[ \t]*(`{3,}|~{3,})(.*)$/.exec(line) ?? []
    if (mark === undefined) continue
    if (open !== null) {
      if (mark.startsWith(open.mark) && info.trim() === '') open = null
    } else if (mark.startsWith('~') || !info.includes('`')) open = { line: line.trim(), mark }
  }
  return open?.line ?? null
}

/** Returns a message's tokens for the context bar: those in the last step, or an estimate if no step has shown it. */
export const widthOf = ({ cost, shown }: Pick<ThreadMessage, 'cost' | 'shown'>): number =>
  Math.max(1, cost?.shown ?? Math.ceil(shown.length / 4))

/** Returns the beginning of a text on one line, at most `most` characters. */
export function excerptOf(text: string, most: number): string {
  const line = text
    .slice(0, 2 * most)
    .replace(/\s+/gu, ' ')
    .trim()
  return line.length > most || text.length > 2 * most ? `${line.slice(0, most)}…` : line
}

/** Says where the cells of a hidden fragment are. Empty when that is unknown. */
export function whereIs({ cells }: Pick<Fragment, 'cells'>): string[] {
  if (cells === undefined || cells.tokens === 0) return []
  const { live, parked, host, disk, gone } = cells
  const places = [
    [live, 'still in its sequence'],
    [parked, 'parked in the cache'],
    [host, 'in host memory'],
    [disk, 'on disk'],
    [gone, 'to be computed again'],
  ] as const
  return places.flatMap(([tokens, where]) => (tokens === 0 ? [] : [`${plural(tokens, 'token')} ${where}`]))
}

/** Says how many tokens hiding the fragment frees, or that it frees none. Empty for an open fragment, and for one without a price. */
export function pays({ price, state }: Fragment): readonly string[] {
  if (price === undefined || state.kind === 'open') return []
  const freed = price.open - price.hidden
  const about = price.about === true ? 'about ' : ''
  if (freed > 0) return [`frees ${about}${plural(freed, 'token')} of context`]
  return [freed === 0 ? 'does not pay: frees nothing' : `does not pay: ${about}${plural(-freed, 'token')} more`]
}

/** The markers by which the server finds a span of a message. */
type Markers = { readonly startMarker: string; readonly endMarker: string; readonly role: 'all' }

/**
 * Returns the two halves of a span as its markers. Returns null when the server would not find the span with them: it has fewer than two
 * characters, its message is a system message or hidden as a whole, or the same text occurs earlier.
 */
export function markersOf(messages: ThreadDetail['messages'], index: number, start: number, end: number): Markers | null {
  const text = messages[index]?.message.content.slice(start, end) ?? ''
  if (text.length < 2) return null
  const middle = text.length >> 1
  const [startMarker, endMarker] = [text.slice(0, middle), text.slice(middle)]
  const searched = messages.filter((each) => each.message.role !== 'system' && wholeOmissionOf(each) === undefined)
  const first = searched.find(({ message }) => message.content.includes(startMarker))
  const here = first?.index === index && first.message.content.indexOf(startMarker) === start
  return here && first.message.content.indexOf(endMarker, start + middle) === start + middle
    ? { startMarker, endMarker, role: 'all' }
    : null
}

/** Speed and savings of one answer. Null: unknown. */
export interface AnswerFigures {
  readonly rate: number | null
  /** How many more tokens a plain prefix cache would have computed. Negative: fewer. */
  readonly saved: number | null
}

/** Returns the figures of all answers in a thread, by message index. */
export function figuresOf({ ledger, messages }: Pick<ThreadDetail, 'ledger' | 'messages'>): ReadonlyMap<number, AnswerFigures> {
  return new Map(
    ledger.flatMap((entry): [number, AnswerFigures][] => {
      const own = entry.messages.at(-1)
      if (entry.kind !== 'answer' || own === undefined || messages[own.index]?.message.role !== 'assistant') return []
      const { plain, submitted, pending, milliseconds } = entry
      // If the answer continues a cut-off one, `generated` also counts the tokens of that one, which this step reused. `own.fresh` does
      // not.
      const decoded = Math.min((messages[own.index]?.generated ?? 0) - pending, own.fresh)
      return [
        [
          own.index,
          {
            rate: decoded > 0 && milliseconds.decode > 0 ? (1000 * decoded) / milliseconds.decode : null,
            saved: plain === undefined ? null : plain - submitted,
          },
        ],
      ]
    }),
  )
}

/** Says how fast an answer was, and how many tokens it did not have to compute. Empty when both are unknown. */
export function figuresInWords({ rate, saved }: AnswerFigures): string[] {
  return [
    ...(rate === null ? [] : [`${rate < 10 ? rate.toFixed(1) : count(rate)} tokens/s`]),
    ...(saved === null || saved === 0
      ? []
      : [saved > 0 ? `${plural(saved, 'token')} not computed` : `${plural(-saved, 'token')} computed more than a prefix cache`]),
  ]
}

// The timeline of a thread: its steps, and the edits before each. Pure.

export type TimelineItem =
  | { readonly kind: 'step'; readonly entry: LedgerEntry }
  /** An edit by a tool call of the model. */
  | { readonly kind: 'call'; readonly name: string; readonly on: string }
  /** An edit by a person or a program. */
  | {
      readonly kind: 'edit'
      readonly what: Exclude<NonNullable<ThreadEvent['what']>, 'named'>
      readonly fragments: readonly string[]
      readonly saves: number
    }
  /** A fold by the server's policy, a change by the client, or a new title. */
  | { readonly kind: 'event'; readonly event: ThreadEvent }

/** Tools whose calls are shown as edits. */
const EDITING = new Set(['fragment_context', 'fold_fragment', 'restore_fragment', 'summarize_fragment'])

/**
 * Returns the steps in order. After each step come the edits by tool calls in its answer, then those by people, programs and the server.
 */
export function timelineOf({ ledger, messages, events }: Pick<ThreadDetail, 'ledger' | 'messages' | 'events'>): TimelineItem[] {
  const editsAfter = (count: number): TimelineItem[] => together(events.filter(({ after }) => after === count))
  return [
    ...editsAfter(0),
    ...ledger.flatMap((entry, at): TimelineItem[] => [
      { kind: 'step', entry },
      ...callsOf(entry, messages),
      ...editsAfter(at + 1),
    ]),
  ]
}

/** Joins consecutive edits of the same kind into one item. */
function together(events: readonly ThreadEvent[]): TimelineItem[] {
  const items: TimelineItem[] = []
  for (const event of events) {
    const { kind, what, folded, saves } = event
    const last = items.at(-1)
    if (kind !== 'edit' || what === undefined || what === 'named') items.push({ kind: 'event', event })
    else if (last?.kind === 'edit' && last.what === what)
      items[items.length - 1] = { ...last, fragments: [...last.fragments, ...folded], saves: last.saves + saves }
    else items.push({ kind: 'edit', what, fragments: folded, saves })
  }
  return items
}

/**
 * Returns the edits by tool calls in a step's answer. The answer is the last message of the ledger entry. Steps that wrote a summary have
 * none, because their messages are not in the thread.
 */
function callsOf(entry: LedgerEntry, messages: ThreadDetail['messages']): TimelineItem[] {
  const answer = entry.kind === 'answer' ? messages[entry.messages.at(-1)?.index ?? -1]?.message : undefined
  if (answer?.role !== 'assistant') return []
  return (answer.toolCalls ?? [])
    .filter(({ name }) => EDITING.has(name))
    .map(({ name, arguments: args }) => ({ kind: 'call', name, on: valuesIn(args).join(', ') }))
}

/**
 * Says for each hidden fragment, by id, what hid it: a call of the model, a person or program, or the server, with its reason. A fragment
 * that was hidden before the thread branched off has no entry.
 */
export function hiddenBy(thread: Pick<ThreadDetail, 'ledger' | 'messages' | 'events'>): ReadonlyMap<string, string> {
  const hidden = new Set(fragmentsOf(thread).flatMap(({ id, state }) => (state.kind === 'open' ? [] : [id as string])))
  const reasons = new Map<string, string>()
  for (const item of timelineOf(thread)) {
    if (item.kind === 'step') continue
    const [ids, reason] = hidingOf(item)
    for (const id of ids) if (hidden.has(id)) reasons.set(id, reason)
  }
  return reasons
}

function hidingOf(item: Exclude<TimelineItem, { kind: 'step' }>): readonly [readonly string[], string] {
  if (item.kind === 'call') return [HIDING.has(item.name) ? item.on.split(', ') : [], `by the model (${item.name})`]
  if (item.kind === 'edit') {
    const isHiding = item.what === 'folded' || item.what === 'summarised'
    return [isHiding ? item.fragments : [], 'by a person or a program']
  }
  return [item.event.folded, `by the server: ${excerptOf(item.event.reason, 120)}`]
}

/** What the page knows of hidden fragments beyond the fragments themselves. */
export interface HiddenPieces {
  /** What hid each fragment, by its id. */
  readonly by: ReadonlyMap<string, string>
  /** Ids of the fragments whose edit waits for the end of an answer. */
  readonly waiting: ReadonlySet<string>
}

const HIDING = new Set(['fold_fragment', 'summarize_fragment'])

const valuesIn = (args: object): string[] => writtenEntries(args).map(({ value, text }) => text ?? String(value))

/**
 * Returns a call's arguments as JSON, with their original digits and order. If they are not a JSON object, returns the raw text. `indent`:
 * spaces per level.
 */
export const argumentsOf = ({ arguments: args, malformed, text }: ToolCall, indent = 0): string =>
  malformed ?? text ?? writeJson(args, indent)

export const fragmentsOf = ({ messages }: Pick<ThreadDetail, 'messages'>): readonly Fragment[] =>
  messages.flatMap(({ fragments }) => fragments)
