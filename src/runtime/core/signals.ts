/** Joins abort signals into one that leaves no reference at long-lived sources. */

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
