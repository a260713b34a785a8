/** Says which commits computed the samples of logs. A bench that continues a stopped run may be at another commit than most of its samples. */
import { readFileSync } from 'node:fs'
import type { Resumption } from '../../src/lab/log.js'

/** Samples, or turns of episodes, that one commit computed on one kind of processor. */
export interface Computed {
  /** Null when the log does not say it. A log knows nothing of changes that were not committed. */
  readonly commit: string | null
  readonly cpu: string
  readonly samples: number
  /** When runs that computed some of them began: the first one and the last one. */
  readonly dates: readonly [first: string, last: string]
}

/** A line of a log. Only headers and the lines `resumed` say who computed the lines after them. */
type Line = Partial<Pick<Resumption, 'commit' | 'machine' | 'date'>> & { readonly kind: string }

/** Returns who computed the samples of the logs: an entry for each commit and processor, in the order of the logs. */
export function computedBy(logs: readonly string[]): readonly Computed[] {
  const found = new Map<string, Computed>()
  for (const log of logs) {
    let now: Omit<Computed, 'samples' | 'dates'> & { readonly date: string } = { commit: null, cpu: 'unknown', date: '' }
    for (const text of readFileSync(log, 'utf8').trim().split('\n')) {
      const { kind, commit = null, machine, date } = JSON.parse(text) as Line
      if (machine !== undefined && date !== undefined) now = { commit, cpu: machine.cpu, date }
      if (kind !== 'sample' && kind !== 'turn') continue
      const { date: begun, ...by } = now
      const before = found.get(JSON.stringify(by)) ?? { ...by, samples: 0, dates: [begun, begun] as const }
      const [first, last] = [...before.dates, begun].sort().filter((_, at) => at !== 1) as [string, string]
      found.set(JSON.stringify(by), { ...before, samples: before.samples + 1, dates: [first, last] })
    }
  }
  return [...found.values()]
}
