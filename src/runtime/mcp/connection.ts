/** The connection to one MCP server: starts the server, restarts it after it ended, lists its tools, and calls them within a time limit. */
import { basename } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import {
  type CallToolResult,
  Client,
  ClientCredentialsProvider,
  OAuthError,
  ProtocolError,
  SdkError,
  SdkErrorCode,
  SdkHttpError,
  StreamableHTTPClientTransport,
  type Tool,
  type Transport,
  UnauthorizedError,
} from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import { KvfoldError } from '../core/errors.js'
import { writeJson } from '../core/written-json.js'
import { writtenResult, writtenTool } from './carried-text.js'
import { DEFAULT_TIMEOUT, type McpServerConfig } from './config.js'
import { HttpTransport, ProcessTransport } from './transports.js'

export type McpState = 'starting' | 'ready' | 'down' | 'closed'

/** A change of a server's state or tools, as a sentence for people. */
export interface McpEvent {
  readonly server: string
  readonly kind: 'down' | 'restarted' | 'tools'
  readonly text: string
}

export interface ConnectionOptions {
  readonly config: McpServerConfig
  /** Kvfold's version, as sent to the server. */
  readonly version: string
  readonly onEvent: (event: McpEvent) => void
}

/** How many of the last characters of a server's stderr are kept, to report when it ends. */
const LAST_WORDS = 400
/** The most characters of an error message in a reason. */
const LONGEST_REASON = 400
/** Milliseconds that closing waits until an HTTP server has ended the session. */
const GOODBYE = 1000
/** The most pages of a list of tools. */
const MOST_PAGES = 1000

export class Connection {
  state: McpState = 'down'
  /** Why the server is down; null when it is up. */
  problem: string | null = null
  tools: readonly Tool[] = []
  #client: Client | null = null
  #transport: Transport | null = null
  #opening: Promise<Client> | null = null
  /** How many calls run on each client. A client whose connection counts as lost is closed after its last call. */
  readonly #calls = new Map<Client, number>()
  #said = ''
  /**
   * Whether to restart the server at once when it ends. True only after it answered a call since its last restart, so that a server that
   * keeps crashing is not restarted in a loop. Otherwise the next call restarts it.
   */
  #restarts = false
  #closed = false

  constructor(private readonly options: ConnectionOptions) {}

  get name(): string {
    return this.options.config.name
  }

  /** Process id of the server; null for HTTP servers and while it does not run. */
  get pid(): number | null {
    return this.#transport instanceof StdioClientTransport ? this.#transport.pid : null
  }

  /** Starts the server and lists its tools. @throws KvfoldError mcp/unreachable, engine/cancelled */
  async open(signal?: AbortSignal): Promise<void> {
    await this.#ready(signal)
  }

  /**
   * Calls a tool and returns its result as text. Starts the server first if it is down. If the server ends during the call, the call is not
   * repeated.
   * @throws KvfoldError mcp/unreachable, mcp/timeout, mcp/failed, engine/cancelled
   */
  async call(tool: string, args: Readonly<Record<string, unknown>>, signal?: AbortSignal): Promise<string> {
    const client = await this.#ready(signal)
    try {
      return await this.#called(client, tool, args, signal)
    } catch (error) {
      if (!isForgotten(error)) throw error
      // The server dropped our session before it ran the call, so repeating the call is safe.
      this.#lost(client, 'it no longer knows the session')
      return await this.#called(await this.#ready(signal), tool, args, signal)
    }
  }

  /** Ends the connection and the server's process, also during calls. */
  async close(): Promise<void> {
    this.#closed = true
    this.state = 'closed'
    this.#client = null
    const transports = new Set([this.#transport, ...[...this.#calls.keys()].map(({ transport }) => transport)])
    await Promise.all([...transports].map(leave))
  }

  async #called(client: Client, tool: string, args: Readonly<Record<string, unknown>>, signal?: AbortSignal): Promise<string> {
    const { timeout, outputLimit } = this.options.config
    let result: CallToolResult
    this.#calls.set(client, (this.#calls.get(client) ?? 0) + 1)
    try {
      result = await client.callTool({ name: tool, arguments: args }, { timeout, ...(signal === undefined ? {} : { signal }) })
      this.#restarts = true
    } catch (error) {
      if (signal?.aborted === true) throw cancelled(error)
      throw this.#explained(error, client, tool)
    } finally {
      this.#over(client)
    }
    const text = resultText(writtenResult(result), outputLimit)
    if (result.isError === true) throw new KvfoldError('mcp/failed', text)
    return text
  }

  /** Ends a call. Closes the client if its connection was lost and no other call runs on it. */
  #over(client: Client): void {
    const rest = this.#calls.get(client)! - 1
    if (rest > 0) this.#calls.set(client, rest)
    else this.#calls.delete(client)
    if (rest === 0 && client !== this.#client) void leave(client.transport)
  }

  #explained(error: unknown, client: Client, tool: string): KvfoldError {
    const { name, timeout, outputLimit } = this.options.config
    const say = (code: 'mcp/timeout' | 'mcp/failed', text: string) => new KvfoldError(code, text, { cause: error })
    if (error instanceof ProtocolError) return say('mcp/failed', within(error.message, outputLimit))
    if (hasCode(error, SdkErrorCode.RequestTimeout))
      return say(
        'mcp/timeout',
        `the server ${name} gave no answer to ${tool} within ${timeout / 1000} s, so kvfold cancelled the call. ` +
          'To allow more time, set "timeout" (milliseconds) of this server in the file of --mcp-config.',
      )
    if (hasCode(error, SdkErrorCode.ConnectionClosed))
      return say(
        'mcp/failed',
        `the server ${name} ended during the call, so the call may or may not have been carried out; kvfold starts the server again.`,
      )
    if (error instanceof SdkError && !(error instanceof SdkHttpError) && !hasCode(error, SdkErrorCode.NotConnected))
      return say('mcp/failed', within(error.message, outputLimit))
    // With other statuses the server refuses only this call. 401: bad credentials. 400: some servers mean an unknown session. 502 to 504: a
    // proxy whose server is away.
    if (error instanceof SdkHttpError && ![400, 401, 502, 503, 504].includes(error.status))
      return say('mcp/failed', `the server ${name} answered the call of ${tool} with HTTP ${error.status}.`)
    const reason = this.#lost(client, reasonOf(error))
    return say('mcp/failed', `the server ${name} cannot be reached (${reason}); the next call tries again.`)
  }

  /** Returns the client of the running server, after starting it if necessary. */
  async #ready(signal?: AbortSignal): Promise<Client> {
    if (this.#closed) throw new KvfoldError('mcp/unreachable', `The MCP server ${this.name} was closed.`)
    if (this.#client !== null) return this.#client
    this.#opening ??= this.#open().finally(() => {
      this.#opening = null
    })
    return unless(signal, this.#opening)
  }

  async #open(): Promise<Client> {
    const { config, version, onEvent } = this.options
    const { name, timeout, roots } = config
    const again = this.problem !== null
    this.state = 'starting'
    this.#said = ''
    const client = new Client(
      { name: 'kvfold', version },
      {
        // Undeclared capabilities cannot be used by the server: it may neither sample from the model nor ask a person.
        capabilities: roots.length === 0 ? {} : { roots: {} },
        listMaxPages: MOST_PAGES,
        listChanged: {
          tools: {
            debounceMs: 50,
            onChanged: (error, tools) => {
              if (error === null && tools !== null && client === this.#client) this.#listed(tools)
            },
          },
        },
      },
    )
    if (roots.length > 0)
      client.setRequestHandler('roots/list', () => ({
        roots: roots.map((root) => ({ uri: pathToFileURL(root).href, name: basename(root) })),
      }))
    let transport: Transport | null = null
    try {
      transport = this.#transportOf(config)
      this.#transport = transport
      const patience = { timeout: Math.max(timeout, DEFAULT_TIMEOUT) }
      await client.connect(transport, patience)
      // Without this check, the library would print to stdout that the server has no tools.
      const hasTools = client.getServerCapabilities()?.tools !== undefined
      const { tools } = hasTools ? await client.listTools(undefined, patience) : { tools: [] }
      if (this.#closed) throw new Error('it was closed')
      client.onclose = () => {
        this.#ended(client)
      }
      this.#client = client
      this.state = 'ready'
      this.problem = null
      if (again) onEvent({ server: name, kind: 'restarted', text: `The MCP server ${name} was started again.` })
      this.#listed(tools)
      return client
    } catch (error) {
      await leave(transport)
      this.state = this.#closed ? 'closed' : 'down'
      this.problem = [reasonOf(error), this.#lastWords].flat().join('; ')
      throw new KvfoldError('mcp/unreachable', `The MCP server ${name} cannot be started: ${this.problem}.`, { cause: error })
    }
  }

  #transportOf({ place }: McpServerConfig): Transport {
    if (place.kind === 'process') {
      const { command, args, env, cwd } = place
      const transport = new ProcessTransport({
        command,
        args: [...args],
        env: { ...env },
        stderr: 'pipe',
        ...(cwd === null ? {} : { cwd }),
      })
      transport.stderr?.on('data', (chunk: Buffer) => {
        this.#said = (this.#said + chunk.toString('utf8')).slice(-LAST_WORDS)
      })
      return transport
    }
    const { url, headers, credentials } = place
    const requestInit = { headers: { ...headers } }
    if (credentials === null) return new HttpTransport(url, { requestInit })
    const { clientId, clientSecret, scope, issuer } = credentials
    const authProvider = new ClientCredentialsProvider({
      clientId,
      clientSecret,
      clientName: 'kvfold',
      expectedIssuer: issuer,
      ...(scope === null ? {} : { scope }),
    })
    return new HttpTransport(url, { requestInit, authProvider })
  }

  #listed(listed: readonly Tool[]): void {
    const tools = listed.map(writtenTool)
    const before = new Map(this.tools.map((tool) => [tool.name, writeJson(tool)]))
    const added = tools.filter(({ name }) => !before.has(name))
    const changed = tools.filter((tool) => before.has(tool.name) && before.get(tool.name) !== writeJson(tool))
    const removed = this.tools.filter(({ name }) => !tools.some((tool) => tool.name === name))
    const isFirst = this.tools.length === 0
    this.tools = tools
    const said = [
      ...(added.length === 0 ? [] : [`added ${namesOf(added)}`]),
      ...(removed.length === 0 ? [] : [`removed ${namesOf(removed)}`]),
      ...(changed.length === 0 ? [] : [`changed ${namesOf(changed)}`]),
    ]
    if (said.length === 0) return
    const text = isFirst
      ? `The MCP server ${this.name} has ${tools.length} ${tools.length === 1 ? 'tool' : 'tools'}.`
      : `The MCP server ${this.name} ${said.join(', ')}.`
    this.options.onEvent({ server: this.name, kind: 'tools', text })
  }

  /** Called when the server's process has ended or the connection was closed. */
  #ended(client: Client): void {
    if (client !== this.#client) return
    this.#lost(client, ['it ended', this.#lastWords].flat().join('; '))
    if (!this.#restarts) return
    this.#restarts = false
    this.#ready().catch(() => undefined)
  }

  /** Treats the connection as lost and reports it. Other calls on the client continue. @returns the reason */
  #lost(client: Client, reason: string): string {
    if (client !== this.#client) return reason
    const { name } = this.options.config
    this.#client = null
    this.state = 'down'
    this.problem = reason
    this.options.onEvent({ server: name, kind: 'down', text: `The MCP server ${name} is down: ${reason}.` })
    if (!this.#calls.has(client)) void leave(client.transport)
    return reason
  }

  get #lastWords(): readonly string[] {
    const said = this.#said.trim().replace(/\s+/g, ' ').replace(/\.$/, '')
    return said === '' ? [] : [`its last output: ${said}`]
  }
}

const namesOf = (tools: readonly Tool[]): string => {
  const names = tools.map(({ name }) => name)
  return names.length <= 5 ? names.join(', ') : `${names.slice(0, 5).join(', ')} and ${names.length - 5} more`
}

const hasCode = (error: unknown, code: SdkErrorCode): boolean => error instanceof SdkError && error.code === code

/** Whether the server does not know our session (HTTP 404), as after its restart. Then a new session must be opened. */
const isForgotten = (error: unknown): boolean =>
  error instanceof KvfoldError && error.cause instanceof SdkHttpError && error.cause.status === 404

/** Ends the session of an HTTP server, then closes the connection. */
async function leave(transport: Transport | null | undefined): Promise<void> {
  if (transport instanceof StreamableHTTPClientTransport)
    await Promise.race([transport.terminateSession().catch(() => undefined), setTimeout(GOODBYE, null, { ref: false })])
  await transport?.close().catch(() => undefined)
}

/** Returns the reason of a failure as one clause that contains no secret. */
function reasonOf(error: unknown): string {
  if (error instanceof UnauthorizedError) return 'it does not accept the credentials (401)'
  if (error instanceof OAuthError) return `the authorization server refuses the credentials (${error.code})`
  if (error instanceof SdkHttpError) return `HTTP ${error.status}`
  const { message, cause } = error instanceof Error ? error : { message: String(error), cause: undefined }
  const inner = cause instanceof Error ? `: ${cause.message}` : ''
  return `${message}${inner}`.slice(0, LONGEST_REASON).replace(/\.$/, '')
}

const cancelled = (cause: unknown): KvfoldError => new KvfoldError('engine/cancelled', 'The call was cancelled.', { cause })

/** Returns a promise that settles as `work` does, or rejects when the signal is aborted. The work itself continues. */
function unless<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  if (signal === undefined) return work
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      reject(cancelled(signal.reason))
    }
    if (signal.aborted) stop()
    signal.addEventListener('abort', stop, { once: true })
    work.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', stop)
    })
  })
}

// Turns a tool's result into text for the conversation. Parts that are not text become a short note.

type ResultPart = CallToolResult['content'][number]

/** Returns at most `limit` characters of the result as text for the model, with a note of how much was cut. */
export function resultText({ content, structuredContent }: CallToolResult, limit: number): string {
  const parts = content.map(partText)
  const text = parts.length === 0 && structuredContent !== undefined ? writeJson(structuredContent) : parts.join('\n')
  return text === '' ? '(no output)' : within(text, limit)
}

function partText(part: ResultPart): string {
  switch (part.type) {
    case 'text':
      return part.text
    case 'image':
    case 'audio':
      return `(${part.type}, ${part.mimeType}, ${size(part.data)}: left out, only text can be shown)`
    case 'resource_link':
      return [`${part.name}: ${part.uri}`, part.description ?? []].flat().join(', ')
    case 'resource': {
      const { resource } = part
      if ('text' in resource) return `${resource.uri}:\n${resource.text}`
      return `(${resource.uri}, ${resource.mimeType ?? 'data'}, ${size(resource.blob)}: left out, only text can be shown)`
    }
  }
}

/** Returns the decoded size of base64 data as text, such as `12 bytes`. */
const size = (data: string): string => `${Math.floor((data.length * 3) / 4)} bytes`

function within(text: string, limit: number): string {
  if (text.length <= limit) return text
  // Do not cut a surrogate pair in two.
  const end = /[\uD800-\uDBFF]/.test(text[limit - 1]!) ? limit - 1 : limit
  return (
    `${text.slice(0, end)}\n[Cut here: these are the first ${end} of ${text.length} characters. The rest is kept nowhere and no search finds it; ` +
    'call the tool again for a smaller part, if it can give one.]'
  )
}
