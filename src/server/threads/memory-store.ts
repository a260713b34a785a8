/** A store that forgets everything with the process: for servers that are told to keep nothing, and for tests. */
import { invariant } from '../../core/errors.js'
import type { ThreadRecord, ThreadStore } from '../../store/port.js'
import type { Tenant } from './tenant.js'

export class MemoryStore implements ThreadStore {
  readonly #threads = new Map<string, ThreadRecord>()

  load(): Promise<readonly ThreadRecord[]> {
    return Promise.resolve(structuredClone([...this.#threads.values()]))
  }

  read(tenant: Tenant, id: string): Promise<ThreadRecord | null> {
    return Promise.resolve(structuredClone(this.#threads.get(keyOf(tenant, id)) ?? null))
  }

  create(thread: ThreadRecord): Promise<void> {
    invariant(!this.#threads.has(keyOf(thread.tenant, thread.id)), `thread ${thread.id} was created twice`)
    this.#threads.set(keyOf(thread.tenant, thread.id), structuredClone(thread))
    return Promise.resolve()
  }

  append(tenant: Tenant, id: string, messages: ThreadRecord['messages']): Promise<void> {
    return this.#change(tenant, id, (thread) => ({ messages: [...thread.messages, ...structuredClone(messages)] }))
  }

  edit(tenant: Tenant, id: string, edits: ThreadRecord['edits']): Promise<void> {
    return this.#change(tenant, id, () => ({ edits: structuredClone(edits) }))
  }

  account(tenant: Tenant, id: string, entries: ThreadRecord['ledger']): Promise<void> {
    return this.#change(tenant, id, (thread) => ({ ledger: [...thread.ledger, ...structuredClone(entries)] }))
  }

  touch(head: Parameters<ThreadStore['touch']>[0]): Promise<void> {
    return this.#change(head.tenant, head.id, () => structuredClone(head))
  }

  delete(tenant: Tenant, id: string): Promise<void> {
    this.#threads.delete(keyOf(tenant, id))
    return Promise.resolve()
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  #change(tenant: Tenant, id: string, change: (thread: ThreadRecord) => Partial<ThreadRecord>): Promise<void> {
    const thread = this.#threads.get(keyOf(tenant, id))
    invariant(thread !== undefined, `thread ${id} is not in the store`)
    this.#threads.set(keyOf(tenant, id), { ...thread, ...change(thread) })
    return Promise.resolve()
  }
}

const keyOf = (tenant: Tenant, id: string): string => JSON.stringify([tenant, id])
