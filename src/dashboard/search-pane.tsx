/** Owns searching a thread's original texts, hidden parts included. */
import { useState } from 'preact/hooks'
import { plural } from '../figures/numbers.js'
import { threadPath } from './api.js'
import type { Choice } from './places.js'
import { useAction, useHouse } from './hooks.js'
import type { Hit, SearchResult, Thread } from './wire.js'

interface SearchPaneProps {
  readonly thread: Thread
  readonly onChoose: (choice: Choice) => void
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
                    standing.kind === 'shown' ? { kind: 'message', index: message } : { kind: 'fragment', id: standing.fragment },
                  )
                }}
              >
                Message {hit.message + 1}, {hit.role}
                {hit.standing.kind === 'shown' ? null : `, ${hit.standing.kind} in ${hit.standing.fragment}`}
              </button>{' '}
              <Excerpt hit={hit} text={thread.messages[hit.message]?.message.content ?? ''} />
            </li>
          ))}
        </ol>
      )}
    </section>
  )
}

function Excerpt({ hit: { span, excerpt }, text }: { readonly hit: Hit; readonly text: string }) {
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
