/** Owns all threads there are, whether their messages are in memory or in the store alone. */
import type { ConversationPorts } from '../../context/conversation.js'
import { KvfoldError } from '../../core/errors.js'
import type { ThreadStore } from '../../store/port.js'
import { BookEntry } from './book-entry.js'
import { Loaded } from './loaded.js'
import type { Tenant } from './tenant.js'
import { Thread } from './thread.js'

export interface ThreadIndexOptions {
  readonly store: ThreadStore
  /** What a thread's conversation needs of its model's engine, which may be loaded or not. */
  readonly portsOf: (thread: Thread) => ConversationPorts
  /** Bytes, about, of threads that stay in memory though nobody uses them; the others are read again when they are. Default 64 MiB. */
  readonly idleBytes?: number
}

const IDLE_BYTES = 2 ** 26

export class ThreadIndex {
  readonly #entries = new Map<string, BookEntry>()
  readonly #loaded: Loaded

  private constructor(private readonly options: ThreadIndexOptions) {
    this.#loaded = new Loaded(options.idleBytes ?? IDLE_BYTES)
  }

  /** With all that the store has, of which nothing is loaded yet. */
  static async open(options: ThreadIndexOptions): Promise<ThreadIndex> {
    const index = new ThreadIndex(options)
    const listed = await options.store.index((record) => new Thread(record, options.portsOf).card)
    for (const each of listed) index.#entries.set(each.id, new BookEntry(each))
    return index
  }

  get size(): number {
    return this.#entries.size
  }

  /** Threads in memory. */
  get loaded(): number {
    return this.#loaded.size
  }

  /** When a thread was last used; 0 when there are none. */
  get lastUse(): number {
    return [...this.#entries.values()].reduce((latest, { used }) => Math.max(latest, used), 0)
  }

  /** Most recently used first; loads nothing. */
  of(tenant: Tenant): readonly BookEntry[] {
    return [...this.#entries.values()].filter((entry) => entry.tenant === tenant).sort((a, b) => b.used - a.used)
  }

  /** Loads nothing. @throws KvfoldError server/no-thread */
  entry(tenant: Tenant, id: string): BookEntry {
    const entry = this.#entries.get(id)
    if (entry?.tenant === tenant) return entry
    throw noThread(id)
  }

  /** Null when the thread is no longer what there is of it. */
  entryOf(thread: Thread): BookEntry | null {
    const entry = this.#entries.get(thread.id)
    return entry?.thread === thread ? entry : null
  }

  has(entry: BookEntry): boolean {
    return this.#entries.get(entry.id) === entry
  }

  /**
   * The entry's thread. It may be put away as soon as the caller lets others run, unless it is `asked` or `held`.
   * @throws KvfoldError store/damaged, store/failed; server/no-thread when the store does not have it
   */
  load(entry: BookEntry): Thread {
    let { thread } = entry
    if (thread === null) {
      const record = this.options.store.read(entry.tenant, entry.id)
      if (record === null) throw noThread(entry.id)
      thread = new Thread(record, this.options.portsOf, entry.kept)
      entry.load(thread)
    }
    this.#loaded.use(entry)
    return thread
  }

  add(thread: Thread): void {
    const entry = new BookEntry(thread)
    this.#entries.set(thread.id, entry)
    this.#loaded.use(entry)
  }

  /** What is in the store stays there. */
  drop(entry: BookEntry): void {
    this.#entries.delete(entry.id)
    this.#loaded.delete(entry)
  }

  /** The thread is not what is stored: it is loaded again by whoever wants it next. */
  discard(entry: BookEntry): void {
    entry.discard()
    this.#loaded.delete(entry)
  }

  /** Puts idle threads away, as far as there is no room for them. */
  trim(): void {
    this.#loaded.trim()
  }
}

export const noThread = (id: string): KvfoldError =>
  new KvfoldError('server/no-thread', `There is no thread ${JSON.stringify(id.slice(0, 80))}; it was deleted, or never was.`)
