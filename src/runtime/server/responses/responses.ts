/** Owns the responses that can be asked for again: they are kept with their threads, and go with them. */
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'
import { readJson, writeJson } from '../../core/written-json.js'
import type { Damage } from '../../store/damage.js'
import type { ThreadApi } from '../threads/thread-api.js'

/** Where a response stands. */
export interface ResponsePlace {
  readonly thread: string
  /** Messages of the thread, as clients see them, up to and with the response. */
  readonly messages: number
}

export class Responses {
  /** Responses whose thread was deleted while nobody watched are dropped first; not those of a damaged one. @throws KvfoldError store/* */
  constructor(
    private readonly store: ResponseStore,
    private readonly threads: Pick<ThreadApi, 'reading' | 'list' | 'view' | 'delete' | 'watch' | 'damage'>,
  ) {
    const live = new Map<Tenant, ReadonlySet<string>>()
    const isGone = ({ tenant, thread }: ThreadRef) => {
      const known = live.get(tenant) ?? new Set([...threads.list(tenant), ...threads.damage(tenant)].map(({ id }) => id))
      live.set(tenant, known)
      return !known.has(thread)
    }
    store.drop(store.threads().filter(isGone))
    threads.watch(null, ({ tenant, thread, kind }) => {
      if (kind === 'deleted') store.drop([{ tenant, thread }])
    })
  }

  /** From now on it can be asked for. `body`: as the client is told it. @throws KvfoldError store/* */
  keep(tenant: Tenant, id: string, { thread, messages }: ResponsePlace, body: object): Promise<void> {
    return this.store.keep({ tenant, id, thread, messages, body: writeJson(body) })
  }

  /** Null when there is none of that id, or it is not the tenant's, or it was deleted. */
  async get(tenant: Tenant, id: string): Promise<object | null> {
    const body = (await this.store.read(tenant, id))?.body ?? null
    return body === null ? null : (readJson(body) as object)
  }

  async has(tenant: Tenant, id: string): Promise<boolean> {
    return ((await this.store.read(tenant, id))?.body ?? null) !== null
  }

  /**
   * Nobody can ask for it or go on from it any more. Its messages stay in the thread while another response, or what was said after it, goes on
   * from them; with the last response the thread is deleted, out of every tier. False when there was none.
   */
  async delete(tenant: Tenant, id: string): Promise<boolean> {
    const kept = await this.store.read(tenant, id)
    if (kept?.body == null) return false
    const all = await this.store.of(kept)
    const isLast = all.every((other) => other.id === id || other.body === null)
    const end = Math.max(...all.map(({ messages }) => messages))
    if (isLast && end >= (await this.#lengthOf(kept))) await this.threads.delete(tenant, kept.thread)
    else await this.store.erase(tenant, id)
    return true
  }

  /** Of all tenants. */
  damage(): readonly Damage[] {
    return this.store.damage()
  }

  close(): void {
    this.store.close()
  }

  async #lengthOf({ tenant, thread }: ThreadRef): Promise<number> {
    try {
      return await this.threads.reading(() => this.threads.view(tenant, thread).length)
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'server/no-thread') return Infinity
      throw error
    }
  }
}

// What a store of responses must be able to do; a change lasts when its promise is fulfilled.

/** A thread, as a response knows it. */
export interface ThreadRef {
  readonly tenant: Tenant
  readonly thread: string
}

export interface KeptResponse extends ThreadRef {
  readonly id: string
  /** Messages of the thread up to and with the response, as clients see them. */
  readonly messages: number
  /** JSON, as the client was told it; null once it was deleted: that it was there is known as long as its thread is. */
  readonly body: string | null
}

export interface ResponseStore {
  keep(response: KeptResponse): Promise<void>
  /** Null when it was never kept, or its thread was dropped. @throws KvfoldError store/damaged-response, store/lost-response */
  read(tenant: Tenant, id: string): Promise<KeptResponse | null>
  /** All of one thread that are not damaged, any order. */
  of(thread: ThreadRef): Promise<readonly KeptResponse[]>
  /** Makes the body null; it is not to be found afterwards. */
  erase(tenant: Tenant, id: string): Promise<void>
  /** All responses of these threads, without a trace; it lasts when the call returns. */
  drop(threads: readonly ThreadRef[]): void
  /** Those that have responses here. */
  threads(): readonly ThreadRef[]
  /** Responses that are not what was kept, as far as is known now. */
  damage(): readonly Damage[]
  /** Idempotent. */
  close(): void
}

// Responses that do not outlive the process.

export class MemoryResponses implements ResponseStore {
  readonly #kept = new Map<string, KeptResponse>()
  readonly #ofThreads = new Map<string, Set<string>>()

  keep(response: KeptResponse): Promise<void> {
    const key = keyOf(response.tenant, response.id)
    const thread = keyOf(response.tenant, response.thread)
    this.#kept.set(key, response)
    this.#ofThreads.set(thread, (this.#ofThreads.get(thread) ?? new Set()).add(key))
    return Promise.resolve()
  }

  read(tenant: Tenant, id: string): Promise<KeptResponse | null> {
    return Promise.resolve(this.#kept.get(keyOf(tenant, id)) ?? null)
  }

  of({ tenant, thread }: ThreadRef): Promise<readonly KeptResponse[]> {
    return Promise.resolve([...(this.#ofThreads.get(keyOf(tenant, thread)) ?? [])].map((key) => this.#kept.get(key)!))
  }

  async erase(tenant: Tenant, id: string): Promise<void> {
    const kept = await this.read(tenant, id)
    if (kept !== null) await this.keep({ ...kept, body: null })
  }

  drop(threads: readonly ThreadRef[]): void {
    for (const { tenant, thread } of threads) {
      const key = keyOf(tenant, thread)
      for (const response of this.#ofThreads.get(key) ?? []) this.#kept.delete(response)
      this.#ofThreads.delete(key)
    }
  }

  threads(): readonly ThreadRef[] {
    return [...this.#kept.values()]
  }

  damage(): readonly Damage[] {
    return []
  }

  close(): void {
    this.#kept.clear()
    this.#ofThreads.clear()
  }
}

const keyOf = (tenant: Tenant, id: string): string => JSON.stringify([tenant, id])
