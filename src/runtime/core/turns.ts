/** Owns the turns of the event loop: long work runs in slices, at most one slice a turn, so that streams go on in between. */

/** Milliseconds of a slice. */
const SLICE = 8

/** Work in steps: it yields wherever other work may run, and returns its result. */
export type Steps<T> = Generator<undefined, T>

/** Does all steps now, without a pause. */
export function atOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/** Does the steps in slices, each in a turn of its own. @throws what a step throws */
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

// The line of those that wait for a turn. One goes on in each turn of the loop, however many wait.

const waiting: (() => void)[] = []

/** Resolves in a turn of the event loop that no other slice has. */
export function turn(): Promise<void> {
  return new Promise((resolve) => {
    if (waiting.push(resolve) === 1) setImmediate(next)
  })
}

function next(): void {
  waiting.shift()?.()
  // A callback of this phase that asks for the same phase gets it in the next turn.
  if (waiting.length > 0) setImmediate(next)
}
