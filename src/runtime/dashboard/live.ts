/** The page's live data about the server: threads by SSE events, figures by polling. */
import { ApiFailure, sentenceOf, type Api } from './api.js'
import {
  type ChangeEvent,
  type DamagedThread,
  type ModelStatus,
  sampleOf,
  type ServerSample,
  type ServiceStatus,
  type ThreadListing,
  type ThreadSummary,
} from './wire.js'

export interface LiveState {
  /** The connection to the server. `locked`: the server asks for a key. */
  readonly connection: 'connecting' | 'live' | 'lost' | 'locked'
  /** The names of the served models. Any key may see them. */
  readonly names: readonly string[]
  readonly threads: readonly ThreadSummary[]
  readonly damaged: readonly DamagedThread[]
  /** The state of the server. Null: not fetched yet, or this key may not see it. */
  readonly status: ServiceStatus | null
  /** Samples of the server's figures, oldest first. */
  readonly samples: readonly ServerSample[]
  /** Why there are no figures; null when there are. */
  readonly noFigures: string | null
}

/** How many milliseconds lie between samples; `KEPT`: how many samples are kept. */
const EVERY = 1000
const KEPT = 180
/**
 * For how many milliseconds changes are collected before the threads are listed again. `AGAIN`: the pause before a failed request is tried
 * again.
 */
const TOGETHER = 150
export const AGAIN = 2000
/** For how many milliseconds a hidden page keeps its event stream. */
const HIDDEN = 5000

export class Live {
  #state: LiveState = {
    connection: 'connecting',
    names: [],
    threads: [],
    damaged: [],
    status: null,
    samples: [],
    noFigures: null,
  }
  readonly #listeners = new Set<() => void>()
  readonly #watchers = new Set<(change: ChangeEvent | null) => void>()
  #run = new AbortController()
  #listing: ReturnType<typeof setTimeout> | null = null

  constructor(private readonly api: Api) {
    api.onLocked = () => {
      this.#run.abort()
      this.#set({ connection: 'locked' })
    }
  }

  get state(): LiveState {
    return this.#state
  }

  get models(): readonly ModelStatus[] {
    return this.#state.status?.models ?? []
  }

  /** Connects, or reconnects with another key. */
  start(): void {
    this.#run.abort()
    this.#run = new AbortController()
    const { signal } = this.#run
    this.#set({ connection: 'connecting', threads: [], damaged: [], status: null, samples: [], noFigures: null })
    void this.#follow(signal)
    void this.#measure(signal)
  }

  stop(): void {
    this.#run.abort()
  }

  /** Calls `listener` after each change of `state`. Returns a function that ends this. */
  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Calls `watcher` with each change of a thread, and with null when changes may have been missed. Returns a function that ends this. */
  watch(watcher: (change: ChangeEvent | null) => void): () => void {
    this.#watchers.add(watcher)
    return () => this.#watchers.delete(watcher)
  }

  async #follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await untilShown(signal)
      if (isOver(signal)) return
      const own = new AbortController()
      onceHidden(own)
      try {
        const { data } = await this.api.get<{ data: { id: string }[] }>('/v1/models', signal)
        const events = this.api.events('/kvfold/events', { signal: AbortSignal.any([signal, own.signal]) })
        const first = events.next()
        first.catch(() => undefined)
        await this.#list(signal)
        this.#set({ connection: 'live', names: data.map(({ id }) => id) })
        this.#tell(null)
        for (let next = await first; next.done !== true; next = await events.next()) {
          this.#tell(JSON.parse(next.value.data) as ChangeEvent)
          this.#listSoon(signal)
        }
      } catch (error) {
        const isExpected = error instanceof TypeError || error instanceof ApiFailure
        if (!(isExpected || isOver(signal) || isOver(own.signal))) console.error(sentenceOf(error))
      }
      const isHidden = isOver(own.signal)
      // Close the event stream. A browser has only a few connections per server, and an open stream takes one.
      own.abort()
      if (isOver(signal)) return
      if (isHidden) continue
      this.#set({ connection: 'lost' })
      await pause(AGAIN)
    }
  }

  #listSoon(signal: AbortSignal): void {
    if (this.#listing !== null) return
    this.#listing = setTimeout(() => {
      this.#listing = null
      this.#list(signal).catch(() => undefined)
    }, TOGETHER)
  }

  async #list(signal: AbortSignal): Promise<void> {
    const { threads, damaged } = await this.api.get<ThreadListing>('/kvfold/threads', signal)
    if (!signal.aborted) this.#set({ threads, damaged })
  }

  async #measure(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      // No polling while the page is hidden.
      if (!document.hidden) {
        try {
          const [status, metrics] = await Promise.all([
            this.api.get<ServiceStatus>('/kvfold/status', signal),
            this.api.text('/metrics'),
          ])
          if (isOver(signal)) return
          const samples = [...this.#state.samples, sampleOf(performance.now(), status, metrics)].slice(-KEPT)
          this.#set({ status, samples, noFigures: null })
        } catch (error) {
          if (isOver(signal)) return
          if (error instanceof ApiFailure && error.status === 403) {
            this.#set({ status: null, noFigures: error.message })
            return
          }
        }
      }
      await pause(EVERY)
    }
  }

  #tell(change: ChangeEvent | null): void {
    for (const watcher of this.#watchers) watcher(change)
  }

  #set(changes: Partial<LiveState>): void {
    this.#state = { ...this.#state, ...changes }
    for (const listener of this.#listeners) listener()
  }
}

/** A function, because the compiler would otherwise assume that `aborted` cannot change during an await. */
const isOver = (signal: AbortSignal): boolean => signal.aborted

/** Waits until the page is visible, or until the signal aborts. */
const untilShown = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (!document.hidden) {
      resolve()
      return
    }
    const own = new AbortController()
    const end = () => {
      own.abort()
      resolve()
    }
    const shown = () => {
      if (!document.hidden) end()
    }
    document.addEventListener('visibilitychange', shown, { signal: own.signal })
    signal.addEventListener('abort', end, { signal: own.signal })
  })

/** Aborts the controller once the page has been hidden for `HIDDEN` milliseconds without a break. */
function onceHidden(control: AbortController): void {
  const { signal } = control
  let waiting: ReturnType<typeof setTimeout> | undefined
  const follow = () => {
    clearTimeout(waiting)
    if (!document.hidden) return
    waiting = setTimeout(() => {
      control.abort()
    }, HIDDEN)
  }
  document.addEventListener('visibilitychange', follow, { signal })
  signal.addEventListener('abort', () => {
    clearTimeout(waiting)
  })
  follow()
}

export const pause = (milliseconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, milliseconds))
