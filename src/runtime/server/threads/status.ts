/** Describes the state of the service: models, queue, slots, tokens saved today. */
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
  /** Further names that requests may use; the name `*` stands for every name that no model has. */
  readonly aliases: readonly string[]
  /** Names of its adapters, which requests may give as the model's name. */
  readonly adapters: readonly string[]
  readonly state: 'unloaded' | 'loading' | 'loaded'
  /** Whether the last attempt to load the model failed. */
  readonly failed: boolean
  /** The size of its files; null when they are unknown. */
  readonly bytes: number | null
  /** When the model will be unloaded if it stays unused, in milliseconds since 1970; null: it stays, or is in use. */
  readonly until: number | null
  /** When the server registered the model, in Unix seconds. */
  readonly since: number
  /** Facts known while the model is loaded; else null. */
  readonly loaded: {
    /** The model's own name. */
    readonly title: string
    readonly engine: string
    readonly release: string
    /** The most tokens that a prompt may show. */
    readonly context: number
    /** How many steps run at once. */
    readonly slots: number
    /** Null when the engine has no cache in this process. */
    readonly cache: CacheTotals | null
    readonly abilities: Abilities | null
    /** Whether it keeps to limits on reasoning, and ends reasoning on request. */
    readonly boundsReasoning: boolean
    /** Tokens submitted to decode since loading, as the addon counted them; null without the addon. */
    readonly submitted: number | null
    /** The texts of the tokens with which the model's texts begin and end; null when another server has its vocabulary. */
    readonly ends: { readonly bos: string | null; readonly eos: string | null } | null
    /** Numbers of the model's file; null when another server computes it. */
    readonly numbers: ModelNumbers | null
    /** Default sampling when neither a request nor the server's flags set it; null when the engine knows none. */
    readonly sampling: Sampling | null
    /** The servers that compute the model; null when it is computed here. */
    readonly engines: readonly EngineStatus[] | null
    /** Why `engines` is not the list in the operator's file of engines; null when it is. */
    readonly enginesProblem: string | null
  } | null
  /** How many asks run on the model now. */
  readonly running: number
  /** Milliseconds since the model's last ask ended; 0 while any runs. */
  readonly idleMs: number
}

export interface ModelNumbers {
  readonly parameters: number
  /** Bytes of all tensors. */
  readonly bytes: number
  /** Numbers of an embedding of a token. */
  readonly embedding: number
  readonly trainedContext: number
  /** How many tokens the vocabulary has. */
  readonly vocabulary: number
  readonly vocabType: VocabType
  /** The kind of quantisation, such as `Q4_K_M`; empty when the file does not say. */
  readonly quantization: string
}

/** Facts of a model that are told also after it was unloaded. */
export interface KnownModel extends Pick<
  NonNullable<ModelStatus['loaded']>,
  'title' | 'release' | 'context' | 'slots' | 'ends' | 'numbers' | 'sampling'
> {
  /** The source of its chat template; null when it has none, or another server has it. */
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
  /** Asks in progress, completions included. */
  readonly running: number
  readonly queue: { readonly waiting: number; readonly limit: number }
  /** All live threads, of all tenants. */
  readonly threads: number
  /** How many of the threads have their messages in memory. */
  readonly loaded: number
  /** Stored threads and responses that cannot be read as written. A request for one reports its damage. */
  readonly damaged: { readonly threads: number; readonly responses: number }
  /** Why the store cannot write now; null when no problem is known. */
  readonly storeProblem: string | null
  /** The kind of problem: the database does not answer, the disk is full, the file was moved or removed, or it cannot be written. */
  readonly storeFault: 'away' | 'full' | 'gone' | 'failed' | null
  /** Tokens saved against a plain prefix cache since local midnight; negative when that cache would have computed less. */
  readonly savedToday: number
  /** Asks since the start, by how they ended. */
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
 * Counts the tokens saved since local midnight. With a file the count survives the process. If the file cannot be read or written, only
 * this count is lost.
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
      // The file does not exist yet, or another program wrote it, so the count begins at 0.
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
      // A count that could not be written now is written with the next answer.
    }
  }
}

/** Returns the local date as YYYY-MM-DD. */
const dayOf = (date: Date): string =>
  [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, '0')).join('-')
