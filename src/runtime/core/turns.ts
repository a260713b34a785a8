/** Runs long work in slices, at most one slice in each turn of the event loop, so that streams continue in between. */

/** Milliseconds per slice. */
const SLICE = 8

/** Work in small steps. It yields after a step, so that other work may run, and returns its result at the end. */
export type Steps<T> = Generator<undefined, T>

/** Does all steps of the work at once, without a pause. */
export function atOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/**
 * Does the steps of the work in slices of a few milliseconds. Between two slices the event loop may do other work.
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

// The queue of callers that wait for a turn. Each turn of the loop resumes one of them, even if the queue is long.

const waiting: (() => void)[] = []

/** Resolves in a turn of the event loop in which no other slice runs. */
export function turn(): Promise<void> {
  return new Promise((resolve) => {
    if (waiting.push(resolve) === 1) setImmediate(next)
  })
}

function next(): void {
  waiting.shift()?.()
  // A `setImmediate` that is called inside another one runs only in the next turn of the event loop.
  if (waiting.length > 0) setImmediate(next)
}
