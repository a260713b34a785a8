/**
 * A thread store in this process's memory, for servers that must keep nothing and for tests. It shares message and entry objects with its
 * callers instead of copying them; callers never change them.
 */
import { invariant } from '../../core/errors.js'
import type { Damage } from '../../store/damage.js'
import { listedHead } from '../../store/port.js'
import type { ListedThread, ThreadCard, ThreadRecord, ThreadStore, ThreadUpdate } from '../../store/port.js'
import { keyOf, type Tenant } from '../../core/ids.js'

export class MemoryStore implements ThreadStore {
  readonly #threads = new Map<string, { readonly record: ThreadRecord; readonly card: ThreadCard }>()

  index(): Promise<readonly ListedThread[]> {
    const all = [...this.#threads.values()].map(({ record, card }): ListedThread => ({ ...listedHead(record), card }))
    return Promise.resolve(all)
  }

  read(tenant: Tenant, id: string): ThreadRecord | null {
    return this.#threads.get(keyOf(tenant, id))?.record ?? null
  }

  create(record: ThreadRecord, card: ThreadCard): Promise<void> {
    const key = keyOf(record.tenant, record.id)
    invariant(!this.#threads.has(key), `thread ${record.id} was created twice`)
    const { messages, ledger, events } = record
    this.#threads.set(key, { record: { ...record, messages: [...messages], ledger: [...ledger], events: [...events] }, card })
    return Promise.resolve()
  }

  update(tenant: Tenant, id: string, update: ThreadUpdate): Promise<void> {
    const known = this.#threads.get(keyOf(tenant, id))
    invariant(known !== undefined, `thread ${id} is not in the store`)
    const { record } = known
    const { head = record, messages = [], edits = record.edits, ledger = [], events = [], card, from, eventsFrom } = update
    const changed: ThreadRecord = {
      ...record,
      ...head,
      messages: [...record.messages.slice(0, from), ...messages],
      edits,
      ledger: [...record.ledger, ...ledger],
      events: [...record.events.slice(0, eventsFrom), ...events],
    }
    this.#threads.set(keyOf(tenant, id), { record: changed, card })
    return Promise.resolve()
  }

  delete(tenant: Tenant, id: string): Promise<void> {
    this.#threads.delete(keyOf(tenant, id))
    return Promise.resolve()
  }

  damage(): readonly Damage[] {
    return []
  }

  close(): Promise<void> {
    return Promise.resolve()
  }
}
