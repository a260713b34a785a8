/** Owns what the service says of itself: models, queue, slots. */
import type { CacheTotals } from '../../kv/residency.js'
import type { Abilities } from '../../engine/model-facts.js'

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
  /** Since the start: asks by how they ended. */
  readonly asks: { readonly done: number; readonly failed: number; readonly cancelled: number; readonly refused: number }
  readonly closing: boolean
}
