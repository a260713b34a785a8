/** Owns the table of a thread's steps, with the edits before each and what they were expected to cost. */
import { count } from '../figures/numbers.js'
import type { TimelineItem } from './timeline.js'
import type { LedgerEntry } from './wire.js'

const COLUMNS = ['shown', 'reused', 'again', 'new', 'approx.', 'submitted', 'parked', 'expected ms', 'measured ms', 'answer ms']

/** Expected and measured are of cache and prompt: what the edits before the step cost; `-` where the machine was not calibrated. */
export function TimelineTable({ items }: { readonly items: readonly TimelineItem[] }) {
  let step = 0
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Steps and edits, as a table">
      <table>
        <thead>
          <tr>
            <th scope="col">step</th>
            <th scope="col">contract</th>
            {COLUMNS.map((name) => (
              <th key={name} scope="col" class="figure">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {items.map((item, at) =>
            item.kind === 'step' ? (
              <Step key={at} entry={item.entry} number={++step} />
            ) : (
              <tr key={at} class="edit">
                <td colSpan={COLUMNS.length + 2}>{inWords(item)}</td>
              </tr>
            ),
          )}
        </tbody>
      </table>
    </div>
  )
}

function Step({ entry, number }: { readonly entry: LedgerEntry; readonly number: number }) {
  const { kind, contract, fallback, shown, reused, recomputed, fresh, approximate, submitted, parked, predicted } = entry
  const { recomputeReason = null } = entry
  const { cache, prefill, decode } = entry.milliseconds
  const tokens = [shown, reused, recomputed, fresh, approximate, submitted, parked].map(count)
  const figures = [...tokens, predicted === null ? '-' : count(predicted), count(cache + prefill), count(decode)]
  return (
    <tr>
      <th scope="row">
        {number} {kind}
      </th>
      <td>
        {contract}
        {fallback === null ? null : <small> instead: {fallback}</small>}
        {recomputeReason === null ? null : <small> computed again: {recomputeReason}</small>}
      </td>
      {figures.map((figure, at) => (
        <td key={at} class="figure">
          {figure}
        </td>
      ))}
    </tr>
  )
}

function inWords(item: Exclude<TimelineItem, { kind: 'step' }>): string {
  if (item.kind === 'call') return `the model: ${item.name} (${item.on})`
  if (item.kind === 'edit') {
    const { fragments, what, saves } = item
    const effect = saves === 0 ? '' : `; ${count(Math.abs(saves))} tokens ${saves > 0 ? 'less' : 'more'} to show`
    return `${fragments.join(', ')} ${what} by a person or a program${effect}`
  }
  const { kind, folded, saves, reason } = item.event
  if (kind === 'client') return reason
  return `the server folded ${folded.join(', ')} (${count(saves)} tokens less): ${reason}`
}
