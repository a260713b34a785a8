/** Owns the order of things in a thread: its steps, and the edits that came before each. Pure. */
import type { Fragment, LedgerEntry, Thread } from './wire.js'

type ThreadEvent = Thread['events'][number]

export type TimelineItem =
  | { readonly kind: 'step'; readonly entry: LedgerEntry }
  /** By the model's own call. */
  | { readonly kind: 'call'; readonly name: string; readonly on: string }
  /** By a person or a program. */
  | {
      readonly kind: 'edit'
      readonly what: NonNullable<ThreadEvent['what']>
      readonly fragments: readonly string[]
      readonly saves: number
    }
  /** By the server, to its own rules, or by the client. */
  | { readonly kind: 'event'; readonly event: ThreadEvent }

/** Names of the tools that change what is shown. */
const EDITING = new Set(['fragment_context', 'fold_fragment', 'restore_fragment', 'summarize_fragment'])

/** Steps in order; after each the edits that its answer called for, then those by people, programs and the server. */
export function timelineOf({ ledger, messages, events }: Pick<Thread, 'ledger' | 'messages' | 'events'>): TimelineItem[] {
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

/** Neighbours of one kind as one item. */
function together(events: readonly ThreadEvent[]): TimelineItem[] {
  const items: TimelineItem[] = []
  for (const event of events) {
    const { kind, what, folded, saves } = event
    const last = items.at(-1)
    if (kind !== 'edit' || what === undefined) items.push({ kind: 'event', event })
    else if (last?.kind === 'edit' && last.what === what)
      items[items.length - 1] = { ...last, fragments: [...last.fragments, ...folded], saves: last.saves + saves }
    else items.push({ kind: 'edit', what, fragments: folded, saves })
  }
  return items
}

/** The answer a step wrote is the last message of its entry; a summary's messages are not the thread's. */
function callsOf(entry: LedgerEntry, messages: Thread['messages']): TimelineItem[] {
  const answer = entry.kind === 'answer' ? messages[entry.messages.at(-1)?.index ?? -1]?.message : undefined
  if (answer?.role !== 'assistant') return []
  return (answer.toolCalls ?? [])
    .filter(({ name }) => EDITING.has(name))
    .map(({ name, arguments: args }) => ({ kind: 'call', name, on: Object.values(args).map(String).join(', ') }))
}

export const fragmentsOf = ({ messages }: Pick<Thread, 'messages'>): readonly Fragment[] =>
  messages.flatMap(({ fragments }) => fragments)
