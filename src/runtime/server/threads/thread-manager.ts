/**
 * Decides for each request whether it continues, forks or starts a thread. Saves threads, shares them with other servers, and deletes them.
 */
import { randomBytes } from 'node:crypto'
import { steady } from '../../core/clock.js'
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'
import { definedFields } from '../../core/json.js'
import { unlessAborted } from '../../core/signals.js'
import type { Damage } from '../../store/damage.js'
import type { ThreadChanges, ThreadRecord, Unforgotten } from '../../store/port.js'
import {
  leftBy,
  promptBefore,
  type Related,
  type TakenThread,
  type Taking,
  type ThreadRequest,
  type ReconciledThread,
  reconciled,
} from './client-edits.js'
import { identified } from './message-match.js'
import { Sharing } from './sharing.js'
import type { ThreadChange } from './thread-api.js'
import { ThreadFinder } from './thread-finder.js'
import { type ThreadEntry, type KnownThread, noThread, ThreadIndex, type ThreadIndexOptions } from './thread-table.js'
import { beginning, Thread } from './thread.js'

export interface ThreadManagerOptions extends ThreadIndexOptions {
  /** Drops a thread's cells in every tier. */
  readonly forget: (thread: Pick<KnownThread, 'id' | 'model'>) => void
  /**
   * Drops the cells of these threads in every tier, also on disk while their model is not loaded, and in the folder shared by servers.
   * Resolves when none are left.
   */
  readonly erase: (ids: readonly string[]) => Promise<void>
  /** The most threads of a tenant. Beyond it the least recently used ones are deleted. Default: no limit. */
  readonly perTenant?: number
  /** Receives a sentence about each thread that was deleted for its age or for its tenant's limit. Default: no report. */
  readonly tell?: (sentence: string) => void
  /**
   * The most tokens of a tenant's threads whose cells engines may keep in any tier; a thread counts as at least 2,048. Beyond it the least
   * recently used threads lose their cells, but are not deleted. Default: 2 million.
   */
  readonly warmTokensPerTenant?: number
  /** How many of a tenant's latest threads keep their cells, however long they are. Default 64. */
  readonly warmPerTenant?: number
  /** Milliseconds after its last use at which a thread is deleted, at the next request of its tenant. Default: never. */
  readonly retentionMs?: number
  /** Returns Unix milliseconds. Default: the machine's time, corrected for jumps of its clock (`SteadyClock`). */
  readonly clock?: () => number
}

/**
 * If the clock is behind the last recorded use by at most this many milliseconds, later uses get the numbers after it. If it is further
 * behind, the recorded use counts as wrong, and later uses get the clock's time.
 */
const AHEAD = 600_000
/** The most threads that one request deletes; later requests delete the others. */
const AT_ONCE = 8

/**
 * Owns the threads of all tenants. A request continues a thread if it begins with all messages that clients know of it. While another
 * request runs on that thread, it gets a fork and does not wait. Only requests with `appended` messages wait.
 */
export class ThreadManager {
  readonly #listeners = new Set<(change: ThreadChange) => void>()
  readonly #finder: ThreadFinder
  readonly #sharing: Sharing
  /** Ids of threads of which other servers forgot text, or which they deleted. This server has not erased their cells yet. */
  readonly #unerased = new Set<string>()
  #clock: number

  private constructor(
    private readonly index: ThreadIndex,
    private readonly options: ThreadManagerOptions,
  ) {
    this.#clock = index.lastUse
    this.#finder = new ThreadFinder(index)
    this.#sharing = new Sharing({
      store: options.store,
      heard: (changes) => this.#heard(changes),
      stale: (tenant, id) => {
        this.index.discard(tenant, id)
      },
    })
  }

  /** Reads the list of threads from the store, but no messages. */
  static async open(options: ThreadManagerOptions): Promise<ThreadManager> {
    return new ThreadManager(await ThreadIndex.open(options), options)
  }

  get size(): number {
    return this.index.size
  }

  /** How many threads are in memory. */
  get loaded(): number {
    return this.index.loaded
  }

  /**
   * Runs `work` after the changes of other servers were applied. `work` must change nothing, because it may run again
   * (`ThreadStore.reading`).
   */
  async reading<T>(work: () => T): Promise<T> {
    await this.#sharing.hear()
    return this.#sharing.reading(work)
  }

  /** Runs `work` on the thread. Meanwhile the thread stays loaded and no other server changes it. @throws the errors of `get` */
  async owned<T>(tenant: Tenant, id: string, work: (thread: Thread) => Promise<T>): Promise<T> {
    const release = await this.#sharing.own(tenant, id)
    try {
      const { done } = await this.#sharing.reading(() => {
        const thread = this.get(tenant, id)
        return { done: thread.held(() => work(thread)) }
      })
      return await done
    } finally {
      await release()
    }
  }

  /** The tenant's threads, most recently used first, without loading any. */
  of(tenant: Tenant): readonly KnownThread[] {
    return this.index.of(tenant)
  }

  damage(tenant: Tenant): readonly Damage[] {
    return this.options.store.damage().filter((each) => each.tenant === tenant)
  }

  /**
   * Returns the thread, loaded. It may be unloaded again at the caller's next `await`, unless it is `asked` or `held`.
   * @throws KvfoldError server/no-thread; store/damaged-thread, store/lost-thread, store/failed
   */
  get(tenant: Tenant, id: string): Thread {
    return this.index.load(this.index.entry(tenant, id))
  }

  /**
   * Returns the thread for a request, with the request's messages added and saved. It stays `asked` until `give`.
   * @param signal ends the wait for other work on the thread
   * @throws KvfoldError server/no-thread; engine/bad-request for a thread of another model or salt; the signal's reason
   */
  async take(wanted: ThreadRequest, signal?: AbortSignal): Promise<TakenThread> {
    await identified(wanted.messages)
    const taken = wanted.appended === true ? await this.#append(wanted, signal) : await this.#matched(wanted)
    const { thread, alignment, isNew } = taken
    const { unsaved } = thread
    let before: ThreadRecord | null = null
    let known = 0
    try {
      // Wait for a running operation, such as a summary. The signal ends this wait.
      await unlessAborted(
        thread.alone(() => undefined),
        signal,
      )
      await thread.alone(async () => {
        thread.refuseGone()
        before = isNew === true ? null : thread.record
        if (alignment !== undefined) thread.rewrite(reconciled(before ?? thread.record, alignment, wanted.messages))
        else if (thread.cut !== null && wanted.appended !== true)
          thread.takeCut(wanted.messages[thread.chain.length]?.content ?? null)
        known = thread.conversation.messages.length
        const fresh = wanted.appended === true ? wanted.messages : wanted.messages.slice(thread.view.length)
        thread.extend(fresh)
        thread.used = this.#now()
        const entry = this.index.entryOf(thread)
        if (entry !== null) {
          this.index.use(entry)
          this.index.note(entry)
          if (wanted.session !== undefined) this.index.join(entry, wanted.session.name)
        }
        thread.offer(wanted.tools)
        await this.#save(thread)
      })
    } catch (error) {
      // Creating a new thread in the store may take long; the failed request does not wait for it.
      if (isNew === true) void this.#withdraw(thread).catch(() => undefined)
      else await this.give(thread)
      throw error
    }
    this.#changed(thread, 'message')
    this.#changed(thread, 'running')
    await this.#retire(thread)
    return { ...taken, before, unsaved, known }
  }

  /**
   * Restores the thread as it was before a refused request, or deletes it if it is new. Does nothing if a step of the answer was computed,
   * because calls of that step may have been carried out.
   * @param even true: restores the thread even then
   */
  async refused({ thread, before, unsaved }: TakenThread, even = false): Promise<void> {
    const steps = thread.ledger.slice(before?.ledger.length ?? 0)
    if (thread.gone !== null || (!even && steps.some(({ kind }) => kind === 'answer'))) return
    if (before === null) await this.delete(thread.tenant, thread.id)
    else
      await thread.alone(async () => {
        thread.revert(before, unsaved)
        await this.#save(thread)
      })
  }

  /**
   * Waits until no request runs on the thread. Then runs `work`, saves the thread and notifies watchers.
   * @throws KvfoldError server/no-thread when the thread was deleted meanwhile
   */
  quietly<T>(thread: Thread, kind: ThreadChange['kind'], work: () => T | Promise<T>): Promise<T> {
    return thread.held(async () => {
      for (;;) {
        if (thread.asked) await this.#idle(thread)
        const done = await thread.alone(async () => {
          thread.refuseGone()
          if (thread.asked) return null
          const result = await work()
          await this.#save(thread)
          return { result }
        })
        if (done === null) continue
        this.#changed(thread, kind)
        return done.result
      }
    })
  }

  /** Ends a request's use of the thread, so that others may continue it. Call it after the last save. */
  async give(thread: Thread): Promise<void> {
    // The thread was deleted during the request, and a step after that may have left new cells.
    if (this.index.find(thread.tenant, thread.id) === null)
      await this.options.erase([thread.id]).catch((error: unknown) => {
        this.options.tell?.(`The cells of the deleted thread ${thread.id} were not erased: ${String(error)}`)
      })
    thread.asked = false
    this.#changed(thread, 'idle')
    this.index.trim(thread)
    await this.#sharing.give(thread)
  }

  close(): void {
    this.#sharing.close()
  }

  /** Saves the thread and notifies watchers. If the write fails, the thread in memory is dropped, and the next use loads the stored one. */
  async save(thread: Thread, kind: ThreadChange['kind']): Promise<void> {
    await this.#save(thread)
    this.#changed(thread, kind)
  }

  /**
   * Deletes the thread without loading it. Returns false if it was kept because of `unusedSince`.
   * @param unusedSince Unix milliseconds; keeps a thread that is in use, or was used at or after this time
   * @throws KvfoldError server/no-thread
   */
  async delete(tenant: Tenant, id: string, unusedSince?: number): Promise<boolean> {
    await this.#sharing.hear()
    if (this.damage(tenant).some((each) => each.id === id)) {
      await this.options.erase([id])
      await this.options.store.delete(tenant, id)
      this.#changed({ tenant, id }, 'deleted')
      return true
    }
    const entry = this.index.entry(tenant, id)
    if (unusedSince !== undefined && (isBusy(entry) || entry.used >= unusedSince)) return false
    this.#drop(entry)
    try {
      await this.options.erase([entry.id])
      await this.options.store.delete(tenant, id)
    } catch (error) {
      this.index.restore(entry)
      throw error
    }
    this.#changed(entry, 'deleted')
    return true
  }

  watch(tenant: Tenant | null, listener: (change: ThreadChange) => void): () => void {
    const filtered = (change: ThreadChange) => {
      if (tenant === null || change.tenant === tenant) listener(change)
    }
    this.#listeners.add(filtered)
    return () => this.#listeners.delete(filtered)
  }

  /** Deletes a new thread whose request failed before its messages were saved. */
  async #withdraw(thread: Thread): Promise<void> {
    try {
      await thread.alone(async () => {
        if (this.index.entryOf(thread) !== null) await this.delete(thread.tenant, thread.id)
      })
    } finally {
      await this.give(thread)
    }
  }

  /** Waits until no request runs on the thread, then takes it. */
  async #append(wanted: ThreadRequest, signal?: AbortSignal): Promise<Taking> {
    const { tenant, thread: id } = wanted
    if (id === undefined) throw new KvfoldError('engine/bad-request', 'Messages to append need the thread to append them to.')
    return this.owned(tenant, id, async (thread) => {
      this.index.entryFor(wanted, id)
      for (;;) {
        thread.refuseGone()
        if (!thread.asked) break
        await unlessAborted(this.#idle(thread), signal)
      }
      thread.asked = true
      await this.#sharing.ownFor(thread)
      return { thread, left: null, edits: [], hidden: [], isOwn: true, previous: promptBefore(thread) }
    })
  }

  #idle(thread: Thread): Promise<void> {
    return new Promise((resolve) => {
      const stop = this.watch(thread.tenant, ({ thread: id, kind }) => {
        if (id !== thread.id || (kind !== 'idle' && kind !== 'deleted')) return
        stop()
        resolve()
      })
    })
  }

  /** Chooses the thread for a request and claims it from other servers. A thread that another server answers on counts as busy. */
  async #matched(wanted: ThreadRequest): Promise<Taking> {
    const elsewhere = new Set<string>()
    for (;;) {
      const taking = await this.reading(() => this.#match(wanted, elsewhere))
      const { thread, isNew } = taking
      if (isNew === true) return taking
      try {
        if (!(await this.#sharing.ownFor(thread))) elsewhere.add(thread.id)
        else if (this.index.entryOf(thread) !== null) return taking
      } catch (error) {
        await this.give(thread)
        throw error
      }
      // The thread changed between the choice and the claim; choose again.
      await this.give(thread)
    }
  }

  /**
   * Chooses a thread and marks it as `asked` without an `await` in between, so that no other request can take it.
   * @param elsewhere ids of threads that other servers answer on
   */
  #match(wanted: ThreadRequest, elsewhere: ReadonlySet<string>): Taking {
    const isFree = (entry: ThreadEntry) => !entry.asked && !elsewhere.has(entry.id)
    const found = this.#finder.find(wanted, isFree)
    if (found === null)
      return {
        ...{ thread: this.#begin(wanted, null, null), left: null, edits: [], hidden: [] },
        ...{ isOwn: true, previous: null, isNew: true },
      }
    if ('alignment' in found) return this.#takeRelated(wanted, found, elsewhere)
    found.asked = true
    return { thread: found, left: null, edits: [], hidden: [], isOwn: true, previous: promptBefore(found) }
  }

  #takeRelated(wanted: ThreadRequest, { thread: from, alignment }: Related, elsewhere: ReadonlySet<string>): Taking {
    const { messages, thread: id } = wanted
    const { edits, hidden, isOwn, goesOn } = alignment
    const left = leftBy(from, messages, alignment, id)
    const previous = promptBefore(from)
    if (goesOn && !from.asked && !elsewhere.has(from.id)) {
      from.asked = true
      return { thread: from, left, edits, hidden, isOwn: true, previous, ...(edits.length === 0 ? {} : { alignment }) }
    }
    // Messages of an unfinished turn are left out of a fork, because a call may have no result yet.
    const { messages: all, ...record } = from.record
    const completed = { ...record, messages: all.slice(0, from.seen.length) }
    const thread = this.#begin(wanted, from, reconciled(completed, alignment, messages))
    const known = isOwn ? previous : null
    return { thread, left, edits, hidden: isOwn ? [...from.hidden, ...hidden] : [], isOwn, previous: known, isNew: true }
  }

  #begin({ tenant, salt, model, tools }: ThreadRequest, parent: Thread | null, first: ReconciledThread | null): Thread {
    const id = `thread_${randomBytes(16).toString('hex')}`
    const record = beginning({ tenant, ...definedFields({ salt }), id, model, tools, now: this.#now() }, parent, first)
    const thread = new Thread(record, this.options.portsOf, undefined, parent ?? undefined)
    thread.asked = true
    const { card } = thread
    this.index.add(thread)
    // The store creates the thread before any other work on it. Later saves wait for that, and write nothing if it failed.
    void thread
      .alone(async () => {
        try {
          await this.#sharing.ownFor(thread)
          await this.options.store.create(record, card)
        } catch (error) {
          thread.fail(error)
          const entry = this.index.entryOf(thread)
          if (entry !== null) this.index.drop(entry)
          throw error
        }
      })
      .then(
        () => {
          this.#changed(thread, 'created')
        },
        () => undefined,
      )
    return thread
  }

  async #save(thread: Thread): Promise<void> {
    try {
      const card = await thread.save(this.options.store)
      if (card !== null) this.index.entryOf(thread)?.saved(card)
    } catch (error) {
      await this.#undo(thread, error)
      throw error
    }
  }

  /** After a failed save: its users can no longer change or save this object, and the next request loads the thread as stored. */
  async #undo(thread: Thread, error: unknown): Promise<void> {
    thread.fail(error)
    const { tenant, id } = thread
    const entry = this.index.entryOf(thread)
    if (entry === null) return
    this.index.discard(tenant, id)
    try {
      const stored = await this.#sharing.reading(() => this.index.load(entry))
      if (stored.conversation.messages.length > 0) {
        this.#changed(thread, 'message')
        return
      }
    } catch (unread) {
      // The store cannot be read at the moment, but the thread may exist there: the next request tries again.
      if (!isNoThread(unread)) return
    }
    // The thread is new, and the store has no message of it.
    this.index.drop(entry)
    await this.options.store.delete(tenant, id).catch(() => undefined)
    this.#changed(thread, 'deleted')
  }

  /**
   * Runs at each request. Drops the cells of its tenant's least recently used threads beyond the limits, and deletes threads that are too
   * old or too many.
   */
  async #retire(thread: Thread): Promise<void> {
    const { perTenant = Infinity, warmPerTenant = 64, warmTokensPerTenant = 2e6, retentionMs = Infinity } = this.options
    const { tenant } = thread
    const own = this.index.entryOf(thread)
    for (const entry of own === null ? [] : this.index.warm(own, warmPerTenant, warmTokensPerTenant)) {
      if (!entry.runtime.warm) continue
      entry.runtime.warm = false
      this.options.forget(entry)
    }
    const oldest = this.#now() - retentionMs
    let over = this.index.count(tenant) - perTenant
    const due: ThreadEntry[] = []
    for (const entry of this.index.oldest(tenant)) {
      if ((over <= 0 && entry.used >= oldest) || due.length === AT_ONCE) break
      if (!isBusy(entry)) due.push(entry)
      over--
    }
    // While one thread is being deleted, a request may continue another. `delete` keeps a thread that was used since.
    const since = (due.at(-1)?.used ?? 0) + 1
    for (const entry of due) {
      if (!this.index.has(entry)) continue
      const { id, used } = entry
      const why = used < oldest ? 'its time of retention is over' : `${tenant} may have ${perTenant} threads`
      try {
        if (await this.delete(tenant, id, since))
          this.options.tell?.(`Deleted thread ${id} of ${tenant}, last used ${new Date(used).toISOString()}: ${why}.`)
      } catch (error) {
        // Another request may have deleted the thread already. After any other failure the next request tries again.
        if (!isNoThread(error)) this.options.tell?.(`Could not delete thread ${id} of ${tenant} (${why}): ${String(error)}`)
      }
    }
  }

  /** Applies the changes that other servers made. */
  async #heard({ changed, deleted, forgotten }: ThreadChanges): Promise<void> {
    for (const listed of changed) this.#changed(listed, this.index.renew(listed) ? 'created' : 'message')
    for (const { tenant, id } of deleted) {
      this.#unerased.add(id)
      const entry = this.index.find(tenant, id)
      if (entry === null) continue
      this.#drop(entry)
      this.#changed(entry, 'deleted')
    }
    for (const { id } of forgotten) this.#unerased.add(id)
    // Includes cells whose erasure failed before. Until it succeeds, this server does not report the text as forgotten.
    const ids = [...this.#unerased]
    if (ids.length > 0) await this.options.erase(ids)
    for (const id of ids) this.#unerased.delete(id)
  }

  /** Removes the thread from the index, but not from the store. */
  #drop(entry: ThreadEntry): void {
    if (entry.thread !== null) entry.thread.gone = noThread(entry.id)
    this.index.drop(entry)
  }

  /** Returns the servers that have not forgotten the text that the thread's last save with `forgets` hid (`Sharing.unforgotten`). */
  unforgotten(thread: Pick<KnownThread, 'tenant' | 'id'>): Promise<readonly Unforgotten[]> {
    return this.#sharing.unforgotten(thread.tenant, thread.id)
  }

  /**
   * Returns Unix milliseconds, never the same number twice. Later uses have larger numbers, unless the clock was wrong by more than
   * `AHEAD`.
   */
  #now(): number {
    const { clock = () => steady.now() } = this.options
    const now = clock()
    return (this.#clock = now > this.#clock || now < this.#clock - AHEAD ? now : this.#clock + 1)
  }

  #changed({ tenant, id }: Pick<KnownThread, 'tenant' | 'id'>, kind: ThreadChange['kind']): void {
    for (const listener of [...this.#listeners]) listener({ tenant, thread: id, kind })
  }
}

/** Whether a request or an operation is using the thread. */
const isBusy = ({ asked, thread }: ThreadEntry): boolean => asked || thread?.idle === false

const isNoThread = (error: unknown): boolean => error instanceof KvfoldError && error.code === 'server/no-thread'
