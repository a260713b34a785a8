/** Owns signals that stand for several others, and leave nothing behind at those that live longer. */

export interface JoinedSignal {
  readonly signal: AbortSignal
  /** Lets go of the others: what happens to them from now on does not abort the signal. Idempotent. */
  readonly release: () => void
}

/** A signal that is aborted with the first of these, for the same reason. `AbortSignal.any` leaves a reference at each of them for as long as that lives. */
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
