/** Owns the order of things in a thread: its steps, and the edits that came before each. Pure. */
import type { Fragment, LedgerEntry, Thread } from './wire.js'

/** An edit that this page saw happen, whoever made it. */
export interface SeenEdit {
  readonly fragment: string
  readonly what: 'cut' | 'folded' | 'restored' | 'summarised'
  /** Ledger entries there were by then. */
  readonly after: number
}

export type TimelineItem =
  | { readonly kind: 'step'; readonly entry: LedgerEntry }
  /** By the model's own call. */
  | { readonly kind: 'call'; readonly name: string; readonly on: string }
  /** By a person or a program. */
  | { readonly kind: 'edit'; readonly what: SeenEdit['what']; readonly fragments: readonly string[] }
  /** By the server, to its own rules. */
  | { readonly kind: 'policy'; readonly event: Thread['events'][number] }

/** Names of the tools that change what is shown. */
const EDITING = new Set(['fragment_context', 'fold_fragment', 'restore_fragment', 'summarize_fragment'])

/** Steps in order; after each the edits that its answer called for, then those seen from outside, then the server's own. */
export function timelineOf(
  { ledger, messages, events }: Pick<Thread, 'ledger' | 'messages' | 'events'>,
  seen: readonly SeenEdit[],
): TimelineItem[] {
  const editsAfter = (count: number): TimelineItem[] => [
    ...together(seen.filter(({ after }) => after === count)),
    ...events.filter(({ after }) => after === count).map((event) => ({ kind: 'policy', event }) as const),
  ]
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
function together(edits: readonly SeenEdit[]): TimelineItem[] {
  const items: { kind: 'edit'; what: SeenEdit['what']; fragments: string[] }[] = []
  for (const { what, fragment } of edits) {
    const last = items.at(-1)
    if (last?.what === what) last.fragments.push(fragment)
    else items.push({ kind: 'edit', what, fragments: [fragment] })
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

/** What was done to fragments between two looks at a thread in which nothing else happened; what the model did itself is not among it. */
export function editsBetween(before: Thread, now: Thread): SeenEdit[] {
  if (before.count !== now.count || before.running || now.running) return []
  const byTheServer = new Set(now.events.slice(before.events.length).flatMap(({ folded }) => folded))
  const known = new Map(fragmentsOf(before).map((fragment) => [fragment.id, fragment]))
  const after = now.ledger.length
  return fragmentsOf(now).flatMap(({ id, state }): SeenEdit[] => {
    const old = known.get(id)
    if (old === undefined) return [{ fragment: id, what: 'cut', after }]
    if (JSON.stringify(old.state) === JSON.stringify(state)) return []
    if (state.kind === 'folded' && byTheServer.has(id)) return []
    return [{ fragment: id, what: state.kind === 'open' ? 'restored' : state.kind, after }]
  })
}

export const fragmentsOf = ({ messages }: Pick<Thread, 'messages'>): readonly Fragment[] =>
  messages.flatMap(({ fragments }) => fragments)
