/** The panels beside a conversation: one message and how to cut it, one fragment and its actions, and the search. */
import type { ComponentChildren } from 'preact'
import { useLayoutEffect, useRef, useState } from 'preact/hooks'
import { count, plural } from '../figures/numbers.js'
import { threadPath } from './api.js'
import type { Selection } from './places.js'
import { useAction, useHouse } from './hooks.js'
import { argumentsOf, excerptOf, type HiddenPieces, markersOf, pays, whereIs, wholeOmissionOf } from './pieces.js'
import { costInWords } from './context-bar.js'
import type { Fragment, Hit, SearchResult, ThreadDetail, ThreadMessage } from './wire.js'

interface PanelProps {
  /** The prefix for the id of the title element. Two panels with the same name must not be shown at once. */
  readonly name: string
  readonly title: ComponentChildren
  readonly onClose: () => void
  readonly children: ComponentChildren
}

/**
 * The frame of a panel. Give it a Preact key for what it shows, so that each message or fragment gets a new panel, which takes the focus.
 */
function Panel({ name, title, onClose, children }: PanelProps) {
  const frame = useRef<HTMLElement>(null)
  // A layout effect takes the focus before the user can type. A normal effect could take it away from another field.
  useLayoutEffect(() => {
    frame.current?.focus()
  }, [])
  return (
    <section
      class="panel"
      aria-labelledby={`${name}-title`}
      tabIndex={-1}
      ref={frame}
      onKeyDown={({ key }) => {
        if (key === 'Escape') onClose()
      }}
    >
      <div class="panel-head">
        <h3 id={`${name}-title`}>{title}</h3>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
      {children}
    </section>
  )
}

interface MessagePanelProps {
  readonly thread: ThreadDetail
  readonly message: ThreadMessage
  readonly isAnswering: boolean
  readonly onChoose: (choice: Selection) => void
  readonly onTold: (text: string) => void
  readonly onClose: () => void
}

export function MessagePanel({ thread, message, isAnswering, onChoose, onTold, onClose }: MessagePanelProps) {
  const { index, message: original, shown, fragments, cost, visible } = message
  const { role, content, reasoning, toolCalls = [], name } = original
  const isHidden = wholeOmissionOf(message) !== undefined
  return (
    <Panel name="message" title={`Message ${index + 1}, ${role}${name === undefined ? '' : ` ${name}`}`} onClose={onClose}>
      <p class="dim">
        {isHidden
          ? 'It is hidden as a whole; the model does not see it.'
          : cost !== null
            ? `In the last step ${costInWords(message)}.`
            : original.cut === true
              ? 'It was stopped before its end.'
              : 'No step has shown it yet.'}
        {visible ? null : ' Clients do not see it.'}
      </p>
      <Waits isAnswering={isAnswering} />
      {reasoning === undefined ? null : (
        <details>
          <summary>Reasoning</summary>
          <pre class="original">{reasoning}</pre>
        </details>
      )}
      <CutForm key={content} thread={thread} message={message} onTold={onTold} />
      {toolCalls.length === 0 ? null : (
        <>
          <h4>Calls</h4>
          <ul>
            {toolCalls.map((call) => (
              <li key={call.id}>
                <code>
                  {call.name}({argumentsOf(call)})
                </code>
              </li>
            ))}
          </ul>
        </>
      )}
      {fragments.length === 0 ? null : (
        <>
          <h4>Fragments</h4>
          <ul class="fragments">
            {fragments.map((fragment) => (
              <li key={fragment.id}>
                <button
                  type="button"
                  onClick={() => {
                    onChoose({ kind: 'fragment', id: fragment.id })
                  }}
                >
                  {fragment.id} <span class={`badge ${fragment.state.kind}`}>{fragment.state.kind}</span>
                </button>{' '}
                {pays(fragment).map((words) => (
                  <span class="dim">{words} </span>
                ))}
                <span class="dim">{beginning(content, fragment)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {isHidden || shown === content ? null : (
        <details>
          <summary>What the model sees</summary>
          <pre class="original">{shown}</pre>
        </details>
      )}
    </Panel>
  )
}

/** Says that edits wait while an answer is running. */
function Waits({ isAnswering }: { readonly isAnswering: boolean }) {
  return isAnswering ? <p class="note">An answer runs. Changes wait for its end.</p> : null
}

const beginning = (content: string, { span: { start, end } }: Fragment): string => excerptOf(content.slice(start, end), 60)

/** The form that cuts a message. The user selects a span of the text in a read-only field, by mouse or keys. */
function CutForm({ thread, message: of }: Pick<MessagePanelProps, 'thread' | 'message' | 'onTold'>) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [pieces, setPieces] = useState(4)
  const field = useRef<HTMLTextAreaElement>(null)
  const { index, message } = of
  const { content, role } = message
  const cut = async () => {
    const { selectionStart = 0, selectionEnd = 0 } = field.current ?? {}
    const [start, end] = selectionStart < selectionEnd ? [selectionStart, selectionEnd] : [0, content.length]
    const markers = markersOf(thread.messages, index, start, end)
    if (markers === null) throw new Error('This text is too short, or an earlier message contains it too; choose another part.')
    await api.send('POST', threadPath(thread.id, 'fragments'), { ...markers, numFragments: pieces })
  }
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        act(cut)
      }}
    >
      <label>
        <span class="h4">Original</span>
        <textarea class="original" readOnly rows={8} value={content} ref={field} />
      </label>
      {role === 'system' || content === '' || wholeOmissionOf(of) !== undefined ? null : (
        <div class="controls">
          <label>
            Fragments{' '}
            <input
              type="number"
              min={1}
              max={1000}
              required
              value={pieces}
              onInput={({ currentTarget }) => {
                setPieces(Math.max(1, Math.round(currentTarget.valueAsNumber) || 1))
              }}
            />
          </label>
          <button type="submit" aria-disabled={busy}>
            Cut the chosen stretch, or all
          </button>
        </div>
      )}
      {problem === null ? null : <p role="alert">{problem}</p>}
    </form>
  )
}

interface FragmentPanelProps {
  readonly thread: ThreadDetail
  readonly fragment: Fragment
  readonly hidden: HiddenPieces
  readonly isAnswering: boolean
  readonly onChange: (id: string, what: 'fold' | 'restore', body?: object) => void
  readonly onTold: (text: string) => void
  readonly onClose: () => void
}

const EDIT_CONTRACTS = ['exact', 'splice', 'blend'] as const

export function FragmentPanel({ thread, fragment, hidden, isAnswering, onChange, onTold, onClose }: FragmentPanelProps) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [contract, setContract] = useState('')
  const [keep, setKeep] = useState('')
  const [costly, setCostly] = useState(false)
  const { id, message, span, state, price } = fragment
  const text = thread.messages[message]?.message.content.slice(span.start, span.end) ?? ''
  const reason = hidden.by.get(id)
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
      {reason === undefined ? null : <p class="dim">{`It was ${state.kind} ${reason}.`}</p>}
      <Waits isAnswering={isAnswering} />
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
                <option value="">the next step's contract</option>
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
            onTold(`Summarised ${id}. It takes effect with the next step.`)
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

/** Returns a sentence about the price of hiding the fragment. */
function priceText({ open, hidden, about }: NonNullable<Fragment['price']>, kind: Fragment['state']['kind']): string {
  const near = about === true ? 'about ' : ''
  const tokens = `${near}${count(open)} tokens shown with the text, ${near}${count(hidden)} with the ${kind === 'summarised' ? 'summary' : 'marker'}`
  if (hidden < open) return `Frees ${near}${plural(open - hidden, 'token')} of context: ${tokens}.`
  return hidden === open
    ? `Does not pay, it frees nothing: ${tokens}.`
    : `Does not pay, it takes ${near}${plural(hidden - open, 'token')} more: ${tokens}.`
}

// Search in a thread's original texts, hidden text included.

interface SearchPaneProps {
  readonly thread: ThreadDetail
  readonly onChoose: (choice: Selection) => void
}

export function SearchPane({ thread, onChoose }: SearchPaneProps) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [query, setQuery] = useState('')
  const [result, setResult] = useState<SearchResult | null>(null)
  return (
    <section aria-labelledby="search-title">
      <h2 id="search-title">Search</h2>
      <form
        role="search"
        class="controls"
        onSubmit={(event) => {
          event.preventDefault()
          act(async () => {
            const body = { query, role: 'all', maxResults: 50, contextSize: 80 }
            setResult(await api.send<SearchResult>('POST', threadPath(thread.id, 'search'), body))
          })
        }}
      >
        <label>
          Exact text{' '}
          <input
            type="search"
            required
            value={query}
            onInput={({ currentTarget }) => {
              setQuery(currentTarget.value)
            }}
          />
        </label>
        <button type="submit" aria-disabled={busy}>
          Search
        </button>
      </form>
      {problem === null ? null : <p role="alert">{problem}</p>}
      <p role="status">{result === null ? '' : foundIn(result)}</p>
      {result === null ? null : (
        <ol class="hits">
          {result.hits.map((hit) => (
            <li key={hit.id}>
              <button
                type="button"
                onClick={() => {
                  const { standing, message } = hit
                  onChoose(
                    standing.kind === 'shown' || standing.kind === 'omitted'
                      ? { kind: 'message', index: message }
                      : { kind: 'fragment', id: standing.fragment },
                  )
                }}
              >
                Message {hit.message + 1}, {hit.role}
                {standingText(hit.standing)}
              </button>{' '}
              <Excerpt hit={hit} text={thread.messages[hit.message]?.message.content ?? ''} />
            </li>
          ))}
        </ol>
      )}
    </section>
  )
}

function standingText(standing: Hit['standing']): string {
  switch (standing.kind) {
    case 'shown':
      return ''
    case 'omitted':
      return ', hidden with the whole message'
    case 'folded':
    case 'summarised':
      return `, ${standing.kind} in ${standing.fragment}`
  }
}

function Excerpt({ hit: { span, excerpt }, text }: { readonly hit: Hit; readonly text: string }) {
  // For a hit in forgotten text, the excerpt has only the text before it.
  if (excerpt.end < span.end) return <span class="excerpt">{text.slice(excerpt.start, excerpt.end)}</span>
  return (
    <span class="excerpt">
      {text.slice(excerpt.start, span.start)}
      <mark>{text.slice(span.start, span.end)}</mark>
      {text.slice(span.end, excerpt.end)}
    </span>
  )
}

function foundIn({ hits, total, ignoringCase }: SearchResult): string {
  if (total === 0) return ignoringCase > 0 ? `Not there; ${ignoringCase} times in other upper or lower case.` : 'Not there.'
  return hits.length < total ? `${plural(total, 'hit')}, the first ${hits.length} of them here.` : `${plural(total, 'hit')}.`
}
