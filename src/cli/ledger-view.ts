/** Owns how the ledger reads: one line for a turn, a table for a conversation. */
import type { LedgerEntry } from '../kv/ledger.js'
import { count, duration, plural } from './figures.js'
import { table } from './table.js'

/** One line for the steps of one turn: the last step's context, and what the turn cost; empty without steps. */
export function ledgerLine(entries: readonly LedgerEntry[]): string {
  const last = entries.findLast(({ kind }) => kind === 'answer') ?? entries.at(-1)
  if (last === undefined) return ''
  const sum = (key: 'reused' | 'recomputed' | 'fresh' | 'side'): number => entries.reduce((total, entry) => total + entry[key], 0)
  const milliseconds = entries.reduce(
    (total, { milliseconds: { cache, prefill, decode } }) => total + cache + prefill + decode,
    0,
  )
  const side = sum('side')
  return [
    plural(last.shown, 'token in context', 'tokens in context'),
    `${count(sum('reused'))} reused`,
    `${count(sum('recomputed'))} recomputed`,
    `${count(sum('fresh'))} new`,
    ...(side > 0 ? [`${count(side)} aside`] : []),
    ...(entries.length > 1 ? [plural(entries.length, 'step')] : []),
    duration(milliseconds),
  ].join(', ')
}

/** One row a step; `submitted` is the addon's own count. */
export function ledgerTable(entries: readonly LedgerEntry[], rule: string): string[] {
  const right = (title: string) => ({ title, align: 'right' as const })
  const columns = [
    right('step'),
    { title: 'kind' },
    ...['shown', 'reused', 'recomputed', 'new', 'aside', 'submitted', 'parked', 'ms'].map(right),
  ]
  return table(
    columns,
    entries.map(
      ({ step, kind, shown, reused, recomputed, fresh, side, submitted, parked, milliseconds: { cache, prefill, decode } }) => [
        String(step),
        kind,
        ...[shown, reused, recomputed, fresh, side, submitted, parked, cache + prefill + decode].map(count),
      ],
    ),
    { rule },
  )
}
