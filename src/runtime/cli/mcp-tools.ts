/** MCP servers on the command line: their options, starting and stopping them, and a model's session with their tools. */
import { KvfoldError } from '../core/errors.js'
import { definedFields } from '../core/json.js'
import { packageFacts } from '../core/package.js'
import { dirname } from 'node:path'
import { Option, type Command } from 'commander'
import { MemToolSession, type MemToolState } from '../agents/memtool.js'
import { type MemToolMode, memToolModes } from '../agents/memtool-asides.js'
import { systemPrompts } from '../agents/sculptor.js'
import { Session, type SessionOptions } from '../agents/session.js'
import { contextToolsFor } from '../context/short-tools.js'
import { contextTools } from '../context/tools.js'
import { goodContext } from '../engine/engine.js'
import type { LlamaEngine } from '../engine/llama.js'
import { plural } from '../figures/numbers.js'
import { type McpServerConfig, parseMcpConfig } from '../mcp/config.js'
import type { McpHost } from '../mcp/host.js'
import { REMOVE_TOOLS, SEARCH_TOOLS } from '../tools/management.js'
import { LOADED_SHARE, ToolMemory } from '../tools/tool-memory.js'
import { collect, readText } from './options.js'
import type { Shell } from './shell.js'
import { printable } from './terminal.js'

export interface McpFlags {
  readonly mcpConfig?: readonly string[]
  readonly toolMemory: 'auto' | 'off' | MemToolMode
}

/** The tools of the MCP servers. `way`: how the model gets them. With `off` it always sees all of them; the other modes let it search. */
export interface McpTools {
  readonly host: McpHost
  readonly way: 'off' | MemToolMode
  /** Returns what happened to the servers since the last call, one line per event. */
  readonly news: () => readonly string[]
  readonly close: () => Promise<void>
}

/** If the tool definitions take more than this share of the context, they are not all shown. The model then searches them. */
const SHOWN_SHARE = 1 / 8
/** If there are more tools than this, they are not all shown. The model then searches them. */
const MOST_SHOWN = 128

export const addMcpConfig = (command: Command, whose = 'MCP servers whose tools the model may call'): Command =>
  command.option('--mcp-config <file>', `${whose}, as {"mcpServers": {...}}; may be given several times`, collect)

export function addMcpOptions(command: Command): Command {
  return addMcpConfig(command).addOption(
    new Option(
      '--tool-memory <way>',
      "how the model sees the servers' tools. off shows all of them; the other modes let the model search. auto means off if the tools take at most an eighth of the context, else hybrid",
    )
      .choices(['auto', 'off', ...memToolModes])
      .default('auto'),
  )
}

/**
 * Reads the configuration files of MCP servers. Call it before the model is loaded, so that errors come early. @throws KvfoldError
 * cli/bad-usage
 */
export const mcpServersOf = ({ mcpConfig = [] }: Pick<McpFlags, 'mcpConfig'>): readonly McpServerConfig[] =>
  mcpConfig.flatMap((file) =>
    parseMcpConfig(readText(file, '--mcp-config'), { file, folder: dirname(file), environment: process.env }),
  )

/** Starts the MCP servers, and reports events through `tell`. @throws KvfoldError engine/cancelled */
export async function openMcpHost(
  servers: readonly McpServerConfig[],
  tell: (line: string) => void,
  signal: AbortSignal,
): Promise<McpHost> {
  const { McpHost } = await import('../mcp/host.js')
  let isOpen = false
  const host = await McpHost.open({
    servers,
    version: packageFacts().version,
    reserved: [...contextTools.map(({ definition }) => definition.name), SEARCH_TOOLS, REMOVE_TOOLS],
    onEvent: ({ kind, text }) => {
      // While the servers start, all their tools are new. So only failures are reported then.
      if (isOpen || kind === 'down') tell(printable(text))
    },
    signal,
  })
  isOpen = true
  return host
}

/** Starts the MCP servers. Returns null when there are none. @throws KvfoldError engine/cancelled */
export async function openMcpTools(
  servers: readonly McpServerConfig[],
  { toolMemory }: McpFlags,
  engine: LlamaEngine,
  { interrupt }: Shell,
): Promise<McpTools | null> {
  if (servers.length === 0) return null
  let news: string[] = []
  const host = await openMcpHost(servers, (line) => news.push(line), interrupt.signal)
  return {
    host,
    way: toolMemory === 'auto' ? wayFor(host, engine) : toolMemory,
    news: () => {
      const lines = news
      news = []
      return lines
    },
    close: () => host.close(),
  }
}

/** Returns one line about the tools: how many there are, and how the model gets them. */
export const standingOf = ({ host, way }: McpTools): string =>
  `${toolsOf(host)}; ${way === 'off' ? 'all are shown' : `the model searches them (${way})`}.`

export function toolsOf({ tools, servers }: McpHost): string {
  const up = servers.filter(({ state }) => state === 'ready').length
  return `${plural(tools.length, 'tool')} of ${plural(up, 'MCP server')}`
}

/**
 * Makes a session with the servers' tools, and with context tools if `options` ask for them. The first step need not call a tool, unless
 * `options` say so.
 * @param earlier the tool memory to continue with, for a session that continues a conversation. Default: no tools loaded
 * @throws KvfoldError cli/bad-usage if the first step must call a tool and the model searches the tools
 */
export function sessionWith(
  { host, way }: McpTools,
  options: SessionOptions,
  earlier: Pick<MemToolState, 'memory' | 'asides'> = { memory: new ToolMemory({ catalogue: host.catalogue }).state, asides: 0 },
): Session | MemToolSession {
  const { contextTools: own } = options
  const system = options.system ?? (own === true ? systemPrompts.general : undefined)
  const execute = host.execute.bind(host)
  if (way === 'off') {
    const clientTools = host.tools.map((definition) => ({
      definition,
      execute: (args: Readonly<Record<string, unknown>>, signal?: AbortSignal) =>
        execute({ name: definition.name, arguments: args }, signal),
    }))
    return new Session({ firstStep: 'auto', ...options, ...definedFields({ system }), clientTools })
  }
  if (options.firstStep === 'required')
    throw new KvfoldError(
      'cli/bad-usage',
      "--first-step required needs --tool-memory off, because the model searches the servers' tools here; add that, or leave --first-step out.",
    )
  const { engine, id, generation, conversation, maxCalls } = options
  const { catalogue } = host
  return new MemToolSession({
    engine,
    id,
    catalogue,
    execute,
    mode: way,
    limits: { tokens: Math.floor(goodContext(engine.info) * LOADED_SHARE) },
    contextTools:
      own === true ? contextToolsFor(engine.info.base ?? engine.info.model, options.toolTexts) : own === false ? [] : own,
    ...definedFields({ purpose: system, generation, maxCalls }),
    ...(conversation === undefined ? {} : { state: { ...earlier, conversation: { ...conversation, id } } }),
  })
}

function wayFor({ tools }: McpHost, engine: LlamaEngine): 'off' | MemToolMode {
  if (tools.length > MOST_SHOWN) return 'hybrid'
  const message = [{ role: 'user', content: '' }] as const
  const taken = engine.count(message, tools) - engine.count(message, [])
  return taken <= goodContext(engine.info) * SHOWN_SHARE ? 'off' : 'hybrid'
}
