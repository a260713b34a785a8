/** The state of the service as data: models, queue, slots, store, tokens saved today. */
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import type { CacheTotals } from '../../kv/residency.js'
import type { Sampling } from '../../engine/engine.js'
import type { Abilities } from '../../engine/model-facts.js'
import type { EngineStatus } from '../../engine/elsewhere.js'
import type { VocabType } from '../../native/types.js'
import type { ThreadStore } from '../../store/port.js'

export interface ModelStatus {
  /** The name that requests use. */
  readonly name: string
  /** Other names that requests may use; `*` matches every name that no model has. */
  readonly aliases: readonly string[]
  /** Names of its adapters, which requests may give as the model's name. */
  readonly adapters: readonly string[]
  readonly state: 'unloaded' | 'loading' | 'loaded'
  /** Whether the last attempt to load the model failed. */
  readonly failed: boolean
  /** Bytes of its files; null when unknown. */
  readonly bytes: number | null
  /** When the model will be unloaded if it stays unused, in Unix milliseconds; null: it is in use, or stays loaded. */
  readonly until: number | null
  /** When the server registered the model, in Unix seconds. */
  readonly since: number
  /** Null while the model is not loaded. */
  readonly loaded: {
    /** The name that the engine reports for the model. */
    readonly title: string
    readonly engine: string
    readonly release: string
    /** The most tokens that a prompt may show. */
    readonly context: number
    /** How many steps run at once. */
    readonly slots: number
    /** Null when the cache is in another process. */
    readonly cache: CacheTotals | null
    readonly abilities: Abilities | null
    /** Whether the engine enforces a reasoning budget and ends reasoning on request. */
    readonly boundsReasoning: boolean
    /** Tokens submitted to decode since the load, counted by the addon; null for engines elsewhere. */
    readonly submitted: number | null
    /** Texts of the BOS and EOS tokens; null when the vocabulary is in another process. */
    readonly ends: { readonly bos: string | null; readonly eos: string | null } | null
    /** Null when another server computes the model. */
    readonly numbers: ModelNumbers | null
    /** Default sampling settings of the model; null when the engine knows none. */
    readonly sampling: Sampling | null
    /** The servers that compute the model; null when it is computed here. */
    readonly engines: readonly EngineStatus[] | null
    /** Why `engines` differs from the operator's file of engines; null when it does not. */
    readonly enginesProblem: string | null
  } | null
  /** How many requests run on the model now. */
  readonly running: number
  /** Milliseconds since the model's last use ended; 0 while it is in use. */
  readonly idleMs: number
}

export interface ModelNumbers {
  readonly parameters: number
  /** Bytes of all tensors. */
  readonly bytes: number
  /** Numbers in a token's embedding vector. */
  readonly embedding: number
  readonly trainedContext: number
  /** How many tokens the vocabulary has. */
  readonly vocabulary: number
  readonly vocabType: VocabType
  /** The kind of quantisation, such as `Q4_K_M`; empty when the file does not say. */
  readonly quantization: string
}

/** Facts of a model that stay known after it was unloaded. */
export interface KnownModel extends Pick<
  NonNullable<ModelStatus['loaded']>,
  'title' | 'release' | 'context' | 'slots' | 'ends' | 'numbers' | 'sampling'
> {
  /** The Jinja source of its chat template; null when it has none, or another server has it. */
  readonly chatTemplate: string | null
}

/** An MCP server that the operator configured. */
export interface ToolServerStatus {
  readonly name: string
  readonly state: 'starting' | 'ready' | 'down' | 'closed'
  /** Why the server is down; else null. */
  readonly problem: string | null
  readonly tools: number
}

export interface ServiceStatus {
  readonly models: readonly ModelStatus[]
  readonly toolServers: readonly ToolServerStatus[]
  /** Requests in progress, completions included. */
  readonly running: number
  readonly queue: { readonly waiting: number; readonly limit: number }
  /** Threads of all tenants. */
  readonly threads: number
  /** How many of the threads have their messages in memory. */
  readonly loaded: number
  /** Stored threads and responses that cannot be read as they were written. A request for one fails with a description of the damage. */
  readonly damaged: { readonly threads: number; readonly responses: number }
  /** Why the store cannot write now; null when no problem is known. */
  readonly storeProblem: string | null
  /**
   * `away`: the database does not answer. `full`: the disk is full. `gone`: the file was moved or removed. `failed`: it cannot be written.
   */
  readonly storeFault: 'away' | 'full' | 'gone' | 'failed' | null
  /** Tokens saved against a plain prefix cache since local midnight; negative when that cache would have computed fewer. */
  readonly savedToday: number
  /** Requests since the start, by how they ended. */
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

/**
 * Counts the tokens saved since local midnight. With a file the count survives a restart. If the file cannot be read or written, the server
 * runs on and only this count is affected.
 */
export class SavedToday {
  #day: string
  #tokens = 0

  /** @param clock returns the present time; only tests set it */
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
      // The file does not exist yet or is no valid JSON: the count begins at 0.
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
      // The next answer writes the count again.
    }
  }
}

/** Returns the local date as YYYY-MM-DD. */
const dayOf = (date: Date): string =>
  [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, '0')).join('-')
