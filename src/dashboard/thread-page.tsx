/** Owns what is shown of one thread. */
import { useEffect, useState } from 'preact/hooks'
import { count, plural } from '../figures/numbers.js'
import { linkTo, keyOf, type Choice } from './selection.js'
import { threadPath } from './api.js'
import { AttentionPanel } from './attention-panel.js'
import { FragmentPanel } from './fragment-panel.js'
import { useAction, useHouse, type Loaded } from './hooks.js'
import { MessagePanel } from './message-panel.js'
import { Fact } from './overview.js'
import { SearchPane } from './search-pane.js'
import { StepCharts } from './charts.js'
import { Strip, StripLegend } from './strip.js'
import { ThreadControls } from './thread-controls.js'
import { fragmentsOf, timelineOf } from './timeline.js'
import { TimelineTable } from './timeline-table.js'
import { FoundTools } from './tool-panels.js'
import type { Thread } from './wire.js'

export function ThreadPage({ loaded }: { readonly loaded: Loaded }) {
  switch (loaded.kind) {
    case 'loading':
      return <p class="dim">Loading the thread…</p>
    case 'gone':
      return (
        <p role="alert">
          {loaded.reason} <a href={linkTo(null)}>To the overview</a>
        </p>
      )
    case 'thread':
      return <Shown thread={loaded.thread} />
  }
}

function Shown({ thread }: { readonly thread: Thread }) {
  const { api } = useHouse()
  const { problem, act } = useAction()
  const [chosen, setChosen] = useState<Choice | null>(null)
  const [told, setTold] = useState('')
  const key = chosen === null ? '' : keyOf(chosen)
  const { id, messages, ledger, count: length } = thread
  // What was told about the next step is over when there is one.
  useEffect(() => {
    setTold('')
  }, [length])
  const fragment = chosen?.kind === 'fragment' ? fragmentsOf(thread).find((one) => one.id === chosen.id) : undefined
  const message = chosen?.kind === 'message' ? messages[chosen.index] : undefined
  const close = () => {
    setChosen(null)
    document.querySelector<HTMLElement>(`[data-stop="${key}"]`)?.focus()
  }
  const change = (fragmentId: string, what: 'fold' | 'restore', body?: object) => {
    act(async () => {
      await api.send('POST', threadPath(id, 'fragments', fragmentId, what), body)
      setTold(`${what === 'fold' ? 'Folded' : 'Restored'} ${fragmentId}. It counts from the next step on.`)
    })
  }
  return (
    <>
      <section aria-labelledby="thread-title">
        <h2 id="thread-title">{thread.title === '' ? '(no text)' : thread.title}</h2>
        <ThreadControls thread={thread} onTold={setTold} />
      </section>
      <section aria-labelledby="context-title">
        <h2 id="context-title">Context</h2>
        <Strip
          thread={thread}
          chosen={chosen}
          onChoose={setChosen}
          onFold={(one) => {
            change(one, 'fold', {})
          }}
          onRestore={(one) => {
            change(one, 'restore')
          }}
        />
        <StripLegend />
        <p class="dim">
          Colours are each message's share of the last step, widths its tokens. Arrow keys go along the strip, Enter opens, F
          folds, R restores.
        </p>
        <LastStep thread={thread} />
        <AttentionPanel thread={thread} onChoose={setChosen} />
        <p role="status" class="told">
          {told}
        </p>
        {problem === null ? null : <p role="alert">{problem}</p>}
        {fragment === undefined ? null : (
          <FragmentPanel
            key={fragment.id}
            thread={thread}
            fragment={fragment}
            onChange={change}
            onTold={setTold}
            onClose={close}
          />
        )}
        {message === undefined ? null : (
          <MessagePanel
            key={message.index}
            thread={thread}
            message={message}
            onChoose={setChosen}
            onTold={setTold}
            onClose={close}
          />
        )}
      </section>
      <Notes thread={thread} />
      <FoundTools thread={thread} />
      <SearchPane thread={thread} onChoose={setChosen} />
      <section aria-labelledby="steps-title">
        <h2 id="steps-title">
          Steps <span class="dim">{count(ledger.length)}</span>
        </h2>
        {ledger.length === 0 ? (
          <p class="dim">None yet.</p>
        ) : (
          <>
            <StepCharts ledger={ledger} />
            <TimelineTable items={timelineOf(thread)} />
            <p class="dim">
              Measured: cache and prompt, which is what the edits before a step cost.
              {ledger.some(({ predicted }) => predicted !== null)
                ? null
                : ' Nothing was expected: `kvfold calibrate` measures this machine for the model.'}
            </p>
          </>
        )}
      </section>
    </>
  )
}

/** What helpers noted (`acm: u-fold` or `resum`): summary, to-do list, which lines of results stay in sight. The words of the last fold of theirs, as the server's event has them; nothing where helpers never folded. */
function Notes({ thread: { events } }: { readonly thread: Thread }) {
  const folds = events.filter(({ folded, reason }) => folded.length > 0 && /^(u-fold|resum): /.test(reason))
  const last = folds.at(-1)
  if (last === undefined) return null
  const [acm = '', notes = ''] = last.reason.split(/: (.*)/s)
  return (
    <section aria-labelledby="notes-title">
      <h2 id="notes-title">
        Notes <span class="dim">{acm}</span>
      </h2>
      <p class="said">{notes}</p>
      <p class="dim">
        {`Of fold ${count(folds.length)}: ${plural(last.folded.length, 'stretch', 'stretches')} hidden, ${count(last.saves)} tokens less. The log is whole: each can be restored.`}
      </p>
    </section>
  )
}

/** Where the last step's tokens came from, and what was parked. */
function LastStep({ thread: { ledger } }: { readonly thread: Thread }) {
  const last = ledger.findLast(({ kind }) => kind === 'answer')
  if (last === undefined) return null
  const { shown, reused, recomputed, fresh, approximate, sources, tiers, parked, evicted, moved } = last
  return (
    <dl class="facts">
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
