/** Owns the requests that are being answered, and how they end when the server does. */
import { KvfoldError } from '../core/errors.js'

/** One request on its way. */
export interface Run {
  /** Aborted when the client is gone or the server's patience with it. */
  readonly signal: AbortSignal
  cancel(): void
  leave(): void
}

export class Running {
  readonly #runs = new Set<AbortController>()
  readonly #watchers = new Set<() => void>()
  #closing = false
  #empty: (() => void) | null = null

  get closing(): boolean {
    return this.#closing
  }

  get count(): number {
    return this.#runs.size
  }

  /** @throws KvfoldError server/closing */
  enter(): Run {
    this.refuseClosing()
    const controller = new AbortController()
    this.#runs.add(controller)
    return {
      signal: controller.signal,
      cancel: () => {
        controller.abort()
      },
      leave: () => {
        this.#runs.delete(controller)
        if (this.#runs.size === 0) this.#empty?.()
      },
    }
  }

  refuseClosing(): void {
    if (this.#closing)
      throw new KvfoldError(
        'server/closing',
        'This server is shutting down and takes no more requests; ask again when it is back.',
      )
  }

  /** Streams that would never end by themselves: `end` is called when the server closes. Returns how to take it back. */
  watch(end: () => void): () => void {
    this.#watchers.add(end)
    return () => this.#watchers.delete(end)
  }

  /** Takes no more requests; resolves when those that run have ended, which they are made to after `graceMs`. */
  async close(graceMs: number): Promise<void> {
    this.#closing = true
    for (const end of this.#watchers) end()
    if (this.#runs.size === 0) return
    const empty = new Promise<void>((resolve) => (this.#empty = resolve))
    const timer = setTimeout(() => {
      for (const controller of this.#runs) controller.abort()
    }, graceMs)
    await empty
    clearTimeout(timer)
  }
}
