/**
 * Finds the commits that computed the samples of logs. A benchmark that resumes a stopped run may be at a different commit than most
 * samples.
 */
import { readFileSync } from 'node:fs'
import type { Resumption } from '../../src/lab/log.js'

/** Samples, or turns of episodes, that one commit computed on one kind of processor. */
export interface Computed {
  /** Null if the log does not say. A log knows nothing about uncommitted changes. */
  readonly commit: string | null
  readonly cpu: string
  readonly samples: number
  /** The start dates of the first and the last run that computed some of them. */
  readonly dates: readonly [first: string, last: string]
}

/** A line of a log. Headers and `resumed` lines say which commit and machine made the lines behind them. */
type Line = Partial<Pick<Resumption, 'commit' | 'machine' | 'date'>> & { readonly kind: string }

/** Returns the commits and processors that computed the logs' samples, in the order of the logs. */
export const computedBy = (logs: readonly string[]): readonly Computed[] => computersOf(logs.flatMap(samplesIn))

/** The commit and processor that computed one sample, and the start date of that run. */
export type SampleOrigin = Pick<Computed, 'commit' | 'cpu'> & { readonly date: string }

function samplesIn(log: string): SampleOrigin[] {
  let now: SampleOrigin = { commit: null, cpu: 'unknown', date: '' }
  const found: SampleOrigin[] = []
  for (const text of readFileSync(log, 'utf8').trim().split('\n')) {
    const { kind, commit = null, machine, date } = JSON.parse(text) as Line
    if (machine !== undefined && date !== undefined) now = { commit, cpu: machine.cpu, date }
    if (kind === 'sample' || kind === 'turn') found.push(now)
  }
  return found
}

/** Returns an entry per commit and processor, in the order of the samples. */
export function computersOf(samples: readonly SampleOrigin[]): readonly Computed[] {
  const found = new Map<string, Computed>()
  for (const { commit, cpu, date } of samples) {
    const key = JSON.stringify([commit, cpu])
    const before = found.get(key) ?? { commit, cpu, samples: 0, dates: [date, date] as const }
    const [first, last] = [...before.dates, date].sort().filter((_, at) => at !== 1) as [string, string]
    found.set(key, { ...before, samples: before.samples + 1, dates: [first, last] })
  }
  return [...found.values()]
}
