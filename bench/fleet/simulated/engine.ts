/** Owns a simulated engine: a batch of requests that is computed step by step at a calibrated machine's rates, and a prefix cache that gives up what was unused for longest. */
import { type CostModel, type PrefillTerm, priceOf } from '../../../src/runtime/kv/cost-model.js'

export interface EngineOptions {
  readonly speed: Pick<CostModel, 'prefill'>
  /** Requests that are computed at once; others wait. */
  readonly slots: number
  /** Tokens that the cache holds. */
  readonly cells: number
  /** Tokens of prompts that one step computes at most. */
  readonly chunk: number
}

/** A part of a prompt that caches hold whole or not at all. */
export interface Piece {
  /** The same for equal beginnings up to its end. */
  readonly key: number
  readonly tokens: number
}

export interface Job {
  readonly prompt: readonly Piece[]
  /** What the prompt and its answer are called together. */
  readonly after: Piece
  /** When it came, in milliseconds. */
  readonly since: number
  readonly onEnd: (job: Done) => void
}

export interface Done {
  readonly cached: number
  readonly computed: number
  /** Milliseconds from its coming. */
  readonly firstToken: number
  readonly total: number
}

interface Node {
  readonly tokens: number
  /** Jobs that use it now, and nodes that go on from it. */
  users: number
  readonly before: number | null
}

interface Running {
  readonly job: Job
  readonly cached: number
  /** What of the cache it uses. */
  readonly found: readonly number[]
  /** Tokens of the prompt that are still to be computed, and of the answer. */
  left: number
  toSay: number
  shown: number
  firstToken: number
}

export class SimulatedEngine {
  readonly #waiting: Job[] = []
  readonly #running: Running[] = []
  /** What was unused for longest first, ends of beginnings before the beginnings. */
  readonly #cache = new Map<number, Node>()
  #held = 0
  /** Milliseconds that it computed. */
  busy = 0
  computed = 0

  constructor(
    private readonly options: EngineOptions,
    /** Calls back after so many milliseconds. */
    private readonly after: (milliseconds: number, work: () => void) => void,
    private readonly now: () => number,
    /** Times as long as on a core of its own, now. */
    private readonly slowed: () => number,
  ) {}

  /** Whether it computes. */
  get active(): boolean {
    return this.#running.length > 0
  }

  /** Requests here. */
  get open(): number {
    return this.#waiting.length + this.#running.length
  }

  take(job: Job): void {
    this.#waiting.push(job)
    if (this.#running.length === 0) this.#step()
    else this.#admit()
  }

  #admit(): void {
    while (this.#running.length < this.options.slots && this.#waiting.length > 0) {
      const job = this.#waiting.shift()!
      const total = job.prompt.reduce((sum, { tokens }) => sum + tokens, 0)
      let cached = 0
      const found: number[] = []
      for (const { key, tokens } of job.prompt) {
        const node = this.#cache.get(key)
        if (node === undefined) break
        node.users++
        found.push(key)
        cached += tokens
      }
      this.#touch(found)
      // The last token of a prompt is always computed: the answer begins behind it.
      cached = Math.min(cached, total - 1)
      this.#running.push({ job, cached, found, left: total - cached, toSay: job.after.tokens, shown: cached, firstToken: 0 })
    }
  }

  /** One decode of the batch: a token of every answer, and prompts as far as there is room. */
  #step(): void {
    this.#admit()
    if (this.#running.length === 0) return
    const amounts: Record<PrefillTerm, number> = { call: 1, token: 0, read: 0, attended: 0, scanned: 0 }
    const cells = this.#held + this.#running.reduce((sum, { shown, cached }) => sum + shown - cached, 0)
    const took: { readonly running: Running; readonly tokens: number }[] = []
    let room = this.options.chunk
    const add = (running: Running, tokens: number) => {
      amounts.token += tokens
      amounts.read += running.shown + tokens
      amounts.attended += tokens * running.shown + (tokens * (tokens + 1)) / 2
      amounts.scanned += tokens * (cells + tokens)
      took.push({ running, tokens })
    }
    for (const running of this.#running) if (running.left === 0) add(running, 1)
    for (const running of this.#running)
      if (running.left > 0 && room > 0) {
        const tokens = Math.min(running.left, room)
        room -= tokens
        add(running, tokens)
      }
    const milliseconds = priceOf(this.options.speed.prefill, amounts) * this.slowed()
    this.busy += milliseconds
    this.computed += amounts.token
    this.after(milliseconds, () => {
      for (const { running, tokens } of took) this.#advance(running, tokens)
      this.#step()
    })
  }

  #advance(running: Running, tokens: number): void {
    running.shown += tokens
    if (running.left > 0) {
      running.left -= tokens
      if (running.left > 0) return
      this.#keep(running.job.prompt)
      running.firstToken = this.now() - running.job.since
    }
    running.toSay--
    if (running.toSay > 0) return
    this.#running.splice(this.#running.indexOf(running), 1)
    const { job, cached, found, firstToken } = running
    for (const key of found) this.#cache.get(key)!.users--
    this.#keep([...job.prompt, job.after])
    const computed = job.prompt.reduce((sum, piece) => sum + piece.tokens, 0) - cached
    job.onEnd({ cached, computed, firstToken, total: this.now() - job.since })
  }

  #keep(pieces: readonly Piece[]): void {
    let before: number | null = null
    for (const { key, tokens } of pieces) {
      if (!this.#cache.has(key)) {
        if (before !== null) this.#cache.get(before)!.users++
        this.#cache.set(key, { tokens, users: 0, before })
        this.#held += tokens
      }
      before = key
    }
    this.#touch(pieces.map(({ key }) => key))
    this.#makeRoom()
  }

  #touch(keys: readonly number[]): void {
    for (const key of [...keys].reverse()) {
      const node = this.#cache.get(key)!
      this.#cache.delete(key)
      this.#cache.set(key, node)
    }
  }

  #makeRoom(): void {
    while (this.#held > this.options.cells) {
      let key: number | null = null
      for (const [each, { users }] of this.#cache)
        if (users === 0) {
          key = each
          break
        }
      if (key === null) return
      const { tokens, before } = this.#cache.get(key)!
      this.#cache.delete(key)
      this.#held -= tokens
      if (before !== null) this.#cache.get(before)!.users--
    }
  }
}
