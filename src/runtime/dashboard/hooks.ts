/** Hooks that give components live data: the state of the server, and one thread. */
import { createContext } from 'preact'
import { useContext, useEffect, useRef, useState } from 'preact/hooks'
import { ApiFailure, sentenceOf, threadPath, type Api } from './api.js'
import { AGAIN, type Live, type LiveState } from './live.js'
import type { ThreadDetail } from './wire.js'

export interface House {
  readonly api: Api
  readonly live: Live
}

export const HouseContext = createContext<House | null>(null)

export function useHouse(): House {
  const house = useContext(HouseContext)
  if (house === null) throw new Error('This component is outside the page.')
  return house
}

export function useLive(): LiveState {
  const { live } = useHouse()
  const [state, setState] = useState(live.state)
  useEffect(() => {
    setState(live.state)
    return live.subscribe(() => {
      setState(live.state)
    })
  }, [live])
  return state
}

export type LoadedThread =
  | { readonly kind: 'loading' }
  /** The thread cannot be shown, perhaps only for the moment. */
  | { readonly kind: 'gone'; readonly reason: string }
  | { readonly kind: 'thread'; readonly thread: ThreadDetail }

/** Whether the same request may succeed later: the server is busy or failing, but the thread is not damaged. */
const isPassing = ({ status, code }: ApiFailure): boolean => status === 429 || (status >= 500 && code !== 'store/damaged-thread')

/** The hook for one thread. It fetches the thread again after each change. `id` null: no thread. */
export function useThread(id: string | null): LoadedThread {
  const { api, live } = useHouse()
  const [loaded, setLoaded] = useState<LoadedThread>({ kind: 'loading' })
  useEffect(() => {
    setLoaded({ kind: 'loading' })
    if (id === null) return undefined
    const ended = new AbortController()
    let loading: Promise<void> | null = null
    let isStale = false
    let again: ReturnType<typeof setTimeout> | null = null
    const load = async () => {
      try {
        while (isStale) {
          isStale = false
          const thread = await api.get<ThreadDetail>(threadPath(id), ended.signal)
          setLoaded({ kind: 'thread', thread })
        }
      } catch (error) {
        // If the server cannot be reached, `live` tries again.
        if (ended.signal.aborted || !(error instanceof ApiFailure)) return
        const gone = { kind: 'gone', reason: sentenceOf(error) } as const
        if (!isPassing(error)) {
          setLoaded(gone)
          return
        }
        setLoaded((before) => (before.kind === 'thread' ? before : gone))
        again ??= setTimeout(() => {
          again = null
          if (!ended.signal.aborted) reload()
        }, AGAIN)
      }
    }
    const reload = () => {
      isStale = true
      loading ??= load().finally(() => (loading = null))
    }
    reload()
    const stop = live.watch((change) => {
      if (change !== null && change.thread !== id) return
      if (change?.kind === 'deleted') {
        ended.abort()
        setLoaded({ kind: 'gone', reason: 'This thread was deleted.' })
      }
      if (!ended.signal.aborted) reload()
    })
    return () => {
      ended.abort()
      stop()
    }
  }, [api, live, id])
  return loaded
}

/** Edits of one thread. An edit made while an answer is running waits for the end of that answer. */
export interface Edits {
  /** Keys of the edits that are waiting. */
  readonly waiting: ReadonlySet<string>
  readonly problem: string | null
  /** Starts an edit. Does nothing while an edit with this key is running or waiting. */
  readonly edit: (key: string, work: () => Promise<unknown>) => void
}

export function useEdits(isAnswering: boolean): Edits {
  const [waiting, setWaiting] = useState<ReadonlySet<string>>(new Set())
  const [problem, setProblem] = useState<string | null>(null)
  const running = useRef(new Set<string>())
  const edit = (key: string, work: () => Promise<unknown>): void => {
    if (running.current.has(key)) return
    running.current.add(key)
    if (isAnswering) setWaiting((keys) => new Set(keys).add(key))
    setProblem(null)
    work()
      .catch((error: unknown) => {
        setProblem(sentenceOf(error))
      })
      .finally(() => {
        running.current.delete(key)
        setWaiting((keys) => new Set([...keys].filter((other) => other !== key)))
      })
  }
  return { waiting, problem, edit }
}

/**
 * The hook for the action of a button: says whether the action is running, and its error. A second start meanwhile is ignored. Buttons show
 * this with `aria-disabled`, because a disabled button would lose the focus.
 */
export function useAction(): {
  readonly busy: boolean
  readonly problem: string | null
  readonly act: (work: () => Promise<unknown>) => void
} {
  const [busy, setBusy] = useState(false)
  const [problem, setProblem] = useState<string | null>(null)
  const running = useRef(false)
  const act = (work: () => Promise<unknown>): void => {
    if (running.current) return
    running.current = true
    setBusy(true)
    setProblem(null)
    work()
      .catch((error: unknown) => {
        setProblem(sentenceOf(error))
      })
      .finally(() => {
        running.current = false
        setBusy(false)
      })
  }
  return { busy, problem, act }
}
