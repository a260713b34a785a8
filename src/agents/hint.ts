/** Owns the advice to a model whose calls are right but in an order that costs more than it need. */
import type { Fragment } from '../context/fragment.js'
import type { CallReport } from './events.js'

/**
 * A line for the result of this step's fold, null when there is nothing to say: folded one a step from first to last, every fold has all that
 * follows computed again under contract `exact`. Pure.
 *
 * @param before the calls of the step before
 * @param now the calls of this step
 */
export function foldOrderHint(
  fragments: readonly Pick<Fragment, 'id'>[],
  before: readonly CallReport[],
  now: readonly CallReport[],
): string | null {
  const earlier = onlyFold(before)
  const later = onlyFold(now)
  if (earlier === null || later === null) return null
  const place = (id: string) => fragments.findIndex((fragment) => fragment.id === id)
  if (place(later) <= place(earlier)) return null
  return 'Hint: each fold has the text after it read again. Fold several fragments in one step, or the last one first.'
}

/** The fragment that the step's one call folded; null when it did anything else. */
function onlyFold(calls: readonly CallReport[]): string | null {
  const [report, ...more] = calls
  if (report === undefined || more.length > 0 || report.failed || report.call.name !== 'fold_fragment') return null
  const id = report.call.arguments['fragment_id']
  return typeof id === 'string' ? id : null
}
