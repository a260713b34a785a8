/** Owns the tools of several MCP servers: their names here, the catalogue of them all, and which server a call goes to. */
import type { ToolCall, ToolDefinition } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { Catalogue } from '../tools/catalogue.js'
import type { McpServerConfig } from './config.js'
import { Connection, type McpEvent, type McpState } from './connection.js'

export interface McpHostOptions {
  readonly servers: readonly McpServerConfig[]
  /** Of kvfold, which servers are told. */
  readonly version: string
  /** Names that no tool of a server may have, because others have them. */
  readonly reserved?: readonly string[]
  /** Milliseconds after which servers that could not be started are tried again. Default: a minute. */
  readonly retryMs?: number
  /** A server died, was started again, or changed its tools. */
  readonly onEvent?: (event: McpEvent) => void
  readonly signal?: AbortSignal
}

/** A server at a glance. */
export interface McpServerStatus {
  readonly name: string
  readonly state: McpState
  /** Why it is down. */
  readonly problem: string | null
  /** Names of its tools, as they are called here. */
  readonly tools: readonly string[]
  /** Of its process. */
  readonly pid: number | null
}

interface HostedTool {
  readonly definition: ToolDefinition
  readonly connection: Connection
  /** As its server calls it. */
  readonly tool: string
}

const RETRY = 60_000

/** What OpenAI's API takes for the name of a function. */
const LONGEST_NAME = 64

export class McpHost {
  readonly #connections: readonly Connection[]
  readonly #entries = new Map<string, HostedTool>()
  #tools: readonly ToolDefinition[] = []
  /** Names given so far, by server and tool: a tool that comes back is called what it was called. */
  readonly #names = new Map<string, string>()
  readonly #taken: Set<string>
  #index: Promise<Catalogue> | null = null
  /** Not before all servers have been asked: names and order must not depend on which one was quicker. */
  #gathers = false
  #retries: ReturnType<typeof setInterval> | null = null

  private constructor({ servers, version, reserved = [], onEvent }: McpHostOptions) {
    this.#taken = new Set(reserved)
    this.#connections = servers.map(
      (config) =>
        new Connection({
          config,
          version,
          onEvent: (event) => {
            if (event.kind === 'tools' && this.#gathers) this.#gather()
            onEvent?.(event)
          },
        }),
    )
  }

  /** Starts all servers at once. Those that cannot be started are down, and say why. @throws KvfoldError engine/cancelled */
  static async open(options: McpHostOptions): Promise<McpHost> {
    const host = new McpHost(options)
    const { signal, onEvent } = options
    const opened = await Promise.allSettled(host.#connections.map((connection) => connection.open(signal)))
    if (signal?.aborted === true) {
      await host.close()
      throw new KvfoldError('engine/cancelled', 'The start of the MCP servers was cancelled.')
    }
    host.#gathers = true
    host.#gather()
    host.#retries = setInterval(() => {
      // Nobody can call them, so no call starts them.
      for (const connection of host.#connections)
        if (connection.state === 'down' && connection.tools.length === 0) connection.open().catch(() => undefined)
    }, options.retryMs ?? RETRY).unref()
    opened.forEach((outcome, at) => {
      if (outcome.status === 'fulfilled') return
      const reason: unknown = outcome.reason
      const text = reason instanceof Error ? reason.message : String(reason)
      onEvent?.({ server: host.#connections[at]!.name, kind: 'down', text })
    })
    return host
  }

  get servers(): readonly McpServerStatus[] {
    return this.#connections.map((connection) => {
      const { name, state, problem, pid } = connection
      const tools = [...this.#entries].flatMap(([tool, entry]) => (entry.connection === connection ? [tool] : []))
      return { name, state, problem, tools, pid }
    })
  }

  /** All tools that there are now, always in the same order: by server as configured, then by name. The same list until one of them changes. */
  get tools(): readonly ToolDefinition[] {
    return this.#tools
  }

  /** Follows the servers: what changes there can be found or not found from then on, and whoever holds a definition keeps it. */
  readonly catalogue: Pick<Catalogue, 'search' | 'get'> = {
    search: async (...query) => {
      this.#index ??= Catalogue.of(this.tools)
      return (await this.#index).search(...query)
    },
    get: (name) => this.#entries.get(name)?.definition ?? null,
  }

  /** Carries a call out. @throws KvfoldError mcp/failed, mcp/timeout, mcp/unreachable, engine/cancelled */
  execute({ name, arguments: args }: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): Promise<string> {
    const entry = this.#entries.get(name)
    if (entry === undefined)
      return Promise.reject(
        new KvfoldError('mcp/failed', `its server no longer offers ${name}. Do without it, or search for another.`),
      )
    return entry.connection.call(entry.tool, args, signal)
  }

  async close(): Promise<void> {
    if (this.#retries !== null) clearInterval(this.#retries)
    await Promise.allSettled(this.#connections.map((connection) => connection.close()))
    await this.#forgetIndex()
  }

  #gather(): void {
    this.#entries.clear()
    for (const connection of this.#connections)
      for (const tool of connection.tools.toSorted(byName)) {
        const name = this.#nameOf(connection, tool.name)
        this.#entries.set(name, { definition: definitionOf(name, tool), connection, tool: tool.name })
      }
    this.#tools = [...this.#entries.values()].map(({ definition }) => definition)
    void this.#forgetIndex()
  }

  /** `server_tool`, numbered where that is taken. */
  #nameOf(connection: Connection, tool: string): string {
    const key = `${this.#connections.indexOf(connection)} ${tool}`
    const known = this.#names.get(key)
    if (known !== undefined) return known
    const base = `${connection.name}_${tool}`.replace(/[^A-Za-z0-9_-]/g, '_')
    let name = base.slice(0, LONGEST_NAME)
    for (let number = 2; this.#taken.has(name); number++) name = `${base.slice(0, LONGEST_NAME - `_${number}`.length)}_${number}`
    this.#taken.add(name)
    this.#names.set(key, name)
    return name
  }

  async #forgetIndex(): Promise<void> {
    const index = this.#index
    this.#index = null
    ;(await index)?.close()
  }
}

/** Without the draft of JSON Schema, which says nothing to a model. */
const definitionOf = (
  name: string,
  { description, title, inputSchema: { $schema: _, ...parameters } }: Connection['tools'][number],
): ToolDefinition => ({ name, description: description ?? title ?? '', parameters })

const byName = (one: { readonly name: string }, other: { readonly name: string }): number =>
  one.name < other.name ? -1 : one.name > other.name ? 1 : 0
