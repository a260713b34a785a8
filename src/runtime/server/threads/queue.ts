/** The queue of requests that wait for a slot: fair between tenants, and limited in length. */
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'

export interface QueueOptions {
  /** How many requests run at once. */
  readonly slots: number
  /** How many requests may wait. */
  readonly limit: number
}

export interface QueuePlace {
  readonly tenant: Tenant
  /** Requests of one tenant begin in the order of priority; a higher number comes first. */
  readonly priority: number
  readonly signal?: AbortSignal
  /** True: one more answer to a request that is already here, such as the second of `n`. It does not count against the limit. */
  readonly follows?: boolean
  /** Called with the number of waiting entries that begin before this one, at first and after each change. */
  readonly onPosition?: (before: number) => void
}

interface Waiting extends QueuePlace {
  readonly age: number
  told: number
  readonly begin: () => void
  readonly fail: (error: unknown) => void
}

/** The most waiting entries of one tenant. A single request has up to 1024 (64 prompts with 16 answers each), so four of these fit. */
const MOST_PARTS = 4096

/** The error of `enter` when the queue is full, or when a later request of another tenant displaced this one. */
export class QueueFull extends Error {
  constructor(readonly waiting: number) {
    super(`${waiting} requests wait already.`)
  }
}

/**
 * Gives slots to tenants in turn, so a tenant with a hundred requests delays another tenant only by those that are running. Requests of one
 * tenant go by priority, then by age. A new request for a full queue may displace a waiting one of the tenant that has the most. That
 * tenant must have at least two more than the new request's tenant. Its newest request of the lowest priority leaves.
 */
export class Queue {
  readonly #waiting: Waiting[] = []
  /** Tenants with waiting requests, in the order of their next slots. */
  #turns: Tenant[] = []
  #running = 0
  #age = 0
  /** Waiting entries that are requests of their own, without further answers to a request (`follows`). */
  #requests = 0
  #isTelling = false

  constructor(private readonly options: QueueOptions) {}

  /** Number of waiting requests. */
  get waiting(): number {
    return this.#requests
  }

  get running(): number {
    return this.#running
  }

  /**
   * Waits for a slot. Returns a function that gives the slot back; calling it again does nothing.
   * @throws QueueFull at once, or later when another tenant's request displaces this one; KvfoldError engine/cancelled when the signal is
   * aborted before a slot is free
   */
  enter(place: QueuePlace): Promise<() => void> {
    if (place.signal?.aborted === true) return Promise.reject(cancelled())
    if (this.#running < this.options.slots && this.#waiting.length === 0) return Promise.resolve(this.#take())
    if (!this.#hasRoom(place)) return Promise.reject(new QueueFull(this.#requests))
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.#remove(waiting)
        reject(cancelled())
        this.#tell()
      }
      const waiting: Waiting = {
        ...place,
        age: this.#age++,
        told: -1,
        begin: () => {
          place.signal?.removeEventListener('abort', leave)
          this.#remove(waiting)
          resolve(this.#take())
        },
        fail: (error) => {
          place.signal?.removeEventListener('abort', leave)
          this.#remove(waiting)
          reject(error)
        },
      }
      place.signal?.addEventListener('abort', leave, { once: true })
      this.#waiting.push(waiting)
      if (place.follows !== true) this.#requests++
      if (!this.#turns.includes(place.tenant)) this.#turns.push(place.tenant)
      this.#tell()
    })
  }

  /** Returns whether the entry may wait. If the queue is full, this may reject a waiting request of another tenant. */
  #hasRoom({ tenant, follows }: QueuePlace): boolean {
    if (follows === true)
      return this.#waiting.length < MOST_PARTS || this.#waiting.filter((one) => one.tenant === tenant).length < MOST_PARTS
    if (this.#requests < this.options.limit) return true
    const requests = new Map<Tenant, Waiting[]>([[tenant, []]])
    for (const one of this.#waiting)
      if (one.follows !== true) requests.set(one.tenant, [...(requests.get(one.tenant) ?? []), one])
    const most = [...requests.values()].reduce((a, b) => (b.length > a.length ? b : a))
    if (most.length <= requests.get(tenant)!.length + 1) return false
    most.sort((a, b) => a.priority - b.priority || b.age - a.age)[0]!.fail(new QueueFull(this.#requests))
    return true
  }

  /** Rejects all waiting entries with this error. */
  refuseAll(error: unknown): void {
    for (const waiting of [...this.#waiting]) waiting.fail(error)
  }

  #take(): () => void {
    this.#running++
    let taken = true
    return () => {
      if (!taken) return
      taken = false
      this.#running--
      this.#advance()
    }
  }

  #advance(): void {
    while (this.#running < this.options.slots) {
      const next = this.#order(this.#waiting, this.#turns).next().value
      if (next === undefined) break
      const { tenant } = next
      next.begin()
      // A tenant that still has waiting entries goes to the end of the order.
      if (this.#turns.includes(tenant)) this.#turns = [...this.#turns.filter((other) => other !== tenant), tenant]
    }
    this.#tell()
  }

  #remove(waiting: Waiting): void {
    const at = this.#waiting.indexOf(waiting)
    if (at < 0) return
    this.#waiting.splice(at, 1)
    if (waiting.follows !== true) this.#requests--
    if (!this.#waiting.some(({ tenant }) => tenant === waiting.tenant))
      this.#turns = this.#turns.filter((tenant) => tenant !== waiting.tenant)
  }

  /** Reports all new positions in the queue, once per turn of the event loop. */
  #tell(): void {
    if (this.#isTelling) return
    this.#isTelling = true
    setImmediate(() => {
      this.#isTelling = false
      this.#tellNow()
    })
  }

  #tellNow(): void {
    let before = 0
    for (const waiting of [...this.#order(this.#waiting, this.#turns)]) {
      if (waiting.told !== before) waiting.onPosition?.((waiting.told = before))
      before++
    }
  }

  /** Yields the waiting entries in the order in which they will begin if no others arrive. */
  *#order(waiting: readonly Waiting[], turns: readonly Tenant[]): Generator<Waiting, undefined> {
    const lines = turns.map((turn) =>
      waiting.filter(({ tenant }) => tenant === turn).sort((a, b) => b.priority - a.priority || a.age - b.age),
    )
    for (let round = 0; lines.some((line) => line.length > round); round++)
      for (const line of lines) if (line[round] !== undefined) yield line[round]!
    return undefined
  }
}

const cancelled = (): KvfoldError => new KvfoldError('engine/cancelled', 'The request was cancelled while it waited.')
