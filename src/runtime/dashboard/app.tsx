/** The dashboard: shows the page that the address names, and the form for the API key. */
import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { count } from '../figures/numbers.js'
import { Api } from './api.js'
import { Answering, useChat, type Chat } from './chat.js'
import { sizeOf } from './chat-request.js'
import { Composer } from './composer.js'
import { HouseContext, useHouse, useLive, useThread, type LoadedThread } from './hooks.js'
import { Live } from './live.js'
import { Overview } from './overview.js'
import { isAt, linkTo, placeIn, type PagePlace } from './places.js'
import { applyTheme, chooseTheme, chosenTheme, type Theme, THEMES } from './theme.js'
import { ThreadList } from './thread-list.js'
import { Log, ThreadPage } from './thread-page.js'

const CONNECTIONS = {
  connecting: 'connecting',
  live: 'live',
  lost: 'no connection; trying again',
  locked: 'locked',
} as const

/** Begins with an empty page for each user: what one key's user typed or asked must not be there for the next one. */
function App() {
  const [user, setUser] = useState(0)
  return (
    <Site
      key={user}
      onOtherUser={() => {
        setUser(user + 1)
      }}
    />
  )
}

function Site({ onOtherUser }: KeyFormProps) {
  const { connection, status } = useLive()
  const [place, setPlace] = useState(placeIn(location.hash))
  const [isListOpen, setListOpen] = useState(false)
  useEffect(() => {
    const follow = () => {
      setPlace(placeIn(location.hash))
      setListOpen(false)
    }
    addEventListener('hashchange', follow)
    return () => {
      removeEventListener('hashchange', follow)
    }
  }, [])
  const id = place.kind === 'thread' ? place.id : null
  const loaded = useThread(connection === 'locked' ? null : id)
  const chat = useChat(loaded.kind === 'thread' ? loaded.thread : null, (thread, from) => {
    // While the question waited, the user may have opened another page. Do not take them away from it.
    if (isAt(placeIn(location.hash), from)) location.hash = linkTo(thread)
  })
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          // The part of the address after `#` names the page, so the link must not change it.
          event.preventDefault()
          document.getElementById('main')?.focus()
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <button
          type="button"
          class="list-toggle"
          aria-expanded={isListOpen}
          onClick={() => {
            setListOpen(!isListOpen)
          }}
        >
          Threads
        </button>
        <h1>
          <a href={linkTo(null)}>kvfold</a>
        </h1>
        <p class={`connection ${connection}`} role="status">
          {CONNECTIONS[connection]}
        </p>
        {status === null ? null : (
          <p class="saved" title="Tokens that a plain prefix cache would have computed, since midnight at the server">
            Today {count(Math.max(0, status.savedToday))} tokens not computed
          </p>
        )}
        <ThemeButton />
        <a href="#/server" aria-current={place.kind === 'server' ? 'page' : undefined}>
          Server
        </a>
        <KeyForm onOtherUser={onOtherUser} />
      </header>
      {connection === 'locked' ? (
        <main id="main" class="tab" tabIndex={-1}>
          <p>
            This server needs an API key. Put yours into the field above; it stays in this tab and is sent only to this server.
          </p>
        </main>
      ) : (
        <div class={isListOpen ? 'columns list-open' : 'columns'}>
          <ThreadList chosen={place} />
          <main id="main" tabIndex={-1}>
            <Shown {...{ place, loaded, chat }} />
          </main>
        </div>
      )}
    </>
  )
}

function Shown({ place, loaded, chat }: { readonly place: PagePlace; readonly loaded: LoadedThread; readonly chat: Chat }) {
  if (place.kind === 'server')
    return (
      <div class="tab">
        <Overview />
      </div>
    )
  if (place.kind === 'new') return <NewThread chat={chat} />
  if (loaded.kind === 'gone')
    return (
      <p role="alert" class="tab">
        {loaded.reason} <a href={linkTo(null)}>Begin a new thread</a>
      </p>
    )
  // Right after the address changed, `loaded` may still be the previous thread.
  if (loaded.kind === 'thread' && loaded.thread.id === place.id)
    return <ThreadPage key={place.id} thread={loaded.thread} tab={place.tab} chat={chat} found={place.message} />
  return (
    <div class="page">
      {chat.pending?.thread === place.id ? (
        <>
          <Log at={sizeOf(chat.pending)}>
            <Answering pending={chat.pending} />
          </Log>
          <Composer chat={chat} thread={place.id} model="" />
        </>
      ) : (
        <p class="dim tab">Loading the thread…</p>
      )}
    </div>
  )
}

/** The page of a new thread: only the input field, until a question is asked. */
function NewThread({ chat }: { readonly chat: Chat }) {
  const pending = chat.pending?.thread === null ? chat.pending : null
  return (
    <div class="page">
      <Log at={sizeOf(pending)}>
        {pending === null ? (
          <div class="welcome">
            <h2>Ask something; it begins a new thread.</h2>
            <p>
              Each message shows how much of it the cache still had. <b>Fold</b> a text that is no longer needed: a short marker
              takes its place and its tokens are free. <b>Restore</b> shows it again.
            </p>
          </div>
        ) : (
          <Answering pending={pending} />
        )}
      </Log>
      <Composer chat={chat} thread={null} model={null} />
    </div>
  )
}

const LOOKS: Readonly<Record<Theme, string>> = { system: '◐', light: '☀', dark: '☾' }

/** The button for the colours. Each press goes on: system, light, dark, system. */
function ThemeButton() {
  const [theme, setTheme] = useState(chosenTheme())
  return (
    <button
      type="button"
      class="quiet theme"
      title={`Colours: ${theme}`}
      aria-label={`Colours: ${theme}`}
      onClick={() => {
        const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!
        chooseTheme(next)
        setTheme(next)
      }}
    >
      {LOOKS[theme]}
    </button>
  )
}

interface KeyFormProps {
  /** Called when a key is deleted or replaced by another one. */
  readonly onOtherUser: () => void
}

/** The form for the API key. Shown when the server asks for a key; once a key is stored, a button to delete it. */
function KeyForm({ onOtherUser }: KeyFormProps) {
  const { api, live } = useHouse()
  const { connection } = useLive()
  const [typed, setTyped] = useState('')
  // A key that never opened the page leaves nothing for the next user, and the form keeps the focus.
  const wasOpen = useRef(false)
  if (connection === 'live') wasOpen.current = true
  if (connection !== 'locked') {
    if (api.key === null) return null
    return (
      <button
        type="button"
        onClick={() => {
          api.setKey(null)
          live.start()
          onOtherUser()
        }}
      >
        Forget the key
      </button>
    )
  }
  return (
    <form
      class="key-form"
      onSubmit={(event) => {
        event.preventDefault()
        const isOther = wasOpen.current && api.key !== null && api.key !== typed.trim()
        api.setKey(typed.trim())
        setTyped('')
        live.start()
        if (isOther) onOtherUser()
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

applyTheme(chosenTheme())
const api = new Api()
const live = new Live(api)
live.start()
render(
  <HouseContext.Provider value={{ api, live }}>
    <App />
  </HouseContext.Provider>,
  document.getElementById('app')!,
)
