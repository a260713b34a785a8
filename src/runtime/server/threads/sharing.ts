/** Owns what a server owes others that use its store: it hears of their changes, and has a thread for itself while it changes it. */
import type { Tenant } from '../../core/ids.js'
import type { Claim, ThreadChanges, ThreadStore, Unforgotten } from '../../store/port.js'
import type { Thread } from './thread.js'

export interface SharingOptions {
  readonly store: ThreadStore
  /** Takes in what others did; resolves when it is done. */
  readonly heard: (changes: ThreadChanges) => Promise<void>
  /** The thread is claimed now, and what there is of it in memory is not what is stored. */
  readonly stale: (tenant: Tenant, id: string) => void
}

/** Gives a thread back that was this server's alone. Idempotent. */
export type Release = () => Promise<void>

interface Hold {
  users: number
  claim: Claim | null
  readonly tried: Promise<Claim | null>
  waited: Promise<Claim | null> | null
}

/** Milliseconds between looks at what others did while nobody asks: what they deleted goes from this server's cache, too. */
const EVERY = 1000
/** How long a fold waits for other servers to forget: each hears of it within EVERY. */
const PATIENCE = 5000

/** Of a store that nobody shares everything here is nothing, and done at once. */
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
        : // A store that does not answer is for whoever asks next.
          setInterval(() => void this.hear().catch(() => undefined), EVERY).unref()
  }

  /** What others did before the call is taken in. @throws KvfoldError store/unreachable */
  hear(): Promise<void> {
    const { store, heard } = this.options
    if (store.shared === undefined) return this.#line
    const { shared } = store
    // One under way may have looked too early.
    return (this.#next ??= this.#line =
      this.#line
        .catch(() => undefined)
        .then(async () => {
          this.#next = null
          await heard(await shared.changes())
          await shared.done()
        }))
  }

  /** Servers that have not forgotten yet what the thread's last change had forgotten, after a while. @throws KvfoldError store/unreachable */
  async unforgotten(tenant: Tenant, id: string): Promise<readonly Unforgotten[]> {
    return (await this.options.store.shared?.unforgotten(tenant, id, PATIENCE)) ?? []
  }

  /** Lets `work` read threads; see `SharedThreads.reading`. */
  async reading<T>(work: () => T): Promise<T> {
    return this.options.store.shared?.reading(work) ?? work()
  }

  /**
   * From then on no other server changes the thread, and it is in memory as it is stored or not at all. Those who ask within this server have it
   * together. @throws KvfoldError store/unreachable
   */
  async own(tenant: Tenant, id: string): Promise<Release> {
    return (await this.#own(tenant, id, true))!
  }

  /** The same for an ask, until `give`. False: another server has the thread. */
  async ownFor(thread: Thread): Promise<boolean> {
    const release = await this.#own(thread.tenant, thread.id, false)
    if (release !== null) this.#asks.set(thread, release)
    return release !== null
  }

  /** The ask is over. */
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
    const key = JSON.stringify([tenant, id])
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
