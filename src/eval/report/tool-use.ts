/** Owns which tools answers used: how often, how evenly, in which order, and how much of what was folded came back. */
import type { Answer } from '../run/result.js'

export interface ToolUse {
  readonly samples: number
  /** Of all calls, failed ones included. */
  readonly calls: number
  readonly failed: number
  /** Samples without a call. */
  readonly without: number
  /** Calls by tool, over all samples. */
  readonly counts: Readonly<Record<string, number>>
  /** Shannon entropy of `counts` as shares, in bits: 0 for one tool only, 2.58 for six alike. Null without calls. */
  readonly entropy: number | null
  /** Restored fragments for every fold or summary, failed calls left out; null where nothing was folded. */
  readonly restoreRate: number | null
  /** Which tools the first calls of samples were, the second ones, ...: counts by tool. */
  readonly order: readonly Readonly<Record<string, number>>[]
}

const FOLDS: readonly string[] = ['fold_fragment', 'summarize_fragment']
const RESTORE = 'restore_fragment'

export function toolUse(answers: readonly Answer[]): ToolUse {
  const calls = answers.flatMap((answer) => answer.calls)
  const carriedOut = calls.filter(({ failed }) => !failed)
  const folds = carriedOut.filter(({ name }) => FOLDS.includes(name)).length
  const longest = Math.max(0, ...answers.map((answer) => answer.calls.length))
  return {
    samples: answers.length,
    calls: calls.length,
    failed: calls.length - carriedOut.length,
    without: answers.filter((answer) => answer.calls.length === 0).length,
    counts: counted(calls.map(({ name }) => name)),
    entropy: entropy(Object.values(counted(calls.map(({ name }) => name)))),
    restoreRate: folds === 0 ? null : carriedOut.filter(({ name }) => name === RESTORE).length / folds,
    order: Array.from({ length: longest }, (_, at) => counted(answers.flatMap((answer) => answer.calls[at]?.name ?? []))),
  }
}

/** In bits; null where nothing was counted. */
export function entropy(counts: readonly number[]): number | null {
  const all = counts.reduce((sum, count) => sum + count, 0)
  if (all === 0) return null
  const parts = counts.filter((count) => count > 0).map((count) => -(count / all) * Math.log2(count / all))
  // Never -0.
  return Math.max(
    0,
    parts.reduce((sum, part) => sum + part, 0),
  )
}

/** Names are a model's own, so that any may come, `constructor` too. */
function counted(names: readonly string[]): Readonly<Record<string, number>> {
  const counts = new Map<string, number>()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return Object.fromEntries(counts)
}
