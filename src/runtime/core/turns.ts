/** Runs long work in slices, at most one per turn of the event loop, so that answers keep streaming in between. */

/** Milliseconds per slice. */
const SLICE = 8

/** Long work in small steps: it yields after each step and returns its result at the end. */
export type Steps<T> = Generator<undefined, T>

/** Does all steps of the work without a pause. */
export function atOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/**
 * Does the steps of the work in slices of a few milliseconds, between which the event loop does other work.
 * @throws the error that a step throws
 */
export async function inTurns<T>(steps: Steps<T>): Promise<T> {
  for (;;) {
    await turn()
    const end = performance.now() + SLICE
    do {
      const step = steps.next()
      if (step.done === true) return step.value
    } while (performance.now() < end)
  }
}

// The queue of callers that wait for a turn. Each turn of the event loop resumes one of them, however long the queue is.

const waiting: (() => void)[] = []

/** Resolves in a turn of the event loop in which no other caller is resumed. */
export function turn(): Promise<void> {
  return new Promise((resolve) => {
    if (waiting.push(resolve) === 1) setImmediate(next)
  })
}

function next(): void {
  waiting.shift()?.()
  // `setImmediate` called inside an immediate runs only in the next turn of the event loop.
  if (waiting.length > 0) setImmediate(next)
}
