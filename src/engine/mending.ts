/** Owns what `auto` promises of spliced conversations: they are made exact when nothing else runs. */
import type { ConversationId } from '../core/ids.js'
import type { CacheTotals } from '../kv/cache.js'
import type { RefreshResult } from './refresh.js'

/** What it needs of the engine. */
export interface MendingPorts {
  /** Waits until nothing runs, and between its slices. */
  readonly refresh: (conversation: ConversationId, signal: AbortSignal) => Promise<RefreshResult>
  readonly compact: (conversation: ConversationId) => Promise<unknown>
  readonly totals: () => Pick<CacheTotals, 'reach' | 'used'>
}

/** Attention runs over this many times the cells in use before they are moved together. */
const COMPACT_FROM = 1.5

export class BackgroundRecompute {
  readonly #running = new Set<ConversationId>()
  readonly #ending = new AbortController()

  constructor(private readonly ports: MendingPorts) {}

  /** Makes the conversation exact as soon as nothing runs, and moves its cells together if attention runs over many free ones. */
  later(conversation: ConversationId): void {
    if (this.#running.has(conversation)) return
    this.#running.add(conversation)
    // What comes in between (a full context, the end of the engine) leaves the conversation as it was.
    void this.#mend(conversation)
      .catch(() => undefined)
      .finally(() => this.#running.delete(conversation))
  }

  /** Interrupts what runs; the engine ends. */
  end(): void {
    this.#ending.abort()
  }

  async #mend(conversation: ConversationId): Promise<void> {
    const { refresh, compact, totals } = this.ports
    const { exact } = await refresh(conversation, this.#ending.signal)
    const { reach, used } = totals()
    if (exact && reach > COMPACT_FROM * used) await compact(conversation)
  }
}
