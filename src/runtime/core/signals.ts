/** Joins abort signals, and ends waiting when a signal aborts. Leaves no listeners on long-lived signals. */

export interface JoinedSignal {
  readonly signal: AbortSignal
  /** Detaches the signal from its sources, which then no longer abort it. Further calls do nothing. */
  readonly release: () => void
}

/**
 * Returns a signal that aborts with the first of these signals, for the same reason. `AbortSignal.any` would leave a reference on each
 * source for as long as the source lives.
 */
export function joined(signals: readonly (AbortSignal | null | undefined)[]): JoinedSignal {
  const sources = signals.filter((each) => each != null)
  const controller = new AbortController()
  const release = () => {
    for (const source of sources) source.removeEventListener('abort', abort)
  }
  const abort = () => {
    const first = sources.find(({ aborted }) => aborted)
    release()
    controller.abort(first?.reason)
  }
  for (const source of sources) source.addEventListener('abort', abort)
  if (sources.some(({ aborted }) => aborted)) abort()
  return { signal: controller.signal, release }
}

/** Waits for the promise, or until the signal aborts. @throws the signal's reason */
export function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise
  return new Promise<T>((resolve, reject) => {
    const stop = () => {
      // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- the reason is the caller's
      reject(signal.reason)
    }
    if (signal.aborted) stop()
    signal.addEventListener('abort', stop, { once: true })
    promise.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', stop)
    })
  })
}
