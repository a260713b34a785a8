/** Starts hosts for tests, with MCP servers from a configuration, and records their events. */
import { mkdtempSync } from 'node:fs'
import { realpath } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { parseMcpConfig } from '../../../../src/runtime/mcp/config.js'
import type { McpEvent } from '../../../../src/runtime/mcp/connection.js'
import { McpHost, type McpHostOptions } from '../../../../src/runtime/mcp/host.js'

const MODULES = join(import.meta.dirname, '../../../../node_modules/@modelcontextprotocol')

/** Returns the reference servers from npm, with a folder to work in. */
export function realServers(folder: string) {
  const program = (name: string, ...args: string[]) => ({
    command: process.execPath,
    args: [join(MODULES, `server-${name}/dist/index.js`), ...args],
  })
  return {
    everything: program('everything', 'stdio'),
    files: { ...program('filesystem'), roots: [folder] },
    memory: { ...program('memory'), env: { MEMORY_FILE_PATH: join(folder, 'memory.json') } },
    thinking: program('sequential-thinking'),
  }
}

/** Makes a folder whose path has no symbolic links, because the filesystem server compares paths. */
export const someFolder = (): Promise<string> => realpath(mkdtempSync(join(tmpdir(), 'kvfold-mcp-')))

export interface Hosting {
  readonly host: McpHost
  readonly events: readonly McpEvent[]
  /** Resolves with the first event of that kind, even if it came before the call. */
  readonly happened: (kind: McpEvent['kind'], server?: string) => Promise<McpEvent>
}

/** Opens a host of these servers; it is closed when the test ends. */
export async function hosting(
  mcpServers: Readonly<Record<string, object>>,
  reserved: readonly string[] = [],
  options: Pick<McpHostOptions, 'retryMs'> = {},
): Promise<Hosting> {
  const servers = parseMcpConfig(JSON.stringify({ mcpServers }), { file: 'test', folder: tmpdir(), environment: {} })
  const events: McpEvent[] = []
  const waiting = new Set<() => void>()
  const host = await McpHost.open({
    servers,
    version: 'test',
    reserved,
    ...options,
    onEvent: (event) => {
      events.push(event)
      for (const look of waiting) look()
    },
  })
  onTestFinished(() => host.close())
  // Events of the start are not part of the test.
  const before = events.splice(0)
  const happened = (kind: McpEvent['kind'], server?: string) =>
    new Promise<McpEvent>((resolve) => {
      const look = () => {
        const found = events.find((event) => event.kind === kind && (server === undefined || event.server === server))
        if (found === undefined) return
        waiting.delete(look)
        resolve(found)
      }
      waiting.add(look)
      look()
    })
  events.push(...before.filter(({ kind }) => kind === 'down'))
  return { host, events, happened }
}
