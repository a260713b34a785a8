/** Owns the page: what stands where, which thread it shows, as the address says, and the field for the API key. */
import { useEffect, useState } from 'preact/hooks'
import { linkTo, threadIn } from './selection.js'
import { ChatPane } from './chat-pane.js'
import { useLive, useThread, useHouse } from './hooks.js'
import { Overview } from './overview.js'
import { ThreadList } from './thread-list.js'
import { ThreadPage } from './thread-page.js'

const CONNECTIONS = {
  connecting: 'connecting',
  live: 'live',
  lost: 'no connection; trying again',
  locked: 'locked',
} as const

export function App() {
  const { connection } = useLive()
  const [thread, setThread] = useState(threadIn(location.hash))
  useEffect(() => {
    const follow = () => {
      setThread(threadIn(location.hash))
    }
    addEventListener('hashchange', follow)
    return () => {
      removeEventListener('hashchange', follow)
    }
  }, [])
  const loaded = useThread(connection === 'locked' ? null : thread)
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="top">
        <h1>
          <a href={linkTo(null)}>kvfold</a>
        </h1>
        <p class={`connection ${connection}`} role="status">
          {CONNECTIONS[connection]}
        </p>
        <KeyForm />
      </header>
      {connection === 'locked' ? (
        <main id="main" class="locked-note" tabIndex={-1}>
          <p>
            This server wants an API key. Put yours into the field above; it stays in this tab and goes nowhere but to this
            server.
          </p>
        </main>
      ) : (
        <div class="columns">
          <ThreadList chosen={thread} />
          <main id="main" tabIndex={-1}>
            {thread === null ? <Overview /> : <ThreadPage key={thread} loaded={loaded} />}
          </main>
          <ChatPane
            chosen={thread}
            loaded={loaded}
            onThread={(id) => {
              location.hash = linkTo(id)
            }}
          />
        </div>
      )}
    </>
  )
}

/** The field for the API key: shown when the server wants one, or when one is in use. */

function KeyForm() {
  const { api, live } = useHouse()
  const { connection } = useLive()
  const [typed, setTyped] = useState('')
  if (connection !== 'locked') {
    if (api.key === null) return null
    return (
      <button
        type="button"
        onClick={() => {
          api.setKey(null)
          live.start()
        }}
      >
        Forget the key
      </button>
    )
  }
  return (
    <form
      class="key"
      onSubmit={(event) => {
        event.preventDefault()
        api.setKey(typed.trim())
        setTyped('')
        live.start()
      }}
    >
      <label>
        API key{' '}
        <input
          type="password"
          autocomplete="off"
          required
          value={typed}
          aria-invalid={api.key !== null}
          onInput={({ currentTarget }) => {
            setTyped(currentTarget.value)
          }}
        />
      </label>
      <button type="submit">Use it</button>
      {api.key === null ? null : <span role="alert">The server does not know this key.</span>}
    </form>
  )
}
