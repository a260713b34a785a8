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
export const computedBy = (logs: readonly string[]): readonly Computed[] => computersOf(logs.flatMap(samplesIn))

/** Who computed one sample, and when that run began. */
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

/** Returns an entry for each commit and processor, in the order of the samples. */
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
