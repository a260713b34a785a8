/** Stores responses (`/v1/responses`) that clients can fetch again. They belong to threads and are deleted with them. */
import { KvfoldError } from '../../core/errors.js'
import { keyOf, type Tenant } from '../../core/ids.js'
import { readJson, writeJson } from '../../core/written-json.js'
import type { Damage } from '../../store/damage.js'
import type { Operations } from '../threads/thread-operations.js'
import { placeOf, rangeOf, searchesIn, type ResponsePlace } from './place.js'

/** How many deleted threads are remembered, so that an answer still running on one is not stored. */
const MOST_DELETED = 1000

export class Responses {
  readonly #deleted = new Set<string>()
  /** Deleted threads whose responses the store failed to remove. These responses count as missing. */
  readonly #undropped = new Map<string, ThreadRef>()

  /**
   * Removes responses of threads that were deleted while this process did not run. Keeps responses of damaged threads.
   * @param tell receives a sentence when responses of deleted threads could not be removed
   * @throws KvfoldError store/*
   */
  constructor(
    private readonly store: ResponseStore,
    private readonly threads: Pick<Operations, 'reading' | 'list' | 'view' | 'delete' | 'watch' | 'damage'>,
    private readonly tell: (sentence: string) => void = () => undefined,
  ) {
    const live = new Map<Tenant, ReadonlySet<string>>()
    const isGone = ({ tenant, thread }: ThreadRef) => {
      const known = live.get(tenant) ?? new Set([...threads.list(tenant), ...threads.damage(tenant)].map(({ id }) => id))
      live.set(tenant, known)
      return !known.has(thread)
    }
    this.#drop(store.threads().filter(isGone))
    threads.watch(null, ({ tenant, thread, kind }) => {
      if (kind !== 'deleted') return
      this.#deleted.add(thread)
      if (this.#deleted.size > MOST_DELETED) this.#deleted.delete(this.#deleted.values().next().value!)
      this.#drop([{ tenant, thread }])
    })
  }

  /** Removes the responses of deleted threads, earlier failures included. A failure is reported and tried again at the next deletion. */
  #drop(threads: readonly ThreadRef[]): void {
    for (const each of threads) this.#undropped.set(keyOf(each.tenant, each.thread), each)
    try {
      this.store.drop([...this.#undropped.values()])
      this.#undropped.clear()
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error)
      this.tell(
        `The store may still have responses of deleted threads. They are not served, and the next deletion or start tries to drop them: ${why}`,
      )
    }
  }

  /** Returns the stored response; null when there is none or its thread was deleted. @throws KvfoldError store/* */
  async #read(tenant: Tenant, id: string): Promise<KeptResponse | null> {
    const kept = await this.store.read(tenant, id)
    return kept !== null && this.#undropped.has(keyOf(tenant, kept.thread)) ? null : kept
  }

  /**
   * Stores a response for later fetches. Does nothing if its thread was deleted meanwhile.
   * @param body the JSON as sent to the client
   * @throws KvfoldError store/*
   */
  async keep(
    tenant: Tenant,
    id: string,
    { thread, messages }: Pick<ResponsePlace, 'thread' | 'messages'>,
    body: object,
  ): Promise<void> {
    if (this.#deleted.has(thread)) return
    await this.store.keep({ tenant, id, thread, messages, body: writeJson(body) })
  }

  /** Returns the stored body; null when the id is unknown, belongs to another tenant, or was deleted. */
  async get(tenant: Tenant, id: string): Promise<object | null> {
    const body = (await this.#read(tenant, id))?.body ?? null
    return body === null ? null : (readJson(body) as object)
  }

  /**
   * Deletes a response, so that it can be neither fetched nor continued. Its messages stay in the thread while other responses or later
   * messages need them. With the thread's last response the thread itself is deleted from every tier. Returns false when there was no such
   * response.
   */
  async delete(tenant: Tenant, id: string): Promise<boolean> {
    const kept = await this.#read(tenant, id)
    if (kept?.body == null) return false
    const all = await this.store.of(kept)
    const isLast = all.every((other) => other.id === id || other.body === null)
    if (isLast && (await this.#endsWithOneOf(all))) await this.threads.delete(tenant, kept.thread)
    else await this.store.erase(tenant, id)
    return true
  }

  /** Damaged responses of all tenants. */
  damage(): readonly Damage[] {
    return this.store.damage()
  }

  close(): void {
    this.store.close()
  }

  /** Whether one of these responses, all of one thread, has the thread's last message. */
  async #endsWithOneOf(responses: readonly KeptResponse[]): Promise<boolean> {
    const { tenant, thread } = responses[0]!
    try {
      const view = await this.threads.reading(() => this.threads.view(tenant, thread))
      return responses.some(({ id, body }) => {
        const place = placeOf(id)
        const searches = body === null ? undefined : searchesIn(readJson(body) as object)
        return place !== null && rangeOf(view, place, searches)?.end === view.length
      })
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'server/no-thread') return false
      throw error
    }
  }
}

// The interface of stores of responses. A change is durable when its promise is fulfilled.

/** The thread of a response. */
export interface ThreadRef {
  readonly tenant: Tenant
  readonly thread: string
}

export interface KeptResponse extends ThreadRef {
  readonly id: string
  /** How many messages the thread had up to and including the response, as clients see them. */
  readonly messages: number
  /** The JSON as sent to the client. Null after deletion: the row stays as long as its thread, as a record that the response existed. */
  readonly body: string | null
}

export interface ResponseStore {
  keep(response: KeptResponse): Promise<void>
  /**
   * Returns a response; null when it was never stored, or its thread's responses were dropped.
   * @throws KvfoldError store/damaged-response, store/lost-response
   */
  read(tenant: Tenant, id: string): Promise<KeptResponse | null>
  /** Returns all undamaged responses of a thread, in any order. */
  of(thread: ThreadRef): Promise<readonly KeptResponse[]>
  /** Sets the body to null. Afterwards the store's file contains its text no more. */
  erase(tenant: Tenant, id: string): Promise<void>
  /** Removes all responses of these threads. Durable when the call returns. */
  drop(threads: readonly ThreadRef[]): void
  /** Returns the threads that have responses in the store. */
  threads(): readonly ThreadRef[]
  /** Returns the responses known to differ from what was stored. */
  damage(): readonly Damage[]
  /** Closes the store. Further calls do nothing. */
  close(): void
}

// Stores responses in this process only.

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
