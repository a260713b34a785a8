/** Tests the page's connection to the server, with a server that a script plays. */
import { join } from 'node:path'
import { afterEach, expect, test, vi } from 'vitest'
import { eventsIn } from '../../../src/runtime/dashboard/wire.js'

interface Live {
  readonly state: { readonly connection: string }
  start(): void
  stop(): void
  watch(watcher: (change: object | null) => void): () => void
}

/** Imports `Live` by a computed name, because its file needs the types of browsers, which tests do not have. */
const liveClass = async () =>
  ((await import(join(import.meta.dirname, '../../../src/runtime/dashboard/live.ts'))) as { Live: new (api: object) => Live })
    .Live

/** Plays the part of a document that says whether the page is hidden. */
class Page extends EventTarget {
  hidden = false

  show(isShown: boolean): void {
    this.hidden = !isShown
    this.dispatchEvent(new Event('visibilitychange'))
  }
}

/** Plays an `Api` whose first three listings of threads fail, and which has no figures. */
function scriptedApi() {
  const seen = { listings: 0, open: 0, mostOpen: 0 }
  const get = (path: string): Promise<object> => {
    if (path === '/v1/models') return Promise.resolve({ data: [{ id: 'm' }] })
    if (path === '/kvfold/threads' && ++seen.listings > 3) return Promise.resolve({ threads: [], damaged: [] })
    return Promise.reject(new TypeError(path))
  }
  const text = (path: string): Promise<string> => Promise.reject(new TypeError(path))
  const events = (_path: string, { signal }: { readonly signal: AbortSignal }) => {
    seen.mostOpen = Math.max(seen.mostOpen, ++seen.open)
    const start = (stream: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>>) => {
      signal.addEventListener('abort', () => {
        seen.open--
        stream.close()
      })
    }
    return eventsIn(new ReadableStream({ start }))
  }
  return { seen, get, text, events }
}

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

test('an attempt to connect that fails leaves no event stream open', async () => {
  const Live = await liveClass()
  vi.useFakeTimers()
  vi.stubGlobal('document', new Page())
  const { seen, ...api } = scriptedApi()
  const live = new Live(api)
  live.start()
  await vi.advanceTimersByTimeAsync(10_000)
  expect(live.state.connection).toBe('live')
  expect(seen).toEqual({ listings: 4, open: 1, mostOpen: 1 })
  live.stop()
  expect(seen.open).toBe(0)
})

test('a page that is hidden for long gives up its event stream, and connects again when it is shown', async () => {
  const Live = await liveClass()
  const page = new Page()
  vi.useFakeTimers()
  vi.stubGlobal('document', page)
  const { seen, ...api } = scriptedApi()
  const live = new Live(api)
  const missed = vi.fn()
  live.watch(missed)
  live.start()
  await vi.advanceTimersByTimeAsync(10_000)
  page.show(false)
  await vi.advanceTimersByTimeAsync(1000)
  page.show(true)
  await vi.advanceTimersByTimeAsync(10_000)
  expect(seen).toEqual({ listings: 4, open: 1, mostOpen: 1 })
  page.show(false)
  await vi.advanceTimersByTimeAsync(10_000)
  expect([seen.open, live.state.connection]).toEqual([0, 'live'])
  expect(missed).toHaveBeenCalledTimes(1)
  page.show(true)
  await vi.advanceTimersByTimeAsync(10)
  expect(seen).toEqual({ listings: 5, open: 1, mostOpen: 1 })
  expect(missed).toHaveBeenCalledTimes(2)
  expect(missed).toHaveBeenLastCalledWith(null)
  page.show(false)
  await vi.advanceTimersByTimeAsync(10_000)
  live.stop()
  page.show(true)
  await vi.advanceTimersByTimeAsync(10_000)
  expect(seen).toEqual({ listings: 5, open: 0, mostOpen: 1 })
})
