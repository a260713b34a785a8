/** Shares threads between servers with one store: learns of other servers' changes, and claims a thread while this server changes it. */
import { keyOf, type Tenant } from '../../core/ids.js'
import type { Claim, ThreadChanges, ThreadStore, Unforgotten } from '../../store/port.js'
import type { Thread } from './thread.js'

export interface SharingOptions {
  readonly store: ThreadStore
  /** Applies changes of other servers here; resolves when that is done. */
  readonly heard: (changes: ThreadChanges) => Promise<void>
  /** Called when a thread was claimed whose copy in memory may be outdated. */
  readonly stale: (tenant: Tenant, id: string) => void
}

/** Ends a claim on a thread. Calling it again does nothing. */
export type Release = () => Promise<void>

interface Hold {
  users: number
  claim: Claim | null
  readonly tried: Promise<Claim | null>
  waited: Promise<Claim | null> | null
}

/**
 * Milliseconds between two polls for changes of other servers. Without requests the poll still matters: text that another server forgot
 * must leave this server's cache.
 */
const EVERY = 1000
/** The most milliseconds to wait until the other servers have forgotten a text. Each of them polls every `EVERY`. */
const PATIENCE = 5000

/** Shares threads with other servers. Does nothing when the store is not shared. */
export class Sharing {
  readonly #holds = new Map<string, Hold>()
  readonly #asks = new WeakMap<Thread, Release>()
  readonly #timer: NodeJS.Timeout | null
  #line: Promise<void> = Promise.resolve()
  #next: Promise<void> | null = null

  constructor(private readonly options: SharingOptions) {
    this.#timer =
      options.store.shared === undefined
        ? null
        : // If the store does not answer, the next request reports it.
          setInterval(() => void this.hear().catch(() => undefined), EVERY).unref()
  }

  /** Applies all changes that other servers made before the call. @throws KvfoldError store/unreachable */
  hear(): Promise<void> {
    const { store, heard } = this.options
    if (store.shared === undefined) return this.#line
    const { shared } = store
    // A poll in progress may have begun before the call, so another one follows it. Concurrent callers share that one.
    return (this.#next ??= this.#line =
      this.#line
        .catch(() => undefined)
        .then(async () => {
          this.#next = null
          await heard(await shared.changes())
          await shared.done()
        }))
  }

  /**
   * Returns the servers that have not yet forgotten the text that the thread's last save with `forgets` hid. Waits for them up to
   * `PATIENCE`.
   * @throws KvfoldError store/unreachable
   */
  async unforgotten(tenant: Tenant, id: string): Promise<readonly Unforgotten[]> {
    return (await this.options.store.shared?.unforgotten(tenant, id, PATIENCE)) ?? []
  }

  /** Runs `work`, which reads threads synchronously. The store may stop it to fetch a thread and start it again (`ThreadStore.reading`). */
  async reading<T>(work: () => T): Promise<T> {
    return this.options.store.reading?.(work) ?? work()
  }

  /**
   * Claims the thread, waiting for its present owner. Until the release no other server changes it, and a copy in memory is as stored.
   * Callers in this process share one claim.
   * @throws KvfoldError store/unreachable
   */
  async own(tenant: Tenant, id: string): Promise<Release> {
    return (await this.#own(tenant, id, true))!
  }

  /** Claims the thread for a request, until `give`. Returns false when another server has it. */
  async ownFor(thread: Thread): Promise<boolean> {
    const release = await this.#own(thread.tenant, thread.id, false)
    if (release !== null) this.#asks.set(thread, release)
    return release !== null
  }

  /** Ends the claim that `ownFor` made. */
  async give(thread: Thread): Promise<void> {
    const release = this.#asks.get(thread)
    this.#asks.delete(thread)
    await release?.()
  }

  close(): void {
    if (this.#timer !== null) clearInterval(this.#timer)
  }

  async #own(tenant: Tenant, id: string, wait: boolean): Promise<Release | null> {
    if (this.options.store.shared === undefined) return none
    const key = keyOf(tenant, id)
    const hold: Hold = this.#holds.get(key) ?? {
      users: 0,
      claim: null,
      tried: this.#claim(tenant, id, false),
      waited: null,
    }
    this.#holds.set(key, hold)
    hold.users++
    let isOver = false
    const release = async () => {
      if (isOver) return
      isOver = true
      hold.users--
      if (hold.users > 0) return
      if (this.#holds.get(key) === hold) this.#holds.delete(key)
      await hold.claim?.release()
    }
    try {
      const tried = await hold.tried
      hold.claim ??= tried
      if (hold.claim === null && wait) hold.claim = await (hold.waited ??= this.#claim(tenant, id, true))
    } catch (error) {
      await release()
      throw error
    }
    if (hold.claim !== null) return release
    await release()
    return null
  }

  async #claim(tenant: Tenant, id: string, wait: boolean): Promise<Claim | null> {
    const claim = (await this.options.store.shared?.claim(tenant, id, wait)) ?? null
    if (claim === null || claim.isCurrent) return claim
    try {
      await this.hear()
      this.options.stale(tenant, id)
      return claim
    } catch (error) {
      await claim.release()
      throw error
    }
  }
}

const none: Release = () => Promise.resolve()
