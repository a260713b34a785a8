/**
 * The engines that serve one model. Keeps each engine's facts, health, open requests, and the numbers of expected and of really cached
 * tokens.
 */
import { KvfoldError } from '../../runtime/core/errors.js'
import type { EngineStatus, FlavourName } from '../../runtime/engine/elsewhere.js'
import { Affinity, type Beginning, type Candidate, type Reason } from './affinity.js'
import { Endpoint, type EndpointOptions, type Patience } from './endpoint.js'
import { flavourNamed, probe, type Flavour } from './flavour.js'
import { TextCounts } from './prompt-counts.js'

/** One engine in the operator's list. */
export interface EngineEntry extends Omit<EndpointOptions, 'patience'> {
  /** The engine's share of the conversations, relative to the weights of all engines. Default 1. */
  readonly weight?: number
  /** The kind of server. Default: found from `owned_by` in `/v1/models`. */
  readonly flavour?: FlavourName
  /** The model's name in requests to this engine. Default: `PoolOptions.model`, else the first model that the engine lists. */
  readonly model?: string
  /** True: the engine finishes its running requests and gets no new ones. Default false. */
  readonly drain?: boolean
}

export interface PoolOptions {
  readonly model?: string
  readonly patience?: Patience
  /** Milliseconds between two health checks of each engine. Default 5,000. */
  readonly healthEvery?: number
}

/** The facts that an engine reported about itself. */
export interface Known {
  readonly model: string
  readonly flavour: Flavour
  readonly counts: TextCounts
  readonly context: number | null
  readonly release: string
}

/** The model that engines without a `model` of their own must serve. It is the first model that one of them reported; null before that. */
interface CommonModel {
  name: string | null
}

/** After this many failures in a row, an engine counts as down. */
const FAILURES = 2
const HEALTH_EVERY = 5000
/** Milliseconds for a health check, and for the connection within it. */
const HEALTH_LIMIT = 5000
const CONNECT_LIMIT = 4000
/** Milliseconds that the other engines have at the start to report their facts, after the first engine has reported. */
const GRACE = 2000
/** An engine counts as gone when a check that begins this many milliseconds after the first failed one cannot connect either. */
const SURELY = 1000

/** One engine of a pool: its counters and its health. */
export class Member {
  readonly endpoint: Endpoint
  known: Known | null = null
  open = 0
  requests = 0
  failures = 0
  moved = 0
  readonly tokens = { prompt: 0, cached: 0, expected: 0 }
  /** Number of failures since the engine's last success. */
  #row = 0
  #problem: string | null = null
  /** The start of the first check that could not connect, by `performance.now`; null once a check gets any other result. */
  #away: number | null = null
  #lost = new AbortController()
  /** The time of the last bytes of an answer, by `performance.now`. */
  #heard = Number.NEGATIVE_INFINITY
  /** True after the engine left the pool. Its connections close with its last request. */
  #left = false

  constructor(
    public entry: EngineEntry,
    private readonly options: PoolOptions,
  ) {
    const { patience } = options
    this.endpoint = new Endpoint({ ...entry, ...(patience === undefined ? {} : { patience }) })
  }

  get name(): string {
    return this.endpoint.name
  }

  get up(): boolean {
    return this.known !== null && this.#row < FAILURES
  }

  get status(): EngineStatus {
    const { name, open, requests, failures, moved, known } = this
    return {
      ...{ name, open, requests, failures, moved, ...this.tokens },
      state: this.up ? (this.entry.drain === true ? 'draining' : 'up') : 'down',
      problem: this.#problem,
      weight: this.entry.weight ?? 1,
      model: known?.model ?? null,
      flavour: known?.flavour.name ?? null,
    }
  }

  /** Asks the engine for its facts. @throws KvfoldError remote/*, model/not-found */
  async connect(signal?: AbortSignal): Promise<Known> {
    const { entry, endpoint } = this
    const { flavour: found, ...probed } = await probe(endpoint, entry.model ?? this.options.model, signal)
    const flavour = entry.flavour === undefined ? found : flavourNamed(entry.flavour)
    this.known = { ...probed, flavour, counts: new TextCounts(endpoint, probed.model, flavour) }
    this.well()
    return this.known
  }

  /**
   * Checks the engine's health. Also reads its facts if they are unknown or if the engine has failed, because it may have come back with
   * another model. Never throws.
   */
  async check(common: CommonModel, signal?: AbortSignal): Promise<void> {
    const since = performance.now()
    const limit = AbortSignal.timeout(HEALTH_LIMIT)
    const within = signal === undefined ? limit : AbortSignal.any([signal, limit])
    try {
      if (this.known !== null && !(await this.endpoint.reach('/health', CONNECT_LIMIT, within)))
        await this.endpoint.reach('/v1/models', CONNECT_LIMIT, within)
      if (this.known === null || this.#row > 0) {
        const { model } = await this.connect(within)
        if (this.entry.model === undefined && model !== (common.name ??= model)) {
          this.known = null
          throw new KvfoldError(
            'model/not-found',
            `${this.name} serves ${model}, but the other engines serve ${common.name}; if it is the same model, name it as "model" in the file of --engines.`,
          )
        }
      }
      this.#away = null
      this.well()
    } catch (error) {
      if (signal?.aborted !== true) this.#miss(error, since)
      // An engine may be too busy to answer the health check. It counts as up while it sends parts of answers.
      const isBusy = limit.aborted && this.#heard > since
      if (signal?.aborted !== true && !isBusy)
        this.ill(limit.aborted ? `${this.name} has sent nothing for ${HEALTH_LIMIT / 1000} s.` : messageOf(error))
    }
  }

  /** Aborted when the machine seems to be gone: a machine that is cut off never ends its answers, so running requests would hang. */
  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** Records a failed check that began at `since`. Aborts `lost` if the engine seems to be gone. */
  #miss(error: unknown, since: number): void {
    const isNobody = error instanceof KvfoldError && error.code === 'remote/unreachable'
    if (!isNobody) {
      this.#away = null
      return
    }
    const first = (this.#away ??= since)
    // An engine that still sends parts of answers is not gone, even if new connections fail.
    if (since < first + SURELY || this.#heard > first) return
    const lost = this.#lost
    this.#lost = new AbortController()
    lost.abort(new KvfoldError('remote/unreachable', `${this.name} was lost in the middle of the request: ${error.message}`))
  }

  /** Records that bytes of an answer arrived. */
  hear(): void {
    this.#heard = performance.now()
  }

  well(): void {
    this.#row = 0
    this.#problem = null
  }

  ill(problem: string): void {
    this.#row++
    this.#problem = problem
  }

  /** Removes the engine from the pool. Its connections close with its last request. */
  leave(): void {
    this.#left = true
    if (this.open === 0) this.endpoint.close()
  }

  begin(): void {
    this.open++
    this.requests++
  }

  end(): void {
    this.open--
    if (this.#left && this.open === 0) this.endpoint.close()
  }
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

export class EnginePool {
  #members: readonly Member[]
  readonly #affinity = new Affinity()
  readonly #closing = new AbortController()
  #clock: NodeJS.Timeout | null = null
  /** The last result of `lead`, for the case that no engine has facts. */
  #lead: Known | null = null
  readonly #common: CommonModel = { name: null }

  private constructor(
    entries: readonly EngineEntry[],
    private readonly options: PoolOptions,
    /** False for a single engine without health checks: it takes all requests, even after a failure. */
    private watched: boolean,
  ) {
    this.#members = entries.map((entry) => new Member(entry, options))
  }

  /**
   * Asks all engines for their facts. An engine that takes more than two seconds longer than the first one counts as down until it answers.
   * `watched`: the pool checks the engines' health from then on, and `set` may change the list.
   * @throws KvfoldError remote/*, model/not-found: the first engine's error, when no engine can be used
   */
  static async connect(
    entries: readonly EngineEntry[],
    options: PoolOptions & { readonly signal?: AbortSignal },
    watched: boolean,
  ): Promise<EnginePool> {
    refuseTwins(entries)
    const pool = new EnginePool(entries, options, watched)
    const late = new AbortController()
    const within = AbortSignal.any([late.signal, options.signal ?? late.signal])
    const tries = pool.#members.map((member) => member.connect(within))
    const all = Promise.allSettled(tries)
    await Promise.any(tries).catch(() => undefined)
    const grace = setTimeout(() => {
      late.abort(new Error(`it did not name its model within ${GRACE / 1000} s; kvfold asks again`))
    }, GRACE)
    const tried = await all
    clearTimeout(grace)
    const failed = tried.map((each) => (each.status === 'rejected' ? (each.reason as unknown) : null))
    if (failed.every((each) => each !== null)) {
      pool.close()
      throw failed[0] as Error
    }
    const common = pool.#common
    common.name = pool.#members.find(({ entry, known }) => entry.model === undefined && known !== null)?.known?.model ?? null
    for (const [index, member] of pool.#members.entries()) {
      if (failed[index] !== null) member.ill(messageOf(failed[index]))
      if (failed[index] === late.signal.reason && watched) void member.check(common, pool.#closing.signal)
      if (failed[index] !== null) continue
      if (member.known?.model === common.name || member.entry.model !== undefined) continue
      member.known = null
      await member.check(common, options.signal)
    }
    pool.#look()
    return pool
  }

  /**
   * The facts of the first engine that is up, for questions that any engine can answer. If none is up: the facts of the first engine that
   * has any, or the last ones returned here.
   */
  get lead(): Known {
    const found = this.#members.find((member) => member.up)?.known ?? this.#members.find(({ known }) => known !== null)?.known
    this.#lead = found ?? this.#lead
    if (this.#lead === null) throw this.#noEngine()
    return this.#lead
  }

  /** Tokens that a conversation may have: the smallest context of all engines; null if no engine reports one. */
  get context(): number | null {
    const contexts = this.#members.map((member) => member.known?.context ?? null).filter((context) => context !== null)
    return contexts.length === 0 ? null : Math.min(...contexts)
  }

  get status(): readonly EngineStatus[] {
    return this.#members.map(({ status }) => status)
  }

  /**
   * Replaces the list of engines. Engines that stay keep their facts. Engines that leave finish their requests.
   * @throws KvfoldError remote/bad-endpoint for a bad list; the old list then stays
   */
  async set(entries: readonly EngineEntry[]): Promise<void> {
    refuseTwins(entries)
    const old = new Map(this.#members.map((member) => [member.name, member]))
    const isSame = ({ entry: { key, flavour, model } }: Member, next: EngineEntry) =>
      key === next.key && flavour === next.flavour && model === next.model
    const members = entries.map((entry) => {
      const fresh = new Member(entry, this.options)
      const known = old.get(fresh.name)
      if (known === undefined || !isSame(known, entry)) return fresh
      fresh.leave()
      known.entry = entry
      return known
    })
    const before = this.#members
    this.#members = members
    this.watched = true
    for (const member of before)
      if (!members.includes(member)) {
        member.leave()
        if (!members.some(({ name }) => name === member.name)) this.#affinity.lost(member.name)
      }
    this.#look()
    await this.check()
  }

  async check(): Promise<void> {
    await Promise.all(this.#members.map((member) => member.check(this.#common, this.#closing.signal)))
  }

  /**
   * Chooses the engine for a step, gives the reason, and counts the request as open. The caller must call `Member.end` on it. `tried`:
   * names of the engines on which this step has failed.
   * @throws KvfoldError remote/no-engine when no engine takes requests
   */
  take(
    wanted: { readonly beginning: Beginning; readonly last: string | null; readonly parent: string | null },
    tried: ReadonlySet<string> = new Set(),
  ): { readonly member: Member; readonly known: Known; readonly why: Reason } {
    const candidates = this.#members.map((member): Candidate => ({
      name: member.name,
      weight: member.entry.weight ?? 1,
      open: member.open,
      available: this.#takes(member) && !tried.has(member.name),
    }))
    const chosen = this.#affinity.choose(wanted, candidates)
    const member = this.#members.find(({ name }) => name === chosen?.name)
    if (chosen === null || member?.known == null) throw this.#noEngine()
    member.begin()
    return { member, known: member.known, why: chosen.why }
  }

  /** Whether some engine outside `tried` takes requests. */
  hasOther(tried: ReadonlySet<string>): boolean {
    return this.#members.some((member) => this.#takes(member) && !tried.has(member.name))
  }

  /** Records that a step ran on this engine. `last`: the name of the engine that ran the conversation's previous step. */
  ran(member: Member, beginning: Beginning, last: string | null): void {
    member.well()
    if (last !== null && last !== member.name) member.moved++
    this.#affinity.ran(beginning, member.name)
  }

  /**
   * Records that a step failed on this engine. `gone`: the engine seems to have stopped, or to have restarted as another one. The pool then
   * checks its health at once.
   */
  failed(member: Member, error: Error, gone: boolean): void {
    member.failures++
    if (!this.watched || !gone) return
    member.ill(error.message)
    void member.check(this.#common, this.#closing.signal)
  }

  close(): void {
    this.#closing.abort()
    if (this.#clock !== null) clearInterval(this.#clock)
    for (const member of this.#members) member.endpoint.close()
  }

  #takes(member: Member): boolean {
    return member.known !== null && (!this.watched || (member.up && member.entry.drain !== true))
  }

  #look(): void {
    if (!this.watched || this.#clock !== null) return
    this.#clock = setInterval(() => void this.check(), this.options.healthEvery ?? HEALTH_EVERY).unref()
  }

  #noEngine(): KvfoldError {
    const why = this.status.map(({ name, state, problem }) =>
      state === 'up'
        ? `${name} just failed`
        : state === 'draining'
          ? `${name} drains`
          : `${name} is down (${(problem ?? 'not reached yet').replace(/\.$/, '')})`,
    )
    return new KvfoldError(
      'remote/no-engine',
      `No engine takes requests: ${why.join('; ')}. Start one, or name another; try again in a few seconds.`,
    )
  }
}

/** @throws KvfoldError remote/bad-endpoint if the list is empty or names an engine twice */
function refuseTwins(entries: readonly EngineEntry[]): void {
  const names = entries.map((entry) => {
    const endpoint = new Endpoint(entry)
    endpoint.close()
    return endpoint.name
  })
  const twin = names.find((name, at) => names.indexOf(name) < at)
  if (twin !== undefined)
    throw new KvfoldError('remote/bad-endpoint', `${twin} is named twice; give it a greater weight instead.`)
  if (names.length === 0) throw new KvfoldError('remote/bad-endpoint', 'No engine is named; add one.')
}
