/** Owns what a store of responses must be able to do; a change lasts when its call returns. */
import type { Damage } from '../../store/damage.js'
import type { Tenant } from '../../core/ids.js'

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
  keep(response: KeptResponse): void
  /** Null when it was never kept, or its thread was dropped. @throws KvfoldError store/damaged-response, store/lost-response */
  read(tenant: Tenant, id: string): KeptResponse | null
  /** All of one thread that are not damaged, any order. */
  of(thread: ThreadRef): readonly KeptResponse[]
  /** Makes the body null; it is not to be found afterwards. */
  erase(tenant: Tenant, id: string): void
  /** All responses of these threads, without a trace. */
  drop(threads: readonly ThreadRef[]): void
  /** Those that have responses here. */
  threads(): readonly ThreadRef[]
  /** Responses that are not what was kept, as far as is known now. */
  damage(): readonly Damage[]
  /** Idempotent. */
  close(): void
}
