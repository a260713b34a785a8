/** Owns what the service says of itself: models, queue, slots, what it saved today. */
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import type { CacheTotals } from '../../kv/residency.js'
import type { Sampling } from '../../engine/engine.js'
import type { Abilities } from '../../engine/model-facts.js'
import type { EngineStatus } from '../../engine/elsewhere.js'
import type { ThreadStore } from '../../store/port.js'

export interface ModelStatus {
  /** What requests call it. */
  readonly name: string
  /** What else requests may call it; `*`: anything. */
  readonly aliases: readonly string[]
  readonly state: 'unloaded' | 'loading' | 'loaded'
  /** Unix seconds when the server learned of it. */
  readonly since: number
  /** What is known once it was loaded. */
  readonly loaded: {
    /** The model's own name. */
    readonly title: string
    readonly engine: string
    readonly release: string
    /** Tokens one conversation may show. */
    readonly context: number
    /** Steps that run at once. */
    readonly slots: number
    /** Null for engines that have no cache of their own here. */
    readonly cache: CacheTotals | null
    readonly abilities: Abilities | null
    /** Tokens submitted to decode since it was loaded, as the addon counted them; null where there is no addon. */
    readonly submitted: number | null
    /** Texts of the tokens that its texts begin and end with; null where another server has its vocabulary. */
    readonly ends: { readonly bos: string | null; readonly eos: string | null } | null
    /** How it is sampled where neither a request nor the server's flags say; null: its engine does not know. */
    readonly sampling: Sampling | null
    /** The servers that compute it; null where it is computed here. */
    readonly engines: readonly EngineStatus[] | null
    /** Why these are not what their file says; null: they are. */
    readonly enginesProblem: string | null
  } | null
  /** Asks that run on it now. */
  readonly running: number
  /** Milliseconds since the last one ended; 0 while some run. */
  readonly idleMs: number
}

/** An MCP server that the operator configured. */
export interface ToolServerStatus {
  readonly name: string
  readonly state: 'starting' | 'ready' | 'down' | 'closed'
  /** Why it is down. */
  readonly problem: string | null
  readonly tools: number
}

export interface ServiceStatus {
  readonly models: readonly ModelStatus[]
  readonly toolServers: readonly ToolServerStatus[]
  /** Asks under way, completions included. */
  readonly running: number
  readonly queue: { readonly waiting: number; readonly limit: number }
  /** Live ones, of all tenants. */
  readonly threads: number
  /** Those of them whose messages are in memory. */
  readonly loaded: number
  /** Kept things that are not what was acknowledged; each is told when it is asked for. */
  readonly damaged: { readonly threads: number; readonly responses: number }
  /** Why nothing can be kept in the store now; null: nothing is known against it. */
  readonly storeProblem: string | null
  /** What is wrong with it then: the database does not answer, there is no room, its file is not where it was, or it cannot be written. */
  readonly storeFault: 'away' | 'full' | 'gone' | 'failed' | null
  /** Tokens that a plain prefix cache would have computed more, since midnight of this machine's day; negative: less. */
  readonly savedToday: number
  /** Since the start: asks by how they ended. */
  readonly asks: { readonly done: number; readonly failed: number; readonly cancelled: number; readonly refused: number }
  readonly closing: boolean
}

export function storeStatus({ shared, problem = null }: ThreadStore): Pick<ServiceStatus, 'storeProblem' | 'storeFault'> {
  const away = shared?.problem ?? null
  if (away !== null) return { storeProblem: away, storeFault: 'away' }
  if (problem === null) return { storeProblem: null, storeFault: null }
  const { code, message } = problem
  return { storeProblem: message, storeFault: code === 'store/full' ? 'full' : code === 'store/gone' ? 'gone' : 'failed' }
}

/** What was saved since midnight, local time; with a file it outlives the process. A file that cannot be read or written costs the figure, nothing else. */
export class SavedToday {
  #day: string
  #tokens = 0

  /** @param clock for tests */
  constructor(
    private readonly file: string | null = null,
    private readonly clock: () => Date = () => new Date(),
  ) {
    this.#day = dayOf(this.clock())
    if (file === null) return
    try {
      const { day, tokens } = JSON.parse(readFileSync(file, 'utf8')) as { day?: unknown; tokens?: unknown }
      if (day === this.#day && Number.isSafeInteger(tokens)) this.#tokens = tokens as number
    } catch {
      // There is none yet, or it is none of ours.
    }
  }

  get tokens(): number {
    const day = dayOf(this.clock())
    if (day !== this.#day) [this.#day, this.#tokens] = [day, 0]
    return this.#tokens
  }

  add(tokens: number): void {
    if (tokens === 0) return
    this.#tokens = this.tokens + tokens
    if (this.file === null) return
    try {
      writeFileSync(`${this.file}.new`, JSON.stringify({ day: this.#day, tokens: this.#tokens }), { mode: 0o600 })
      renameSync(`${this.file}.new`, this.file)
    } catch {
      // The next answer tries again.
    }
  }
}

/** As the clock on the wall has it. */
const dayOf = (date: Date): string =>
  [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, '0')).join('-')
