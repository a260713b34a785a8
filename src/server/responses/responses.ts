/** Owns the responses that can be asked for again: they are kept with their threads, and go with them. */
import { KvfoldError } from '../../core/errors.js'
import type { Damage } from '../../store/damage.js'
import type { ThreadDesk } from '../threads/thread-api.js'
import type { Tenant } from '../../core/ids.js'
import type { ResponseStore, ThreadRef } from './port.js'

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
    private readonly desk: Pick<ThreadDesk, 'list' | 'view' | 'delete' | 'watch' | 'damage'>,
  ) {
    const live = new Map<Tenant, ReadonlySet<string>>()
    const isGone = ({ tenant, thread }: ThreadRef) => {
      const known = live.get(tenant) ?? new Set([...desk.list(tenant), ...desk.damage(tenant)].map(({ id }) => id))
      live.set(tenant, known)
      return !known.has(thread)
    }
    store.drop(store.threads().filter(isGone))
    desk.watch(null, ({ tenant, thread, kind }) => {
      if (kind === 'deleted') store.drop([{ tenant, thread }])
    })
  }

  /** From now on it can be asked for. `body`: as the client is told it. @throws KvfoldError store/* */
  keep(tenant: Tenant, id: string, { thread, messages }: ResponsePlace, body: object): void {
    this.store.keep({ tenant, id, thread, messages, body: JSON.stringify(body) })
  }

  /** Null when there is none of that id, or it is not the tenant's, or it was deleted. */
  get(tenant: Tenant, id: string): object | null {
    const body = this.store.read(tenant, id)?.body ?? null
    return body === null ? null : (JSON.parse(body) as object)
  }

  has(tenant: Tenant, id: string): boolean {
    return (this.store.read(tenant, id)?.body ?? null) !== null
  }

  /**
   * Nobody can ask for it or go on from it any more. Its messages stay in the thread while another response, or what was said after it, goes on
   * from them; with the last response the thread is deleted, out of every tier. False when there was none.
   */
  async delete(tenant: Tenant, id: string): Promise<boolean> {
    const kept = this.store.read(tenant, id)
    if (kept?.body == null) return false
    const all = this.store.of(kept)
    const isLast = all.every((other) => other.id === id || other.body === null)
    const end = Math.max(...all.map(({ messages }) => messages))
    if (isLast && end >= this.#lengthOf(kept)) await this.desk.delete(tenant, kept.thread)
    else this.store.erase(tenant, id)
    return true
  }

  /** Of all tenants. */
  damage(): readonly Damage[] {
    return this.store.damage()
  }

  close(): void {
    this.store.close()
  }

  #lengthOf({ tenant, thread }: ThreadRef): number {
    try {
      return this.desk.view(tenant, thread).length
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'server/no-thread') return Infinity
      throw error
    }
  }
}
