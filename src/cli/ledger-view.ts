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
    ...(last.approximate > 0 ? [`${count(last.approximate)} approximate (${last.contract})`] : []),
    ...(last.fallback === null ? [] : [`exact instead: ${last.fallback}`]),
    ...(last.recomputeReason == null ? [] : [`computed again: ${last.recomputeReason}`]),
    ...(entries.length > 1 ? [plural(entries.length, 'step')] : []),
    duration(milliseconds),
  ].join(', ')
}

/**
 * One row a step; `submitted` is the addon's own count. A star: another contract was asked for, and the
 * step could not keep to it. `foreseen`: milliseconds expected of cache and prompt, where the machine is calibrated.
 */
export function ledgerTable(entries: readonly LedgerEntry[], rule: string): string[] {
  const right = (title: string) => ({ title, align: 'right' as const })
  const columns = [
    right('step'),
    { title: 'kind' },
    { title: 'contract' },
    ...['shown', 'reused', 'recomputed', 'new', 'approx.', 'aside', 'submitted', 'parked', 'ms', 'foreseen'].map(right),
  ]
  return table(
    columns,
    entries.map((entry) => {
      const { step, kind, contract, fallback, shown, reused, recomputed, fresh, approximate, side, submitted, parked } = entry
      const { cache, prefill, decode } = entry.milliseconds
      const figures = [shown, reused, recomputed, fresh, approximate, side, submitted, parked, cache + prefill + decode]
      const foreseen = entry.predicted === null ? '-' : count(entry.predicted)
      return [String(step), kind, fallback === null ? contract : `${contract} *`, ...figures.map(count), foreseen]
    }),
    { rule },
  )
}
