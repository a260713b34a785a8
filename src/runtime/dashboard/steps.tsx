/** The tab with a thread's steps: where tokens came from, what the edits before each step cost, helpers' notes and found tools. */
import { count, plural } from '../figures/numbers.js'
import { StepCharts } from './charts.js'
import { Fact } from './overview.js'
import { timelineOf, type TimelineItem } from './pieces.js'
import type { LedgerEntry, ThreadDetail } from './wire.js'

export function Steps({ thread }: { readonly thread: ThreadDetail }) {
  const { ledger } = thread
  return (
    <>
      <section aria-labelledby="steps-title">
        <h2 id="steps-title">
          Steps <span class="dim">{count(ledger.length)}</span>
        </h2>
        {ledger.length === 0 ? (
          <p class="dim">None yet: a step is one prompt and the answer to it.</p>
        ) : (
          <>
            <LastStep thread={thread} />
            <StepCharts ledger={ledger} />
            <TimelineTable items={timelineOf(thread)} />
            <p class="dim">
              Edits are listed before the first step that shows them. The measured time is that of cache and prompt: the cost of
              the edits before the step.
              {ledger.some(({ predicted }) => predicted !== null)
                ? null
                : ' Nothing was expected: `kvfold calibrate` measures this machine for the model.'}
            </p>
          </>
        )}
      </section>
      <Notes thread={thread} />
      <FoundTools thread={thread} />
    </>
  )
}

/** Shows where the tokens of the last step came from, and how many were parked. */
function LastStep({ thread: { ledger } }: { readonly thread: ThreadDetail }) {
  const last = ledger.findLast(({ kind }) => kind === 'answer')
  if (last === undefined) return null
  const { shown, reused, recomputed, fresh, approximate, sources, tiers, parked, evicted, moved } = last
  return (
    <dl class="facts" aria-label="The last step">
      <Fact name="Shown">{plural(shown, 'token')}</Fact>
      <Fact name="Reused">
        {`${count(reused)}: ${count(sources.own)} own, ${count(sources.parked)} parked before, ${count(sources.shared)} of other threads`}
      </Fact>
      <Fact name="Computed">{`${count(recomputed)} again, ${count(fresh)} new`}</Fact>
      <Fact name="Approximate">{count(approximate)}</Fact>
      <Fact name="Brought back">{`${count(tiers.host)} from memory, ${count(tiers.disk)} from disk`}</Fact>
      <Fact name="Parked">{`${plural(parked, 'hidden token')} when it began`}</Fact>
      {evicted + moved > 0 ? (
        <Fact name="Made room">{`${count(evicted)} lost, ${count(moved)} moved to a lower tier`}</Fact>
      ) : null}
    </dl>
  )
}

const COLUMNS = ['shown', 'reused', 'again', 'new', 'approx.', 'submitted', 'parked', 'expected ms', 'measured ms', 'answer ms']

/**
 * The table of steps and edits. Expected and measured time are those of cache and prompt, so they show what the edits before the step cost.
 * `-`: the machine is not calibrated.
 */
function TimelineTable({ items }: { readonly items: readonly TimelineItem[] }) {
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
    const effect = saves === 0 ? '' : `; ${saves > 0 ? 'frees' : 'takes'} ${plural(Math.abs(saves), 'token')} of context`
    return `${fragments.join(', ')} ${what} by a person or a program${effect}`
  }
  const { kind, folded, saves, reason } = item.event
  if (kind !== 'policy') return reason
  return `the server folded ${folded.join(', ')} (frees ${plural(saves, 'token')} of context): ${reason}`
}

/**
 * Shows the notes of helpers (`acm: u-fold` or `resum`): summary, to-do list and chosen lines. They are taken from the server's event for
 * the last fold. Shows nothing when helpers have never folded.
 */
function Notes({ thread: { events } }: { readonly thread: ThreadDetail }) {
  const folds = events.filter(({ folded, reason }) => folded.length > 0 && /^(u-fold|resum): /.test(reason))
  const last = folds.at(-1)
  if (last === undefined) return null
  const [acm = '', notes = ''] = last.reason.split(/: (.*)/s)
  return (
    <section aria-labelledby="notes-title">
      <h2 id="notes-title">
        Notes <span class="dim">{acm}</span>
      </h2>
      <p class="plain">{notes}</p>
      <p class="dim">
        {`Of fold ${count(folds.length)}: ${plural(last.folded.length, 'stretch', 'stretches')} hidden, which frees ${plural(last.saves, 'token')} of context. Nothing is lost: each can be restored.`}
      </p>
    </section>
  )
}

/** Shows the tools that the model has found; nothing when there are none. */
function FoundTools({ thread: { found } }: { readonly thread: ThreadDetail }) {
  if (found.length === 0) return null
  const loaded = found.filter((tool) => tool.loaded)
  const others = found.filter((tool) => !tool.loaded)
  return (
    <section aria-labelledby="tools-title">
      <h2 id="tools-title">
        Tools <span class="dim">{`${count(loaded.length)} loaded of ${count(found.length)} found`}</span>
      </h2>
      <Names title="Loaded: shown to the model, which may call them" tools={loaded} />
      <Names title="Found before and removed: folded away, to be found again" tools={others} />
    </section>
  )
}

function Names({ title, tools }: { readonly title: string; readonly tools: ThreadDetail['found'] }) {
  if (tools.length === 0) return null
  return (
    <>
      <h3 class="h4">{title}</h3>
      <ul class="names">
        {tools.map(({ name, loaded }) => (
          <li key={name} class={loaded ? 'badge ready' : 'badge'}>
            {name}
          </li>
        ))}
      </ul>
    </>
  )
}
