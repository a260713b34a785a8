/** The tools of all configured MCP servers: gives them unique names, keeps a catalogue of them, and sends each call to its server. */
import type { ToolCall, ToolDefinition } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { Catalogue } from '../tools/catalogue.js'
import type { McpServerConfig } from './config.js'
import { Connection, type McpEvent, type McpState } from './connection.js'

export interface McpHostOptions {
  readonly servers: readonly McpServerConfig[]
  /** Kvfold's version, as sent to the servers. */
  readonly version: string
  /** Names that no tool of a server may get. Default: none. */
  readonly reserved?: readonly string[]
  /** Milliseconds between attempts to start servers that failed to start. Default: a minute. */
  readonly retryMs?: number
  /** Called when a server ends, is restarted, or changes its tools. */
  readonly onEvent?: (event: McpEvent) => void
  readonly signal?: AbortSignal
}

/** The state of one MCP server. */
export interface McpServerStatus {
  readonly name: string
  readonly state: McpState
  /** Why the server is down; null when it is up. */
  readonly problem: string | null
  /** Names of its tools, as the host gave them. */
  readonly tools: readonly string[]
  /** Process id of the server; null when it has none. */
  readonly pid: number | null
}

interface HostedTool {
  readonly definition: ToolDefinition
  readonly connection: Connection
  /** The tool's name on its own server. */
  readonly tool: string
}

const RETRY = 60_000

/** The longest function name that OpenAI's API accepts. */
const LONGEST_NAME = 64

export class McpHost {
  readonly #connections: readonly Connection[]
  readonly #entries = new Map<string, HostedTool>()
  #tools: readonly ToolDefinition[] = []
  /** All names given so far, by server and tool. A tool that disappears and comes back gets its old name. */
  readonly #names = new Map<string, string>()
  readonly #taken: Set<string>
  #index: Promise<Catalogue> | null = null
  /** False until every server was asked for its tools: names and order must not depend on which server answers first. */
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

  /**
   * Starts all servers at the same time. A server that fails to start is `down`, and `onEvent` gets the reason. @throws KvfoldError
   * engine/cancelled
   */
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
      // A call restarts a server that is down. But a server whose tools are unknown gets no calls, so it is started here.
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

  /** All tools available now, in the order of the configured servers, then by name. The array is replaced when a tool changes. */
  get tools(): readonly ToolDefinition[] {
    return this.#tools
  }

  /** A catalogue of the present tools, which follows their changes at once. Definitions that it returned before do not change. */
  readonly catalogue: Pick<Catalogue, 'search' | 'get'> = {
    search: async (...query) => {
      this.#index ??= Catalogue.of(this.tools)
      return (await this.#index).search(...query)
    },
    get: (name) => this.#entries.get(name)?.definition ?? null,
  }

  /** Calls a tool of a server. @throws KvfoldError mcp/failed, mcp/timeout, mcp/unreachable, engine/cancelled */
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

  /** Returns `server_tool`, with a number appended when another tool has that name. */
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

/** Makes the definition for the model. Leaves out `$schema`, which tells a model nothing. */
const definitionOf = (
  name: string,
  { description, title, inputSchema: { $schema: _, ...parameters } }: Connection['tools'][number],
): ToolDefinition => ({ name, description: description ?? title ?? '', parameters })

const byName = (one: { readonly name: string }, other: { readonly name: string }): number =>
  one.name < other.name ? -1 : one.name > other.name ? 1 : 0
