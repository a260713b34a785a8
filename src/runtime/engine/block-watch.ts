/** Tells an outlet which blocks of tokens a cache holds exactly. Reads the cache only between decodes. */
import { inTurns } from '../core/turns.js'
import { type BlockEvent, BlockEvents, type HeldTexts } from '../kv/block-events.js'

/** Receives the events of one engine. */
export interface BlockOutlet {
  /** Resolves when the outlet can take more events. The watch waits for that, and then tells all changes since its last call at once. */
  tell(events: readonly BlockEvent[]): Promise<void>
}

/** What the watch needs of the cache. */
export interface WatchedCache {
  readonly revision?: number
  held?(): HeldTexts
}

/** Milliseconds between two checks for changes without a step: an eviction, a move to another tier, forgotten text. */
const LOOK = 200

export class BlockWatch {
  readonly #events = new BlockEvents()
  readonly #timer: NodeJS.Timeout
  #seen = -1
  #due = false
  #running: Promise<void> | null = null
  #ended = false

  /**
   * @param between runs its argument while no decode runs (Scheduler.between)
   * @param usual the key of the adapters that are part of the served model; blocks under them are announced as if without adapters
   */
  constructor(
    private readonly cache: WatchedCache,
    private readonly between: <T>(errand: () => T) => Promise<T>,
    private readonly outlet: BlockOutlet,
    private readonly usual: string,
  ) {
    this.#timer = setInterval(() => {
      if ((this.cache.revision ?? this.#seen) !== this.#seen) this.later()
    }, LOOK)
    this.#timer.unref()
  }

  /** Checks for changes as soon as possible. Call it when a step has ended. */
  later(): void {
    this.#due = true
    if (this.#ended) return
    // Ignore failures (the engine's end, a lost context): requests report them.
    this.#running ??= this.#run()
      .catch(() => undefined)
      .finally(() => {
        this.#running = null
      })
  }

  /** Announces that all blocks are gone. Call it before the engine's memory is freed. */
  async end(): Promise<void> {
    if (this.#ended) return
    this.#ended = true
    clearInterval(this.#timer)
    await this.#running
    await this.#tell(await inTurns(this.#events.end()))
  }

  async #run(): Promise<void> {
    while (this.#due && !this.#ended) {
      this.#due = false
      const changes = await this.between(() => {
        this.#seen = this.cache.revision ?? this.#seen
        return this.#events.changes(this.cache.held?.() ?? { device: [], stored: [] })
      })
      if (changes.gone.length > 0 || changes.news.length > 0) await this.#tell(await inTurns(this.#events.eventsOf(changes)))
    }
  }

  async #tell(events: readonly BlockEvent[]): Promise<void> {
    // A failing outlet must not stop a server that answers. The outlet reports its own problems.
    const told = events.map((event) => (event.kind === 'stored' ? { ...event, adapters: this.#named(event.adapters) } : event))
    if (told.length > 0) await this.outlet.tell(told).catch(() => undefined)
  }

  /** Returns the name of a set of adapters in events: empty for the usual set, `none` for no adapters, else the key. */
  #named(key: string): string {
    if (key === this.usual) return ''
    return key === '' ? 'none' : key
  }
}
