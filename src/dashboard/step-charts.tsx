/** Owns the two pictures of a thread's steps: tokens and milliseconds. */
import { StepChart } from './step-chart.js'
import type { LedgerEntry } from './wire.js'

/** Steps that are drawn; the table has all. */
const MOST = 200

export function StepCharts({ ledger }: { readonly ledger: readonly LedgerEntry[] }) {
  const drawn = ledger.slice(-MOST)
  const label = ({ kind }: LedgerEntry, at: number) => `step ${ledger.length - drawn.length + at + 1} (${kind})`
  return (
    <div class="charts">
      <StepChart
        title="Tokens"
        unit="tokens"
        names={[
          { name: 'reused', share: 'reused' },
          { name: 'computed again', share: 'recomputed' },
          { name: 'new', share: 'fresh' },
        ]}
        bars={drawn.map((entry, at) => ({
          label: label(entry, at),
          parts: [entry.reused, entry.recomputed, entry.fresh],
          mark: null,
        }))}
      />
      <StepChart
        title="Time"
        unit="ms"
        markName="expected of cache and prompt"
        names={[
          { name: 'cache', share: 'cache' },
          { name: 'prompt', share: 'prefill' },
          { name: 'answer', share: 'decode' },
        ]}
        bars={drawn.map((entry, at) => {
          const { cache, prefill, decode } = entry.milliseconds
          return { label: label(entry, at), parts: [cache, prefill, decode], mark: entry.predicted }
        })}
      />
    </div>
  )
}
