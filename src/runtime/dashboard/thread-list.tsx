/** The list of threads: time of last use, a filter, and deletion of several threads at once. */
import { useEffect, useState } from 'preact/hooks'
import { count, percent, plural } from '../figures/numbers.js'
import { sentenceOf, threadPath } from './api.js'
import { linkTo, linkToMessage, type PagePlace } from './places.js'
import { useAction, useHouse, useLive } from './hooks.js'
import type { ThreadsFound, ThreadSummary } from './wire.js'

/** With fewer threads than this, the search field is hidden. */
const MANY = 2
/** With at least `LEAST` letters, message texts are searched too. The search starts `TYPING` milliseconds after the last key. */
const LEAST = 2
const TYPING = 250

export function ThreadList({ chosen: place }: { readonly chosen: PagePlace }) {
  const chosen = place.kind === 'thread' ? place.id : null
  const { threads, damaged, names } = useLive()
  const [filter, setFilter] = useState('')
  /** Ids of the selected threads. Null: the user is not selecting. */
  const [selected, setSelected] = useState<ReadonlySet<string> | null>(null)
  const wanted = filter.trim().toLowerCase()
  const listed = threads.filter(({ id, title }) => `${title} ${id}`.toLowerCase().includes(wanted))
  const toggle = (id: string) => {
    const others = new Set(selected)
    if (!others.delete(id)) others.add(id)
    setSelected(others)
  }
  return (
    <nav class="threads" aria-labelledby="threads-title">
      <div class="threads-head">
        <h2 id="threads-title">
          Threads <span class="dim">{count(threads.length)}</span>
        </h2>
        {threads.length === 0 ? null : (
          <button
            type="button"
            class="quiet"
            aria-pressed={selected !== null}
            onClick={() => {
              setSelected(selected === null ? new Set() : null)
            }}
          >
            {selected === null ? 'Select' : 'Done'}
          </button>
        )}
      </div>
      <a class="new" href={linkTo(null)} aria-current={place.kind === 'new' ? 'page' : undefined}>
        New thread
      </a>
      {threads.length < MANY && filter === '' ? null : (
        <input
          type="search"
          aria-label="Search threads"
          placeholder="Search titles and texts"
          value={filter}
          onInput={({ currentTarget }) => {
            setFilter(currentTarget.value)
          }}
        />
      )}
      {selected === null ? null : (
        <DeleteSelected
          all={listed.map(({ id }) => id)}
          selected={listed.map(({ id }) => id).filter((id) => selected.has(id))}
          onSelect={setSelected}
        />
      )}
      {threads.length === 0 ? (
        <p class="dim">None yet. Ask something, or point an OpenAI client at this server.</p>
      ) : listed.length === 0 ? (
        <p class="dim">No title has this.</p>
      ) : (
        <ul>
          {listed.map((thread) => (
            <li key={thread.id}>
              {selected === null ? null : (
                <input
                  type="checkbox"
                  aria-label={`Select ${thread.title}`}
                  checked={selected.has(thread.id)}
                  onChange={() => {
                    toggle(thread.id)
                  }}
                />
              )}
              <a href={linkTo(thread.id)} title={thread.title} aria-current={thread.id === chosen ? 'page' : undefined}>
                <span class="title">
                  {thread.running ? (
                    <span class="pulse" role="img" aria-label="runs now">
                      ●{' '}
                    </span>
                  ) : null}
                  {thread.title === '' ? '(no text)' : thread.title}
                </span>
                <span class="dim">
                  <time dateTime={new Date(thread.used).toISOString()} title={new Date(thread.used).toLocaleString()}>
                    {timeOf(thread.used)}
                  </time>
                  {` · ${described(thread, names.length > 1)}`}
                </span>
              </a>
            </li>
          ))}
        </ul>
      )}
      <FoundInTexts words={filter.trim()} />
      {damaged.length === 0 ? null : (
        <details class="note">
          <summary>{plural(damaged.length, 'thread')} damaged in the store</summary>
          <ul>
            {damaged.map(({ id, kind, what }) => (
              <li key={id}>
                {id}: {kind}, {what}
              </li>
            ))}
          </ul>
          <p>
            <code>kvfold store export</code> writes the parts that can be read, <code>kvfold store copy</code> makes a new store
            of the undamaged threads.
          </p>
        </details>
      )}
    </nav>
  )
}

/** Shows the threads whose texts contain the words, hidden text included, with the first hits in each. */
function FoundInTexts({ words }: { readonly words: string }) {
  const { api } = useHouse()
  const [found, setFound] = useState<ThreadsFound | null>(null)
  const [problem, setProblem] = useState<string | null>(null)
  const isWanted = words.length >= LEAST
  useEffect(() => {
    setFound(null)
    setProblem(null)
    if (!isWanted) return undefined
    const ended = new AbortController()
    const timer = setTimeout(() => {
      api
        .send<ThreadsFound>('POST', '/kvfold/threads/search', { query: words }, ended.signal)
        .then(setFound)
        .catch((error: unknown) => {
          if (!ended.signal.aborted) setProblem(sentenceOf(error))
        })
    }, TYPING)
    return () => {
      clearTimeout(timer)
      ended.abort()
    }
  }, [api, words, isWanted])
  if (!isWanted) return null
  if (problem !== null) return <p role="alert">{problem}</p>
  const threads = found?.threads.filter(({ messages }) => messages > 0) ?? []
  return (
    <section aria-labelledby="found-title">
      <h3 id="found-title">
        <span role="status">
          {found === null ? 'Searching the texts…' : `In the texts of ${plural(threads.length, 'thread')}`}
          {found?.all === false ? ', maybe of more' : ''}
        </span>
      </h3>
      <ul>
        {threads.map(({ id, title, messages, places }) => (
          <li key={id} class="found">
            <a href={linkTo(id)}>
              <span class="title">{title === '' ? '(no text)' : title}</span>
              <span class="dim">{plural(messages, 'message')}</span>
            </a>
            <div class="places">
              {places.map(({ message, before, words: place, after }) => (
                <a
                  key={message}
                  href={linkToMessage(id, message)}
                  class="excerpt"
                  aria-label={`Message ${message + 1}: ${place}`}
                >
                  {before}
                  <mark>{place}</mark>
                  {after}
                </a>
              ))}
            </div>
          </li>
        ))}
      </ul>
    </section>
  )
}

interface DeleteProps {
  /** The visible threads. Threads that the filter hides are not deleted. */
  readonly all: readonly string[]
  readonly selected: readonly string[]
  readonly onSelect: (selected: ReadonlySet<string> | null) => void
}

function DeleteSelected({ all, selected, onSelect }: DeleteProps) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [sure, setSure] = useState(false)
  const what = plural(selected.length, 'thread')
  return (
    <div class="controls">
      <button
        type="button"
        class="quiet"
        onClick={() => {
          onSelect(new Set(selected.length === all.length ? [] : all))
        }}
      >
        {selected.length === all.length ? 'None' : 'All'}
      </button>
      {sure && selected.length > 0 ? (
        <button
          type="button"
          class="danger"
          aria-disabled={busy}
          onClick={() => {
            act(async () => {
              for (const id of selected) await api.send('DELETE', threadPath(id))
              onSelect(null)
              if (selected.some((id) => location.hash.startsWith(linkTo(id)))) location.hash = linkTo(null)
            })
          }}
        >
          Delete {what} for good
        </button>
      ) : (
        <button
          type="button"
          aria-disabled={selected.length === 0}
          onClick={() => {
            setSure(selected.length > 0)
          }}
        >
          Delete {what}…
        </button>
      )}
      {problem === null ? null : <p role="alert">{problem}</p>}
    </div>
  )
}

/** Returns a time for people: the time of day if it is today, else the date. */
function timeOf(used: number): string {
  const [then, now] = [new Date(used), new Date()]
  if (then.toDateString() === now.toDateString()) return then.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
  const year = then.getFullYear() === now.getFullYear() ? {} : ({ year: 'numeric' } as const)
  return then.toLocaleDateString([], { day: 'numeric', month: 'short', ...year })
}

function described({ model, messages, fragments: { folded, summarised }, last }: ThreadSummary, isNamed: boolean): string {
  const hidden = folded + summarised
  return [
    ...(isNamed ? [model] : []),
    plural(messages, 'message'),
    ...(hidden === 0 ? [] : [`${count(hidden)} hidden`]),
    ...(last === null || last.shown === 0
      ? []
      : [`${count(last.shown)} tokens`, `${percent(last.reused / last.shown, 0)} reused`]),
  ].join(' · ')
}
