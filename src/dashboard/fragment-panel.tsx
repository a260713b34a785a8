/** Owns what is shown and done for one fragment. */
import { useState } from 'preact/hooks'
import { count, plural } from '../figures/numbers.js'
import { threadPath } from './api.js'
import { useAction, useHouse } from './hooks.js'
import { Panel } from './panel.js'
import { whereIs } from './pieces.js'
import type { Fragment, Thread } from './wire.js'

interface FragmentPanelProps {
  readonly thread: Thread
  readonly fragment: Fragment
  readonly onChange: (id: string, what: 'fold' | 'restore', body?: object) => void
  readonly onTold: (text: string) => void
  readonly onClose: () => void
}

const EDIT_CONTRACTS = ['exact', 'splice', 'blend'] as const

export function FragmentPanel({ thread, fragment, onChange, onTold, onClose }: FragmentPanelProps) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [contract, setContract] = useState('')
  const [keep, setKeep] = useState('')
  const [costly, setCostly] = useState(false)
  const { id, message, span, state, price } = fragment
  const text = thread.messages[message]?.message.content.slice(span.start, span.end) ?? ''
  const anyway = costly ? { costly: 'allow' } : {}
  return (
    <Panel
      name="fragment"
      title={
        <>
          Fragment {id} <span class={`badge ${state.kind}`}>{state.kind}</span>
        </>
      }
      onClose={onClose}
    >
      <p class="dim">
        {plural(text.length, 'character')} of message {message + 1}
        {fragment.contract === undefined ? null : `; hidden under ${fragment.contract}`}
        {whereIs(fragment).map((where) => `; ${where}`)}
      </p>
      {price === undefined ? null : <p class={price.hidden < price.open ? 'dim' : 'costly'}>{priceText(price, state.kind)}</p>}
      <h4 id="original-title">Original</h4>
      <pre class="original" tabIndex={0} aria-labelledby="original-title">
        {text}
      </pre>
      {state.kind === 'summarised' ? (
        <>
          <h4>Summary, keeping {state.focus}</h4>
          <pre class="original">{state.summary}</pre>
        </>
      ) : null}
      <div class="controls">
        {state.kind === 'folded' ? null : (
          <>
            <label>
              under{' '}
              <select
                value={contract}
                onChange={({ currentTarget }) => {
                  setContract(currentTarget.value)
                }}
              >
                <option value="">the step's contract</option>
                {EDIT_CONTRACTS.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
            </label>
            <button
              type="button"
              onClick={() => {
                onChange(id, 'fold', { ...(contract === '' ? {} : { contract }), ...anyway })
              }}
            >
              Fold
            </button>
          </>
        )}
        {state.kind === 'open' ? null : (
          <button
            type="button"
            onClick={() => {
              onChange(id, 'restore')
            }}
          >
            Restore
          </button>
        )}
      </div>
      <label class="controls">
        <input
          type="checkbox"
          checked={costly}
          onChange={({ currentTarget }) => {
            setCostly(currentTarget.checked)
          }}
        />{' '}
        even if it takes more tokens than the text
      </label>
      <form
        class="controls"
        onSubmit={(event) => {
          event.preventDefault()
          act(async () => {
            await api.send('POST', threadPath(thread.id, 'fragments', id, 'summarize'), { focus: keep, ...anyway })
            onTold(`Summarised ${id}. It counts from the next step on.`)
          })
        }}
      >
        <label>
          Summary must keep{' '}
          <input
            required
            value={keep}
            onInput={({ currentTarget }) => {
              setKeep(currentTarget.value)
            }}
          />
        </label>
        <button type="submit" aria-disabled={busy}>
          {busy ? 'The model writes…' : 'Summarise'}
        </button>
      </form>
      {problem === null ? null : <p role="alert">{problem}</p>}
    </Panel>
  )
}

/** What hiding the fragment came to, in a sentence. */
function priceText({ open, hidden, about }: NonNullable<Fragment['price']>, kind: Fragment['state']['kind']): string {
  const near = about === true ? 'about ' : ''
  const tokens = `${near}${count(open)} tokens shown with the text, ${near}${count(hidden)} with the ${kind === 'summarised' ? 'summary' : 'marker'}`
  if (hidden < open) return `Saves ${near}${plural(open - hidden, 'token')}: ${tokens}.`
  return hidden === open
    ? `Does not pay, it saves nothing: ${tokens}.`
    : `Does not pay, it takes ${near}${plural(hidden - open, 'token')} more: ${tokens}.`
}
