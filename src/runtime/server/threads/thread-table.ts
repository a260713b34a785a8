/** The index of all threads, loaded or not: finds them by id, last use, messages and session, and limits how many are loaded. */
import type { ConversationPorts } from '../../context/conversation.js'
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'
import { damageError } from '../../store/damage.js'
import { listedHead, type ListedThread, type ThreadCard, type ThreadRecord, type ThreadStore } from '../../store/port.js'
import { Beginnings } from './beginnings.js'
import { type MatchCandidate, Chain } from './message-match.js'
import { Thread } from './thread.js'
import { RuntimeState, ShownSteps } from './thread-state.js'
import { UseOrder } from './use-order.js'

export interface ThreadIndexOptions {
  readonly store: ThreadStore
  /** Returns the engine functions that a thread's conversation calls. The model need not be loaded when they are made. */
  readonly portsOf: (thread: Thread) => ConversationPorts
  /**
   * Approximate bytes for loaded threads. Beyond it, unused threads are unloaded and read again when needed; threads in use may exceed it.
   * Default 64 MiB.
   */
  readonly idleBytes?: number
}

const IDLE_BYTES = 2 ** 26
/** The fewest tokens that a thread counts in its tenant's limit: engines also keep other state of it besides cells. */
const LEAST_TOKENS = 2048
const tokensOf = ({ last }: ThreadCard): number => Math.max(LEAST_TOKENS, last?.shown ?? 0)

/**
 * Finds threads by id, last use, messages and session. Work for one tenant reads no entry of another tenant. So its duration reveals
 * nothing about their threads. Except for lists, it does not grow with the number of threads.
 */
export class ThreadIndex {
  /** Tenants without threads are not in the map. */
  readonly #tenants = new Map<Tenant, TenantThreads>()
  readonly #loaded: ThreadLru
  #size = 0

  private constructor(private readonly options: ThreadIndexOptions) {
    this.#loaded = new ThreadLru(options.idleBytes ?? IDLE_BYTES, (entry) => {
      this.note(entry)
    })
  }

  /** Opens with all threads of the store, without loading their messages. */
  static async open(options: ThreadIndexOptions): Promise<ThreadIndex> {
    const index = new ThreadIndex(options)
    const listed = await options.store.index((record) => new Thread(record, options.portsOf).card)
    for (const each of [...listed].sort((a, b) => a.used - b.used)) index.#put(new ThreadEntry(each))
    return index
  }

  get size(): number {
    return this.#size
  }

  /** How many threads are loaded. */
  get loaded(): number {
    return this.#loaded.size
  }

  /** The largest time of use of all threads, in Unix milliseconds; 0 when there are none. */
  get lastUse(): number {
    let latest = 0
    for (const { uses } of this.#tenants.values()) for (const { used } of uses.fromNewest()) latest = Math.max(latest, used)
    return latest
  }

  count(tenant: Tenant): number {
    return this.#tenants.get(tenant)?.byId.size ?? 0
  }

  /** The tenant's threads, least recently used first, without loading any. */
  oldest(tenant: Tenant): Iterable<ThreadEntry> {
    return this.#tenants.get(tenant)?.uses.fromOldest() ?? []
  }

  /** Returns the index by common beginnings of threads with this tenant, model and salt; null when there are none. */
  beginnings(kind: ThreadKind): Beginnings<ThreadEntry> | null {
    return this.#tenants.get(kind.tenant)?.found(kind)?.beginnings ?? null
  }

  /**
   * Returns at most `FEW` threads that have one of these message keys among their last messages, most recently used first. Of the last
   * `FEW` keys that the index knows, it takes the one that the fewest threads have. Loads none.
   * @param keys keys of the request's messages (`messageKey`), in order
   */
  having(kind: ThreadKind, keys: readonly string[]): readonly ThreadEntry[] {
    return this.#tenants.get(kind.tenant)?.found(kind)?.lately.having(keys) ?? []
  }

  /**
   * Returns a few threads of this client session, most recently used first, without loading them. Sessions are not stored: a restart
   * forgets them.
   */
  ofSession(kind: ThreadKind, session: string): readonly ThreadEntry[] {
    const entries = [...(this.#tenants.get(kind.tenant)?.sessions.get(session) ?? [])]
    return entries
      .filter(({ model, salt }) => model === kind.model && salt === kind.salt)
      .sort((a, b) => b.used - a.used)
      .slice(0, FEW)
  }

  /** Records the client session of the entry's latest request. */
  join(entry: ThreadEntry, session: string): void {
    this.#tenants.get(entry.tenant)?.join(entry, session)
  }

  /** The tenant's threads, most recently used first, without loading any. */
  of(tenant: Tenant): readonly ThreadEntry[] {
    return [...this.oldest(tenant)].sort((a, b) => b.used - a.used)
  }

  /** Makes the entry the most recently used of its tenant. */
  use(entry: ThreadEntry): void {
    this.#tenants.get(entry.tenant)?.uses.use(entry)
  }

  /**
   * Records that engines may hold cells of the entry. Returns the entries of its tenant whose cells must be dropped, least recently used
   * first.
   * @param fewest so many of the latest entries keep their cells in any case
   * @param most tokens that all these entries together may have
   */
  warm(entry: ThreadEntry, fewest: number, most: number): readonly ThreadEntry[] {
    const warm = this.#tenants.get(entry.tenant)?.warm
    if (warm === undefined) return []
    warm.use(entry)
    entry.runtime.tokens = tokensOf(entry.card)
    let total = 0
    for (const { runtime } of warm.fromOldest()) total += runtime.tokens
    const cooled: ThreadEntry[] = []
    for (const each of warm.fromOldest()) {
      if (warm.size <= fewest || total <= most) break
      if (each.asked || each.thread?.idle === false) continue
      total -= each.runtime.tokens
      warm.delete(each)
      cooled.push(each)
    }
    return cooled
  }

  /** Updates the indexes after the entry's messages changed. */
  note(entry: ThreadEntry): void {
    if (this.has(entry)) this.#tenants.get(entry.tenant)?.note(entry)
  }

  /** Returns the entry, or null when there is none. Loads nothing. */
  find(tenant: Tenant, id: string): ThreadEntry | null {
    return this.#tenants.get(tenant)?.byId.get(id) ?? null
  }

  /** Returns the entry without loading the thread. @throws KvfoldError server/no-thread; store/damaged-thread, store/lost-thread */
  entry(tenant: Tenant, id: string): ThreadEntry {
    const entry = this.find(tenant, id)
    if (entry !== null) return entry
    const damage = this.options.store.damage().find((each) => each.tenant === tenant && each.id === id)
    throw damage === undefined ? noThread(id) : damageError(damage)
  }

  /** Returns the entry. @throws KvfoldError the errors of `entry`; engine/bad-request for a thread of another model or salt */
  entryFor({ tenant, model, salt }: ThreadKind, id: string): ThreadEntry {
    const entry = this.entry(tenant, id)
    const bad = (message: string) => new KvfoldError('engine/bad-request', message)
    if (entry.model !== model) throw bad(`Thread ${id} is one of model ${entry.model}, not of ${model}; begin a new one.`)
    if (entry.salt === salt) return entry
    throw bad(
      entry.salt === undefined
        ? `Thread ${id} began without a cache_salt; leave cache_salt out, or begin a new thread.`
        : `Thread ${id} began with a cache_salt that this request does not have; send that one, or begin a new thread.`,
    )
  }

  /** Returns the thread's entry; null when the thread was dropped or another object replaced it. */
  entryOf(thread: Thread): ThreadEntry | null {
    const entry = this.find(thread.tenant, thread.id)
    return entry?.thread === thread ? entry : null
  }

  has(entry: ThreadEntry): boolean {
    return this.find(entry.tenant, entry.id) === entry
  }

  /**
   * Returns the entry's thread, loaded. It may be unloaded again at the caller's next `await`, unless it is `asked` or `held`.
   * @throws KvfoldError store/damaged-thread, after the entry was dropped; store/failed; server/no-thread when the store does not have it
   */
  load(entry: ThreadEntry): Thread {
    let { thread } = entry
    if (thread === null) {
      const record = this.#read(entry)
      if (record === null) throw noThread(entry.id)
      thread = new Thread(record, this.options.portsOf, entry.runtime)
      entry.load(thread)
    }
    this.#loaded.use(entry)
    return thread
  }

  add(thread: Thread): void {
    const entry = new ThreadEntry(thread)
    this.#put(entry)
    this.#loaded.use(entry)
  }

  /** Removes the entry from the index; the store keeps the thread. */
  drop(entry: ThreadEntry): void {
    const threads = this.#tenants.get(entry.tenant)
    if (threads?.delete(entry) === true) this.#size--
    if (threads?.byId.size === 0) this.#tenants.delete(entry.tenant)
    this.#loaded.delete(entry)
  }

  /** Puts a dropped entry back after its deletion failed. */
  restore(entry: ThreadEntry): void {
    entry.discard()
    if (this.find(entry.tenant, entry.id) !== null) return
    this.#put(entry)
    for (const each of [...this.oldest(entry.tenant)].sort((a, b) => a.used - b.used)) this.use(each)
  }

  /** Drops the loaded thread because the stored one may differ. Its next use loads it again. */
  discard(tenant: Tenant, id: string): void {
    const entry = this.find(tenant, id)
    if (entry === null) return
    entry.discard()
    this.note(entry)
    this.#loaded.delete(entry)
  }

  /**
   * Adds or updates a thread that another server created or changed. A thread in use here stays as it is, and the store will refuse its
   * changes. Returns true when the thread is new.
   */
  renew(listed: ListedThread): boolean {
    const { tenant, id } = listed
    const known = this.find(tenant, id)
    if (known === null) this.#put(new ThreadEntry(listed))
    else {
      known.renew(listed)
      this.use(known)
    }
    if (known?.thread?.idle !== false) this.discard(tenant, id)
    return known === null
  }

  /** Counts the thread's bytes again, and unloads unused threads if loaded threads take too much memory. */
  trim(thread: Thread): void {
    const entry = this.entryOf(thread)
    if (entry !== null) {
      this.note(entry)
      this.#loaded.grown(entry)
    }
    this.#loaded.trim()
  }

  #read(entry: ThreadEntry): ThreadRecord | null {
    try {
      return this.options.store.read(entry.tenant, entry.id)
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'store/damaged-thread') this.drop(entry)
      throw error
    }
  }

  #put(entry: ThreadEntry): void {
    const { tenant } = entry
    const threads = this.#tenants.get(tenant) ?? new TenantThreads()
    this.#tenants.set(tenant, threads)
    threads.add(entry)
    this.#size++
  }
}

export const noThread = (id: string): KvfoldError =>
  new KvfoldError('server/no-thread', `There is no thread ${JSON.stringify(id.slice(0, 80))}; it was deleted, or never was.`)

// The threads of one tenant, and the indexes that find them.

/** A request finds only threads with the same tenant, model and salt. */
type ThreadKind = Pick<KnownThread, 'tenant' | 'model'> & { readonly salt?: string | undefined }

/** A map key for model and salt. Digests of salts contain no space. */
const nameOf = ({ model, salt = '' }: ThreadKind): string => `${salt} ${model}`

class TenantThreads {
  readonly byId = new Map<string, ThreadEntry>()
  readonly uses = new UseOrder<ThreadEntry>()
  /** Threads of which engines may hold cells, in the order of their last use. */
  readonly warm = new UseOrder<ThreadEntry>()
  /** The indexes by messages, for each model and salt (`nameOf`). */
  readonly #kinds = new Map<string, FoundByMessages>()
  /** The threads of each client session, by the session's name. */
  readonly sessions = new Map<string, Set<ThreadEntry>>()

  add(entry: ThreadEntry): void {
    this.byId.set(entry.id, entry)
    this.uses.use(entry)
    this.note(entry)
  }

  found(kind: ThreadKind): FoundByMessages | undefined {
    return this.#kinds.get(nameOf(kind))
  }

  note(entry: ThreadEntry): void {
    const newest = () => this.uses.fromNewest()
    const found = this.found(entry) ?? { beginnings: new Beginnings(newest), lately: new RecentMessageIndex(newest) }
    this.#kinds.set(nameOf(entry), found)
    found.beginnings.note(entry)
    found.lately.note(entry, entry.ends)
  }

  /** Moves the entry to another client session. @param session null: the entry leaves its session */
  join(entry: ThreadEntry, session: string | null): void {
    if (entry.session === session) return
    const before = entry.session === null ? undefined : this.sessions.get(entry.session)
    before?.delete(entry)
    if (before?.size === 0) this.sessions.delete(entry.session!)
    entry.session = session
    if (session !== null) this.sessions.set(session, (this.sessions.get(session) ?? new Set()).add(entry))
  }

  /** Removes the entry from all indexes of its tenant. Returns false when it was not in them. */
  delete(entry: ThreadEntry): boolean {
    this.join(entry, null)
    this.uses.delete(entry)
    this.warm.delete(entry)
    const found = this.found(entry)
    found?.lately.note(entry, [])
    found?.beginnings.delete(entry)
    if (found?.beginnings.size === 0) this.#kinds.delete(nameOf(entry))
    return this.byId.delete(entry.id)
  }
}

interface FoundByMessages {
  readonly beginnings: Beginnings<ThreadEntry>
  readonly lately: RecentMessageIndex
}

// Finds threads by their last messages, for clients that changed earlier ones.

/** The most keys compared in one search, and the most threads it returns. */
export const FEW = 8
/** If more threads than this have the rarest key, only the most recently used of them are returned. */
const MANY = 256

class RecentMessageIndex {
  readonly #entries = new Map<string, Set<ThreadEntry>>()
  readonly #keys = new Map<ThreadEntry, readonly string[]>()

  /** @param newest returns all threads of the tenant, most recently used first */
  constructor(private readonly newest: () => Iterable<ThreadEntry>) {}

  note(entry: ThreadEntry, keys: readonly string[]): void {
    const before = this.#keys.get(entry) ?? []
    if (before.length === keys.length && before.every((key, at) => key === keys[at])) return
    for (const key of before) {
      const entries = this.#entries.get(key)
      entries?.delete(entry)
      if (entries?.size === 0) this.#entries.delete(key)
    }
    if (keys.length === 0) this.#keys.delete(entry)
    else this.#keys.set(entry, keys)
    for (const key of keys) this.#entries.set(key, (this.#entries.get(key) ?? new Set()).add(entry))
  }

  having(keys: readonly string[]): readonly ThreadEntry[] {
    let rarest: ReadonlySet<ThreadEntry> = new Set()
    for (let at = keys.length - 1, known = 0; at >= 0 && known < FEW; at--) {
      const entries = this.#entries.get(keys[at]!)
      if (entries === undefined) continue
      known++
      if (known === 1 || entries.size < rarest.size) rarest = entries
    }
    const found: ThreadEntry[] = []
    if (rarest.size <= MANY) found.push(...rarest)
    else
      for (const entry of this.newest()) {
        if (rarest.has(entry)) found.push(entry)
        if (found.length === FEW) break
      }
    return found.sort((a, b) => b.used - a.used).slice(0, FEW)
  }
}

// Decides which threads stay loaded: those in use, and as many recently used ones as fit.

/**
 * The loaded threads, least recently used first. Unloading loses nothing, because the store has all acknowledged changes. While there is
 * room, using a thread looks at no other thread.
 */
class ThreadLru {
  /** Approximate bytes of each loaded thread, least recently used first. */
  readonly #entries = new Map<ThreadEntry, number>()
  /** The sum of `#entries`. */
  #bytes = 0

  /**
   * @param room approximate bytes for loaded threads; threads in use may exceed it
   * @param onPutAway called for each entry that was unloaded
   */
  constructor(
    private readonly room: number,
    private readonly onPutAway: (entry: ThreadEntry) => void,
  ) {}

  /** How many threads are loaded. */
  get size(): number {
    return this.#entries.size
  }

  /** Records a use of a loaded thread. May unload others. */
  use(entry: ThreadEntry): void {
    this.delete(entry)
    this.trim()
    this.#count(entry)
  }

  /** Counts the entry's bytes again. */
  grown(entry: ThreadEntry): void {
    if (this.#entries.has(entry)) this.#count(entry)
  }

  delete(entry: ThreadEntry): void {
    this.#bytes -= this.#entries.get(entry) ?? 0
    this.#entries.delete(entry)
  }

  /** Unloads unused threads, least recently used first, until the loaded ones fit into `room`. */
  trim(): void {
    for (const entry of this.#entries.keys()) {
      if (this.#bytes <= this.room) return
      if (entry.thread?.idle === false) continue
      entry.putAway()
      this.delete(entry)
      this.onPutAway(entry)
    }
  }

  #count(entry: ThreadEntry): void {
    const bytes = entry.thread?.size ?? 0
    this.#bytes += bytes - (this.#entries.get(entry) ?? 0)
    this.#entries.set(entry, bytes)
  }
}

// A thread in the index: what is needed to match and list it. Its messages are loaded on demand.

/** What is known of a thread without loading it. */
export type KnownThread = Pick<
  Thread,
  'tenant' | 'salt' | 'id' | 'model' | 'created' | 'used' | 'parent' | 'contract' | 'asked' | 'chain' | 'card'
>

export class ThreadEntry implements KnownThread, MatchCandidate {
  readonly runtime: RuntimeState
  /** The client session of its latest request; null when the client named none. */
  session: string | null = null
  /** The loaded thread; null while its messages are only in the store. */
  #thread: Thread | null
  #listed: ListedThread
  #chain: Chain

  /** @param of a thread as the store lists it, or a loaded thread */
  constructor(of: ListedThread | Thread) {
    const isLoaded = 'runtime' in of
    this.runtime = isLoaded ? of.runtime : new RuntimeState()
    this.#thread = isLoaded ? of : null
    this.#listed = isLoaded ? { ...listedHead(of.head), card: of.card } : of
    this.#chain = new Chain(this.#listed.card.chain)
  }

  get thread(): Thread | null {
    return this.#thread
  }

  /** Attaches the loaded thread; the entry then reads its facts from it. */
  load(thread: Thread): void {
    this.#thread = thread
  }

  /** Unloads the thread. The store must have all its changes, and no caller may use the object afterwards. */
  putAway(): void {
    if (this.#thread === null) return
    this.renew({ ...listedHead(this.#thread.head), card: this.#thread.card })
    this.runtime.putAway(this.#thread.tools)
    this.#thread = null
  }

  /** Replaces the stored facts, which the entry gives while its thread is not loaded. */
  renew(listed: ListedThread): void {
    this.#listed = listed
    this.#chain = new Chain(listed.card.chain)
  }

  /** Takes the thread's card as the store now has it. */
  saved(card: ThreadCard): void {
    this.runtime.tokens = tokensOf(card)
    if (this.#thread !== null) this.renew({ ...listedHead(this.#thread.head), card })
  }

  /** Drops the loaded thread because it differs from the stored one. Until the next load the entry gives the facts stored last. */
  discard(): void {
    if (this.#thread !== null) this.runtime.putAway(this.#thread.tools)
    this.#thread = null
    this.runtime.shown = new ShownSteps()
  }

  get tenant(): string {
    return this.#listed.tenant
  }

  get salt(): string | undefined {
    return this.#listed.salt
  }

  get id(): string {
    return this.#listed.id
  }

  get model(): string {
    return this.#listed.model
  }

  get created(): number {
    return this.#listed.created
  }

  get parent(): string | null {
    return this.#listed.parent
  }

  get used(): number {
    return (this.#thread ?? this.#listed).used
  }

  get contract(): ListedThread['contract'] {
    return (this.#thread ?? this.#listed).contract
  }

  get card(): ThreadCard {
    return (this.#thread ?? this.#listed).card
  }

  get chain(): Chain {
    return this.#thread?.chain ?? this.#chain
  }

  /** Keys of the thread's last known messages (`messageKey`). */
  get ends(): readonly string[] {
    return this.#thread?.ends ?? this.#listed.card.ends ?? []
  }

  get asked(): boolean {
    return this.#thread?.asked ?? false
  }
}
