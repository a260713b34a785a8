/** Several users at the same time. Each has one session after another, and all requests come in order of time. */
import type { ScriptRequest } from './script.js'
import type { TraceSession } from './trace.js'

/** Seconds between the first requests of two users, and between two sessions of a user. */
const APART = 60

/** Yields the requests of all sessions. Every `users`-th session belongs to the same user. */
export function* inOrder(
  sessions: readonly TraceSession[],
  users: number,
  script: (session: TraceSession) => Iterator<ScriptRequest>,
): Generator<ScriptRequest> {
  const queues = Array.from(
    { length: Math.min(users, sessions.length) },
    (_, user) =>
      new User(
        sessions.filter((__, index) => index % users === user),
        user * APART,
        script,
      ),
  )
  for (;;) {
    const [next] = queues.filter(({ time }) => time !== null).sort((a, b) => a.time! - b.time!)
    if (next === undefined) return
    yield next.take()
  }
}

class User {
  readonly #rest: TraceSession[]
  readonly #script: (session: TraceSession) => Iterator<ScriptRequest>
  /** When the current session began, in seconds. */
  #begun: number
  #requests: Iterator<ScriptRequest> | null = null
  #next: ScriptRequest | null = null

  constructor(sessions: readonly TraceSession[], begin: number, script: (session: TraceSession) => Iterator<ScriptRequest>) {
    this.#rest = [...sessions]
    this.#script = script
    this.#begun = begin - APART
    this.#advance(this.#begun)
  }

  /** When the next request comes, in seconds; null if all were taken. */
  get time(): number | null {
    return this.#next === null ? null : this.#begun + this.#next.at
  }

  take(): ScriptRequest {
    const taken = this.#next!
    this.#advance(this.#begun + taken.at)
    return taken
  }

  #advance(now: number): void {
    for (;;) {
      const next = this.#requests?.next()
      if (next?.done === false) {
        this.#next = next.value
        return
      }
      const session = this.#rest.shift()
      if (session === undefined) {
        this.#next = null
        return
      }
      this.#requests = this.#script(session)
      this.#begun = now + APART
    }
  }
}
