/** Owns responses that do not outlive the process. */
import type { Damage } from '../../store/damage.js'
import type { Tenant } from '../../core/ids.js'
import type { KeptResponse, ResponseStore, ThreadRef } from './port.js'

export class MemoryResponses implements ResponseStore {
  readonly #kept = new Map<string, KeptResponse>()

  keep(response: KeptResponse): void {
    this.#kept.set(keyOf(response.tenant, response.id), response)
  }

  read(tenant: Tenant, id: string): KeptResponse | null {
    return this.#kept.get(keyOf(tenant, id)) ?? null
  }

  of({ tenant, thread }: ThreadRef): readonly KeptResponse[] {
    return [...this.#kept.values()].filter((kept) => kept.tenant === tenant && kept.thread === thread)
  }

  erase(tenant: Tenant, id: string): void {
    const kept = this.read(tenant, id)
    if (kept !== null) this.keep({ ...kept, body: null })
  }

  drop(threads: readonly ThreadRef[]): void {
    for (const { tenant, id } of threads.flatMap((thread) => this.of(thread))) this.#kept.delete(keyOf(tenant, id))
  }

  threads(): readonly ThreadRef[] {
    return [...this.#kept.values()]
  }

  damage(): readonly Damage[] {
    return []
  }

  close(): void {
    this.#kept.clear()
  }
}

const keyOf = (tenant: Tenant, id: string): string => JSON.stringify([tenant, id])
