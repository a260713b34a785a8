/** Tests the page's connection to the server, with a server that a script plays. */
import { join } from 'node:path'
import { afterEach, expect, test, vi } from 'vitest'
import { eventsIn } from '../../../src/runtime/dashboard/wire.js'

interface Live {
  readonly state: { readonly connection: string }
  start(): void
  stop(): void
}

/** Imports `Live` by a computed name, because its file needs the types of browsers, which tests do not have. */
const liveClass = async () =>
  ((await import(join(import.meta.dirname, '../../../src/runtime/dashboard/live.ts'))) as { Live: new (api: object) => Live })
    .Live

/** Plays an `Api` whose first three listings of threads fail. */
function scriptedApi() {
  const seen = { listings: 0, open: 0, mostOpen: 0 }
  const get = (path: string): Promise<object> => {
    if (path === '/v1/models') return Promise.resolve({ data: [{ id: 'm' }] })
    if (path === '/kvfold/threads' && ++seen.listings > 3) return Promise.resolve({ threads: [], damaged: [] })
    return Promise.reject(new TypeError(path))
  }
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
  return { seen, get, events }
}

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

test('an attempt to connect that fails leaves no event stream open', async () => {
  const Live = await liveClass()
  vi.useFakeTimers()
  vi.stubGlobal('document', { hidden: true })
  const { seen, ...api } = scriptedApi()
  const live = new Live(api)
  live.start()
  await vi.advanceTimersByTimeAsync(10_000)
  expect(live.state.connection).toBe('live')
  expect(seen).toEqual({ listings: 4, open: 1, mostOpen: 1 })
  live.stop()
  expect(seen.open).toBe(0)
})
