/** Owns the cells of bare completions after their end: the next one of the same tenant finds the beginning that they share. */
import type { ConversationId } from '../../core/ids.js'
import type { ServedEngine } from './models.js'
import type { Tenant } from './tenant.js'

/** Completions that a tenant's next one may begin with, of each engine. */
const KEPT = 8

export class RecentCompletions {
  /** Oldest first. An engine that was given back takes its cells with it. */
  readonly #kept = new WeakMap<ServedEngine, Map<Tenant, ConversationId[]>>()

  /** One has ended; the tenant's oldest is forgotten for it. */
  keep(engine: ServedEngine, tenant: Tenant, conversation: ConversationId): void {
    const ofEngine = this.#kept.get(engine) ?? new Map<Tenant, ConversationId[]>()
    const own = ofEngine.get(tenant) ?? []
    this.#kept.set(engine, ofEngine.set(tenant, own))
    own.push(conversation)
    for (const old of own.splice(0, own.length - KEPT)) engine.forget(old)
  }

  /** Forgets all of an engine that is about to end: what is nobody's thread is not to outlive it in the disk tier. */
  drop(engine: ServedEngine): void {
    for (const conversation of [...(this.#kept.get(engine)?.values() ?? [])].flat()) engine.forget(conversation)
    this.#kept.delete(engine)
  }
}
