/** Abort signals: several joined into one, and promises that end with a signal. No reference is left at long-lived sources. */

export interface JoinedSignal {
  readonly signal: AbortSignal
  /** Detaches the signal from its sources, so that they no longer abort it. Further calls do nothing. */
  readonly release: () => void
}

/**
 * Returns a signal that is aborted when the first of these signals is, with the same reason. `AbortSignal.any` would leave a reference at
 * each source for as long as the source lives.
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

/** Waits for the promise until the signal is aborted. @throws the signal's reason */
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
