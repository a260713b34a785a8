/** Owns all threads there are, whether their messages are in memory or in the store alone. */
import type { ConversationPorts } from '../../context/conversation.js'
import { KvfoldError } from '../../core/errors.js'
import { damageError } from '../../store/damage.js'
import type { ThreadRecord, ThreadStore } from '../../store/port.js'
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

/** What is done for one tenant touches no entry of another: neither its threads nor their number are to be told from the time it takes. */
export class ThreadIndex {
  /** By id; no tenant without entries. */
  readonly #tenants = new Map<Tenant, Map<string, BookEntry>>()
  readonly #loaded: Loaded

  private constructor(private readonly options: ThreadIndexOptions) {
    this.#loaded = new Loaded(options.idleBytes ?? IDLE_BYTES)
  }

  /** With all that the store has, of which nothing is loaded yet. */
  static async open(options: ThreadIndexOptions): Promise<ThreadIndex> {
    const index = new ThreadIndex(options)
    const listed = await options.store.index((record) => new Thread(record, options.portsOf).card)
    for (const each of listed) index.#put(new BookEntry(each))
    return index
  }

  get size(): number {
    return [...this.#tenants.values()].reduce((sum, { size }) => sum + size, 0)
  }

  /** Threads in memory. */
  get loaded(): number {
    return this.#loaded.size
  }

  /** When a thread of anybody was last used; 0 when there are none. */
  get lastUse(): number {
    const all = [...this.#tenants.values()].flatMap((entries) => [...entries.values()])
    return all.reduce((latest, { used }) => Math.max(latest, used), 0)
  }

  /** In any order; loads nothing. */
  each(tenant: Tenant): Iterable<BookEntry> {
    return this.#tenants.get(tenant)?.values() ?? []
  }

  /** Most recently used first; loads nothing. */
  of(tenant: Tenant): readonly BookEntry[] {
    return [...this.each(tenant)].sort((a, b) => b.used - a.used)
  }

  /** Loads nothing. @throws KvfoldError server/no-thread; store/damaged-thread, store/lost-thread */
  entry(tenant: Tenant, id: string): BookEntry {
    const entry = this.#tenants.get(tenant)?.get(id)
    if (entry !== undefined) return entry
    const damage = this.options.store.damage().find((each) => each.tenant === tenant && each.id === id)
    throw damage === undefined ? noThread(id) : damageError(damage)
  }

  /** Null when the thread is no longer what there is of it. */
  entryOf(thread: Thread): BookEntry | null {
    const entry = this.#tenants.get(thread.tenant)?.get(thread.id)
    return entry?.thread === thread ? entry : null
  }

  has(entry: BookEntry): boolean {
    return this.#tenants.get(entry.tenant)?.get(entry.id) === entry
  }

  /**
   * The entry's thread. It may be put away as soon as the caller lets others run, unless it is `asked` or `held`.
   * @throws KvfoldError store/damaged-thread, and it is an entry no longer; store/failed; server/no-thread when the store does not have it
   */
  load(entry: BookEntry): Thread {
    let { thread } = entry
    if (thread === null) {
      const record = this.#read(entry)
      if (record === null) throw noThread(entry.id)
      thread = new Thread(record, this.options.portsOf, entry.kept)
      entry.load(thread)
    }
    this.#loaded.use(entry)
    return thread
  }

  add(thread: Thread): void {
    const entry = new BookEntry(thread)
    this.#put(entry)
    this.#loaded.use(entry)
  }

  /** What is in the store stays there. */
  drop(entry: BookEntry): void {
    const { tenant, id } = entry
    const entries = this.#tenants.get(tenant)
    entries?.delete(id)
    if (entries?.size === 0) this.#tenants.delete(tenant)
    this.#loaded.delete(entry)
  }

  /** The thread is not what is stored: it is loaded again by whoever wants it next. */
  discard(entry: BookEntry): void {
    entry.discard()
    this.#loaded.delete(entry)
  }

  /** The thread is as large as it is now; idle ones are put away as far as there is no room for them. */
  trim(thread: Thread): void {
    const entry = this.entryOf(thread)
    if (entry !== null) this.#loaded.grown(entry)
    this.#loaded.trim()
  }

  #read(entry: BookEntry): ThreadRecord | null {
    try {
      return this.options.store.read(entry.tenant, entry.id)
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'store/damaged-thread') this.drop(entry)
      throw error
    }
  }

  #put(entry: BookEntry): void {
    const { tenant, id } = entry
    const entries = this.#tenants.get(tenant) ?? new Map<string, BookEntry>()
    this.#tenants.set(tenant, entries.set(id, entry))
  }
}

export const noThread = (id: string): KvfoldError =>
  new KvfoldError('server/no-thread', `There is no thread ${JSON.stringify(id.slice(0, 80))}; it was deleted, or never was.`)
