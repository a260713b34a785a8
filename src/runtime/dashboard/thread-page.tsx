/** The page of a thread: its conversation beside the map, and tabs for steps, attention and search. */
import type { ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { writeJson } from '../core/written-json.js'
import { count } from '../figures/numbers.js'
import { threadPath } from './api.js'
import { AttentionPanel } from './attention-panel.js'
import { Answering, type Chat } from './chat.js'
import { dividedBetween, sizeOf } from './chat-request.js'
import { Choose, Composer, CONTRACTS } from './composer.js'
import { Conversation, type MessageActions } from './conversation.js'
import { useAction, useEdits, useHouse, useLive } from './hooks.js'
import { FragmentPanel, MessagePanel, SearchPane } from './panels.js'
import { fragmentsOf, hiddenBy, type HiddenPieces, markersOf } from './pieces.js'
import { keyOf, linkTo, type Selection, type Tab } from './places.js'
import { Steps } from './steps.js'
import { Legend, ContextBar } from './context-bar.js'
import type { Fragment, ThreadDetail, ThreadMessage } from './wire.js'

const TITLES: Readonly<Record<Tab, string>> = { chat: 'Chat', steps: 'Steps', attention: 'Attention', search: 'Search' }

interface ThreadPageProps {
  readonly thread: ThreadDetail
  readonly tab: Tab
  readonly chat: Chat
  /** Index of the message in the address; null: none. */
  readonly found: number | null
}

export function ThreadPage({ thread, tab, chat, found }: ThreadPageProps) {
  const { api } = useHouse()
  const { pending } = chat
  const mine = pending !== null && pending.thread === thread.id ? pending : null
  const isAnswering = thread.running || mine?.state === 'running'
  const { waiting, problem, edit } = useEdits(isAnswering)
  const [chosen, setChosen] = useState<Selection | null>(null)
  const [told, setTold] = useState('')
  const { id, messages, ledger, count: length } = thread
  // A notice about the next step is outdated once a step begins.
  useEffect(() => {
    if (isAnswering) setTold('')
  }, [isAnswering])
  useEffect(() => {
    if (found !== null) document.querySelector(`[data-row="${found}"]`)?.scrollIntoView({ block: 'center' })
  }, [found])
  const choose = (choice: Selection) => {
    setChosen(choice)
    const mark = choice.kind === 'message' ? `[data-row="${choice.index}"]` : `[data-piece="${choice.id}"]`
    document.querySelector(mark)?.scrollIntoView({ block: 'nearest' })
  }
  const fragment = chosen?.kind === 'fragment' ? fragmentsOf(thread).find((one) => one.id === chosen.id) : undefined
  const message = chosen?.kind === 'message' ? messages[chosen.index] : undefined
  const close = () => {
    setChosen(null)
    if (chosen !== null) document.querySelector<HTMLElement>(`[data-stop="${keyOf(chosen)}"]`)?.focus()
  }
  /** Folds or restores a fragment. Tells the user at once if the change must wait, and later that it is done. */
  const change = (fragmentId: string, what: 'fold' | 'restore', body?: object) => {
    const done = what === 'fold' ? 'folded' : 'restored'
    edit(fragmentId, async () => {
      if (isAnswering) setTold(`${fragmentId} waits: the answer must end before it can be ${done}.`)
      await api.send('POST', threadPath(id, 'fragments', fragmentId, what), body)
      setTold(`${what === 'fold' ? 'Folded' : 'Restored'} ${fragmentId}. It takes effect with the next step.`)
    })
  }
  const fold = (one: string) => {
    change(one, 'fold', {})
  }
  const restore = (one: string) => {
    change(one, 'restore')
  }
  const foldAll = (what: string, fragmentsOfIt: () => Promise<readonly Fragment[]>) => {
    edit(what, async () => {
      if (isAnswering) setTold(`The fold of ${what} waits for the end of the answer.`)
      for (const one of await fragmentsOfIt()) await api.send('POST', threadPath(id, 'fragments', one.id, 'fold'), {})
      setTold(`Folded ${what}. It takes effect with the next step.`)
    })
  }
  const cut = async ({ index }: ThreadMessage, { start, end }: { start: number; end: number }) => {
    const markers = markersOf(messages, index, start, end)
    if (markers === null) throw new Error('This text is too short, or an earlier message contains it too; cut a part of it.')
    const body = { ...markers, numFragments: 1 }
    return (await api.send<{ fragments: Fragment[] }>('POST', threadPath(id, 'fragments'), body)).fragments
  }
  const foldMessage = (of: ThreadMessage) => {
    foldAll(`message ${of.index + 1}`, async () =>
      of.fragments.length === 0
        ? cut(of, { start: 0, end: of.message.content.length })
        : of.fragments.filter(({ state }) => state.kind === 'open'),
    )
  }
  const by = useMemo(() => hiddenBy(thread), [thread])
  const hidden: HiddenPieces = { by, waiting }
  const mayAsk = !chat.running && !thread.salted
  const actions: MessageActions = {
    onOpen: ({ index }) => {
      choose({ kind: 'message', index })
    },
    onFold: fold,
    onRestore: restore,
    onFoldMessage: foldMessage,
    onFoldStretch: (of, stretch, what) => {
      foldAll(what, () => cut(of, stretch))
    },
    onBranch: !mayAsk ? null : ({ index }, text) => chat.ask({ thread: id, model: thread.model, before: index, text }),
    isTooLong: chat.done?.thread === id && chat.done.cut,
    onContinue: !mayAsk
      ? null
      : ({ message: { content } }) => {
          chat.ask({ thread: id, model: thread.model, text: null, begun: content })
        },
  }
  const { until, rest } = mine === null ? { until: messages.length, rest: null } : dividedBetween(thread, mine)
  // Memoised, so that a long conversation is not rendered again with each token and each key.
  const conversation = useMemo(
    () => <Conversation {...{ thread, until, actions, hidden, found }} />,
    [thread, until, chat.running, chat.done, chat.settings, isAnswering, waiting, found],
  )
  const map = useMemo(
    () => (
      <ContextBar
        {...{ thread, chosen, hidden }}
        onChoose={choose}
        onFold={fold}
        onRestore={restore}
        onFoldMessage={foldMessage}
      />
    ),
    [thread, chosen, isAnswering, waiting],
  )
  return (
    <div class={fragment === undefined && message === undefined ? 'thread' : 'thread with-panel'}>
      <header class="thread-head">
        <h2>{thread.title === '' ? '(no text)' : thread.title}</h2>
        <nav class="tabs" aria-label="Of this thread">
          {Object.entries(TITLES).map(([name, title]) => (
            <a key={name} href={linkTo(id, name as Tab)} aria-current={name === tab ? 'page' : undefined}>
              {title}
              {name === 'steps' ? <span class="dim"> {count(ledger.length)}</span> : null}
            </a>
          ))}
        </nav>
        <About thread={thread} onTold={setTold} />
        <p role="status" class="told">
          {told}
        </p>
        {problem === null ? null : <p role="alert">{problem}</p>}
      </header>
      <div class="page">
        {tab === 'chat' ? (
          <>
            <Log at={`${id} ${length} ${sizeOf(mine)}`}>
              <Legend />
              {conversation}
              {rest === null ? null : <Answering pending={rest} />}
            </Log>
            {thread.salted ? (
              <p class="dim">
                This conversation has a <code>cache_salt</code>. Only requests with the same one continue it; here you can read
                and fold it.
              </p>
            ) : (
              <Composer chat={chat} thread={id} model={thread.model} />
            )}
          </>
        ) : (
          <div class="tab">
            {tab === 'steps' ? <Steps thread={thread} /> : null}
            {tab === 'attention' ? <AttentionPanel thread={thread} onChoose={choose} /> : null}
            {tab === 'search' ? <SearchPane thread={thread} onChoose={choose} /> : null}
          </div>
        )}
      </div>
      {map}
      {fragment === undefined ? null : (
        <FragmentPanel
          key={fragment.id}
          {...{ thread, fragment, hidden, isAnswering }}
          onChange={change}
          onTold={setTold}
          onClose={close}
        />
      )}
      {message === undefined ? null : (
        <MessagePanel
          key={message.index}
          {...{ thread, message, isAnswering }}
          onChoose={choose}
          onTold={setTold}
          onClose={close}
        />
      )}
    </div>
  )
}

/** A box that stays scrolled to its end, unless the user has scrolled up. `at` must change whenever the content does. */
export function Log({ at, children }: { readonly at: string; readonly children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null)
  const isAtEnd = useRef(true)
  useLayoutEffect(() => {
    if (box.current !== null && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight
  }, [at])
  return (
    <div
      class="log"
      role="log"
      aria-label="Conversation"
      tabIndex={0}
      ref={box}
      onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
        isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40
      }}
    >
      {children}
    </div>
  )
}

/** Facts of a thread, and actions on all of it: contract, refresh, export, deletion. */
function About({ thread, onTold }: { readonly thread: ThreadDetail; readonly onTold: (text: string) => void }) {
  const { api } = useHouse()
  const { threads } = useLive()
  const { busy, problem, act } = useAction()
  const [sure, setSure] = useState(false)
  const { id, model, parent, contract, running, created } = thread
  const branches = threads.filter((each) => each.parent === id)
  return (
    <details class="about">
      <summary>
        This thread
        <span class="dim">
          {parent === null ? null : ', a branch'}
          {branches.length === 0 ? null : `, ${count(branches.length)} branched off`}
          {running ? ', runs now' : null}
        </span>
      </summary>
      <p class="dim">
        {id} · {model} · since {new Date(created).toLocaleString()}
        {parent === null ? null : (
          <>
            {' '}
            · branch of <a href={linkTo(parent)}>{parent}</a>
          </>
        )}
        {branches.map((branch) => (
          <span key={branch.id}>
            {' '}
            · branched off: <a href={linkTo(branch.id)}>{branch.title === '' ? branch.id : branch.title}</a>
          </span>
        ))}
      </p>
      <TitleForm key={thread.title} thread={thread} onTold={onTold} />
      <div class="controls">
        <Choose
          label="Contract"
          value={contract ?? ''}
          options={[['', "the server's"], ...CONTRACTS.map((one) => [one, one] as const)]}
          onChange={(value) => {
            const chosen = CONTRACTS.find((one) => one === value) ?? null
            act(async () => {
              await api.send('PUT', threadPath(id, 'contract'), { contract: chosen })
              onTold(`Later steps keep to ${chosen ?? "the server's contract"}.`)
            })
          }}
        />
        <button
          type="button"
          aria-disabled={busy}
          title="Computes approximate tokens again"
          onClick={() => {
            act(async () => {
              const { exact } = await api.send<{ exact: boolean }>('POST', threadPath(id, 'refresh'))
              onTold(
                exact
                  ? 'The thread is exact.'
                  : 'It is not exact yet: the computation was interrupted, or the cache has nothing of the thread.',
              )
            })
          }}
        >
          Exact again
        </button>
        <button
          type="button"
          onClick={() => {
            act(async () => {
              save(await api.get<object>(threadPath(id, 'export')), `${id}.json`)
            })
          }}
        >
          Export
        </button>
        {sure ? (
          <span role="group" aria-label="Delete this thread?">
            Delete it for good?{' '}
            <button
              type="button"
              class="danger"
              onClick={() => {
                act(async () => {
                  await api.send('DELETE', threadPath(id))
                  location.hash = linkTo(null)
                })
              }}
            >
              Delete
            </button>{' '}
            <button
              type="button"
              onClick={() => {
                setSure(false)
              }}
            >
              Keep
            </button>
          </span>
        ) : (
          <button
            type="button"
            onClick={() => {
              setSure(true)
            }}
          >
            Delete…
          </button>
        )}
      </div>
      {problem === null ? null : <p role="alert">{problem}</p>}
    </details>
  )
}

/** Renames the thread. An empty title gives it its default title again. */
function TitleForm({
  thread: { id, title },
  onTold,
}: {
  readonly thread: ThreadDetail
  readonly onTold: (text: string) => void
}) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [typed, setTyped] = useState(title)
  return (
    <form
      class="controls"
      onSubmit={(event) => {
        event.preventDefault()
        const wanted = typed.trim()
        act(async () => {
          await api.send('PUT', threadPath(id, 'title'), { title: wanted === '' ? null : wanted })
          onTold(wanted === '' ? 'The thread is called as its first message begins.' : `The thread is called ${wanted}.`)
        })
      }}
    >
      <label class="title-field">
        Title{' '}
        <input
          maxLength={80}
          placeholder="as its first message begins"
          value={typed}
          onInput={({ currentTarget }) => {
            setTyped(currentTarget.value)
          }}
        />
      </label>
      <button type="submit" aria-disabled={busy}>
        Rename
      </button>
      {problem === null ? null : <span role="alert">{problem}</span>}
    </form>
  )
}

function save(content: object, name: string): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([writeJson(content, 2)], { type: 'application/json' }))
  link.download = name
  link.click()
  URL.revokeObjectURL(link.href)
}
