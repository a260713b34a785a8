/** Owns all threads there are, whether their messages are in memory or in the store alone. */
import type { ConversationPorts } from '../../context/conversation.js'
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'
import { damageError } from '../../store/damage.js'
import type { ListedThread, ThreadCard, ThreadRecord, ThreadStore } from '../../store/port.js'
import { Beginnings } from './beginnings.js'
import { type MatchCandidate, Chain } from './message-match.js'
import { Thread } from './thread.js'
import { RuntimeState, ShownSteps } from './thread-state.js'
import { UseOrder } from './use-order.js'

export interface ThreadIndexOptions {
  readonly store: ThreadStore
  /** What a thread's conversation needs of its model's engine, which may be loaded or not. */
  readonly portsOf: (thread: Thread) => ConversationPorts
  /** Bytes, about, of threads that stay in memory though nobody uses them; the others are read again when they are. Default 64 MiB. */
  readonly idleBytes?: number
}

const IDLE_BYTES = 2 ** 26

/**
 * What is done for one tenant touches no entry of another: neither its threads nor their number are to be told from the time it takes. Nor does it
 * take longer the more threads the tenant has, but for listing them.
 */
export class ThreadIndex {
  /** No tenant without entries. */
  readonly #tenants = new Map<Tenant, TenantThreads>()
  readonly #loaded: ThreadLru
  #size = 0

  private constructor(private readonly options: ThreadIndexOptions) {
    this.#loaded = new ThreadLru(options.idleBytes ?? IDLE_BYTES, (entry) => {
      this.note(entry)
    })
  }

  /** With all that the store has, of which nothing is loaded yet. */
  static async open(options: ThreadIndexOptions): Promise<ThreadIndex> {
    const index = new ThreadIndex(options)
    const listed = await options.store.index((record) => new Thread(record, options.portsOf).card)
    for (const each of [...listed].sort((a, b) => a.used - b.used)) index.#put(new ThreadEntry(each))
    return index
  }

  get size(): number {
    return this.#size
  }

  /** Threads in memory. */
  get loaded(): number {
    return this.#loaded.size
  }

  /** When a thread of anybody was last used; 0 when there are none. */
  get lastUse(): number {
    let latest = 0
    for (const { uses } of this.#tenants.values()) for (const { used } of uses.fromNewest()) latest = Math.max(latest, used)
    return latest
  }

  /** Threads that the tenant has. */
  count(tenant: Tenant): number {
    return this.#tenants.get(tenant)?.byId.size ?? 0
  }

  /** Longest unused first; loads nothing. */
  oldest(tenant: Tenant): Iterable<ThreadEntry> {
    return this.#tenants.get(tenant)?.uses.fromOldest() ?? []
  }

  /** The tenant's threads of this model, by what they begin with; null: there are none. */
  beginnings(tenant: Tenant, model: string): Beginnings<ThreadEntry> | null {
    return this.#tenants.get(tenant)?.beginnings.get(model) ?? null
  }

  /**
   * Threads of which one of the last messages is among these (`messageKey`), the latest used first: a few of those that have the one that is rarest among
   * the last known. Looks no further back than needed. Loads nothing.
   */
  having(tenant: Tenant, model: string, keys: readonly string[]): readonly ThreadEntry[] {
    const threads = this.#tenants.get(tenant)
    return threads === undefined ? [] : threads.lately.having(keys, (entry) => entry.model === model)
  }

  /** Most recently used first; loads nothing. */
  of(tenant: Tenant): readonly ThreadEntry[] {
    return [...this.oldest(tenant)].sort((a, b) => b.used - a.used)
  }

  /** The entry is used now. */
  use(entry: ThreadEntry): void {
    this.#tenants.get(entry.tenant)?.uses.use(entry)
  }

  /** Engines may hold cells of the entry from now on. Says which others of its tenant are to be forgotten there: more than `most` are not remembered. */
  warm(entry: ThreadEntry, most: number): readonly ThreadEntry[] {
    const warm = this.#tenants.get(entry.tenant)?.warm
    if (warm === undefined) return []
    warm.use(entry)
    const cooled: ThreadEntry[] = []
    for (const each of warm.fromOldest()) {
      if (warm.size <= most) break
      if (each.asked) continue
      warm.delete(each)
      cooled.push(each)
    }
    return cooled
  }

  /** What the entry is found by has changed, or may have. */
  note(entry: ThreadEntry): void {
    if (this.has(entry)) this.#tenants.get(entry.tenant)?.note(entry)
  }

  /** Loads nothing. */
  find(tenant: Tenant, id: string): ThreadEntry | null {
    return this.#tenants.get(tenant)?.byId.get(id) ?? null
  }

  /** Loads nothing. @throws KvfoldError server/no-thread; store/damaged-thread, store/lost-thread */
  entry(tenant: Tenant, id: string): ThreadEntry {
    const entry = this.find(tenant, id)
    if (entry !== null) return entry
    const damage = this.options.store.damage().find((each) => each.tenant === tenant && each.id === id)
    throw damage === undefined ? noThread(id) : damageError(damage)
  }

  /** Loads nothing. @throws KvfoldError what `entry` throws; engine/bad-request for a thread of another model */
  entryFor(tenant: Tenant, id: string, model: string): ThreadEntry {
    const entry = this.entry(tenant, id)
    if (entry.model === model) return entry
    throw new KvfoldError('engine/bad-request', `Thread ${id} is one of model ${entry.model}, not of ${model}; begin a new one.`)
  }

  /** Null when the thread is no longer what there is of it. */
  entryOf(thread: Thread): ThreadEntry | null {
    const entry = this.find(thread.tenant, thread.id)
    return entry?.thread === thread ? entry : null
  }

  has(entry: ThreadEntry): boolean {
    return this.find(entry.tenant, entry.id) === entry
  }

  /**
   * The entry's thread. It may be put away as soon as the caller lets others run, unless it is `asked` or `held`.
   * @throws KvfoldError store/damaged-thread, and it is an entry no longer; store/failed; server/no-thread when the store does not have it
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

  /** What is in the store stays there. */
  drop(entry: ThreadEntry): void {
    const threads = this.#tenants.get(entry.tenant)
    if (threads?.delete(entry) === true) this.#size--
    if (threads?.byId.size === 0) this.#tenants.delete(entry.tenant)
    this.#loaded.delete(entry)
  }

  /** It is in the store still, whatever was dropped of it. */
  restore(entry: ThreadEntry): void {
    entry.discard()
    if (this.find(entry.tenant, entry.id) !== null) return
    this.#put(entry)
    for (const each of [...this.oldest(entry.tenant)].sort((a, b) => a.used - b.used)) this.use(each)
  }

  /** What is in memory of the thread is not what is stored: it is loaded again by whoever wants it next. */
  discard(tenant: Tenant, id: string): void {
    const entry = this.find(tenant, id)
    if (entry === null) return
    entry.discard()
    this.note(entry)
    this.#loaded.delete(entry)
  }

  /** Another server made or changed the thread. One that is in use here stays as it is; what is done to it is refused by the store. True: it is new. */
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

  /** The thread is as large as it is now; idle ones are put away as far as there is no room for them. */
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

// The threads of one tenant, and what they are found by.

class TenantThreads {
  readonly byId = new Map<string, ThreadEntry>()
  readonly uses = new UseOrder<ThreadEntry>()
  /** Those that engines may hold cells of. */
  readonly warm = new UseOrder<ThreadEntry>()
  readonly lately = new Lately(() => this.uses.fromNewest())
  readonly beginnings = new Map<string, Beginnings<ThreadEntry>>()

  add(entry: ThreadEntry): void {
    this.byId.set(entry.id, entry)
    this.uses.use(entry)
    this.note(entry)
  }

  note(entry: ThreadEntry): void {
    const { model } = entry
    const beginnings = this.beginnings.get(model) ?? new Beginnings(() => this.uses.fromNewest())
    this.beginnings.set(model, beginnings)
    beginnings.note(entry)
    this.lately.note(entry, entry.ends)
  }

  /** False: it was not there. */
  delete(entry: ThreadEntry): boolean {
    const { id, model } = entry
    this.uses.delete(entry)
    this.warm.delete(entry)
    this.lately.note(entry, [])
    const beginnings = this.beginnings.get(model)
    beginnings?.delete(entry)
    if (beginnings?.size === 0) this.beginnings.delete(model)
    return this.byId.delete(id)
  }
}

// Which threads had a message lately: what clients that change earlier messages are found by.

/** Known messages that are looked at, and threads that are told. */
export const FEW = 8
/** Threads that have a message, up to which all of them are looked at. */
const MANY = 256

class Lately {
  readonly #entries = new Map<string, Set<ThreadEntry>>()
  readonly #keys = new Map<ThreadEntry, readonly string[]>()

  /** @param newest all threads there may be, those used last first */
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

  having(keys: readonly string[], which: (entry: ThreadEntry) => boolean): readonly ThreadEntry[] {
    let rarest: ReadonlySet<ThreadEntry> = new Set()
    for (let at = keys.length - 1, known = 0; at >= 0 && known < FEW; at--) {
      const entries = this.#entries.get(keys[at]!)
      if (entries === undefined) continue
      known++
      if (known === 1 || entries.size < rarest.size) rarest = entries
    }
    const found: ThreadEntry[] = []
    if (rarest.size <= MANY) found.push(...[...rarest].filter(which))
    else
      for (const entry of this.newest()) {
        if (rarest.has(entry) && which(entry)) found.push(entry)
        if (found.length === FEW) break
      }
    return found.sort((a, b) => b.used - a.used).slice(0, FEW)
  }
}

// Which threads stay in memory: those that somebody uses, and of the others the ones used last, as far as there is room.

/**
 * Nothing is lost with a thread that is put away: all that was told to anybody is in the store. As long as there is room, the use of one looks at
 * no other.
 */
class ThreadLru {
  /** The bytes that each was counted with; longest unused first. */
  readonly #entries = new Map<ThreadEntry, number>()
  /** Their sum. */
  #bytes = 0

  /**
   * @param room bytes, about, that threads take; those in use may take more
   * @param onPutAway told of each entry whose messages are in memory no more
   */
  constructor(
    private readonly room: number,
    private readonly onPutAway: (entry: ThreadEntry) => void,
  ) {}

  /** Threads in memory. */
  get size(): number {
    return this.#entries.size
  }

  /** The entry, which has its thread, is used now; others may be put away for it. */
  use(entry: ThreadEntry): void {
    this.delete(entry)
    this.trim()
    this.#count(entry)
  }

  /** Counts the entry again. */
  grown(entry: ThreadEntry): void {
    if (this.#entries.has(entry)) this.#count(entry)
  }

  delete(entry: ThreadEntry): void {
    this.#bytes -= this.#entries.get(entry) ?? 0
    this.#entries.delete(entry)
  }

  /** Puts idle threads away until the rest has room. */
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

// One thread as the book has it at all times: enough to match and list it; its messages are loaded when somebody needs them.

/** What is known of a thread whether it is loaded or not. */
export type KnownThread = Pick<
  Thread,
  'tenant' | 'id' | 'model' | 'created' | 'used' | 'parent' | 'contract' | 'asked' | 'chain' | 'card'
>

export class ThreadEntry implements KnownThread, MatchCandidate {
  readonly runtime: RuntimeState
  /** Null while its messages are in the store alone. */
  #thread: Thread | null
  #listed: ListedThread
  #chain: Chain

  /** @param of a thread as the store lists it, or one that is loaded */
  constructor(of: ListedThread | Thread) {
    const isLoaded = 'runtime' in of
    this.runtime = isLoaded ? of.runtime : new RuntimeState()
    this.#thread = isLoaded ? of : null
    this.#listed = isLoaded ? listed(of, of.card) : of
    this.#chain = new Chain(this.#listed.card.chain)
  }

  get thread(): Thread | null {
    return this.#thread
  }

  /** From now on the thread itself says what it is. */
  load(thread: Thread): void {
    this.#thread = thread
  }

  /** Lets the messages go; nobody may use the thread any more, and all of it must be in the store. */
  putAway(): void {
    if (this.#thread === null) return
    this.renew(listed(this.#thread, this.#thread.card))
    this.#thread = null
  }

  /** What it is while its thread is not loaded. */
  renew(listed: ListedThread): void {
    this.#listed = listed
    this.#chain = new Chain(listed.card.chain)
  }

  /** It is stored as the card says. */
  saved(card: ThreadCard): void {
    if (this.#thread !== null) this.renew(listed(this.#thread, card))
  }

  /** Lets go of a thread that is not what is stored: the entry is what was stored last, until it is loaded again. */
  discard(): void {
    this.#thread = null
    this.runtime.shown = new ShownSteps()
  }

  get tenant(): string {
    return this.#listed.tenant
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

  /** Keys of the last messages. */
  get ends(): readonly string[] {
    return this.#thread?.ends ?? this.#listed.card.ends ?? []
  }

  get asked(): boolean {
    return this.#thread?.asked ?? false
  }
}

const listed = ({ tenant, id, model, created, used, parent, contract }: Thread, card: ThreadCard): ListedThread => ({
  ...{ tenant, id, model, created, used, parent, contract, card },
})
