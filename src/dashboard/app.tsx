/** Owns the page: what stands where, and which thread it shows, as the address says. */
import { useEffect, useState } from 'preact/hooks'
import { linkTo, threadIn } from './address.js'
import { ChatPane } from './chat-pane.js'
import { useLive, useThread } from './hooks.js'
import { KeyForm } from './key-form.js'
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
