/** `kvfold mcp`: an MCP server with the six context tools, for agents whose model runs in `kvfold serve`. */
import { once } from 'node:events'
import type { McpServerFactory } from '@modelcontextprotocol/server'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { readKey } from '../../../fleet/engines/endpoint.js'
import { cannotListen } from '../listening.js'
import { integer } from '../options.js'
import type { Shell } from '../shell.js'

interface McpServerFlags {
  readonly url?: string
  readonly keyFile?: string
  readonly thread?: string
  readonly port?: number
}

const HERE = 'http://127.0.0.1:8080'

export function addMcp(program: Command, shell: Shell, version: string): void {
  program
    .command('mcp')
    .description(
      'let an agent fold its own conversation: the six context tools as an MCP server, over the threads of `kvfold serve`',
    )
    .option('--url <url>', `the server that the agent talks to (default: KVFOLD_URL, or ${HERE})`)
    .option('--key-file <file>', "file whose first line is the agent's API key for that server (default: KVFOLD_API_KEY)")
    .option('--thread <id>', 'the conversation (default: KVFOLD_THREAD, or the one that this key used last)')
    .option(
      '-p, --port <number>',
      'Streamable HTTP at http://127.0.0.1:<port>/mcp instead of stdio, 0 for any port',
      integer(0, 65_535),
    )
    .action((flags: McpServerFlags) => mcp(flags, shell, version))
}

async function mcp(flags: McpServerFlags, shell: Shell, version: string): Promise<void> {
  const { KVFOLD_URL, KVFOLD_API_KEY, KVFOLD_THREAD } = process.env
  const { interrupt } = shell
  const url = flags.url ?? KVFOLD_URL ?? HERE
  if (!/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : ''))
    throw new KvfoldError('cli/bad-usage', `--url ${url} is not the URL of a server, such as ${HERE}.`)
  const key = flags.keyFile !== undefined || KVFOLD_API_KEY !== undefined ? readKey(keySource(flags)) : null
  const { contextServer } = await import('../../mcp/context-server.js')
  const factory = () => contextServer({ url, key, thread: flags.thread ?? KVFOLD_THREAD ?? null, version })
  if (flags.port !== undefined) {
    await overHttp(factory, flags.port, shell)
    return
  }
  const { serveStdio } = await import('@modelcontextprotocol/server/stdio')
  const connection = serveStdio(factory)
  // The client ends this MCP server by closing its stdin.
  await Promise.race([once(shell.input, 'close'), once(interrupt.signal, 'abort')])
  await connection.close()
  interrupt.renew()
}

const keySource = ({ keyFile }: McpServerFlags) => (keyFile === undefined ? { variable: 'KVFOLD_API_KEY' } : { file: keyFile })

/** Serves MCP over HTTP. Listens only on this machine, and refuses requests from other web sites. */
async function overHttp(factory: McpServerFactory, port: number, { out, interrupt }: Shell): Promise<void> {
  const [{ default: fastify }, mcp] = await Promise.all([import('fastify'), import('@modelcontextprotocol/server')])
  const { createMcpHandler, hostHeaderValidationResponse, originValidationResponse } = mcp
  const host = '127.0.0.1'
  const handler = createMcpHandler(factory)
  const app = fastify({ forceCloseConnections: true })
  app.all('/mcp', async ({ method, url, headers, body }, reply) => {
    const given = Object.entries(headers).flatMap(([name, value]): [string, string][] =>
      value === undefined ? [] : [[name, String(value)]],
    )
    const hasBody = body !== undefined && body !== null
    const request = new Request(new URL(url, `http://${headers.host ?? 'localhost'}`), {
      method,
      headers: given,
      ...(hasBody ? { body: JSON.stringify(body) } : {}),
    })
    const refused =
      hostHeaderValidationResponse(request, mcp.localhostAllowedHostnames()) ??
      originValidationResponse(request, mcp.localhostAllowedOrigins())
    return reply.send(refused ?? (await handler.fetch(request, hasBody ? { parsedBody: body } : {})))
  })
  try {
    const where = await app.listen({ host, port }).catch((error: unknown) => {
      throw cannotListen(`${host}:${port}`, error)
    })
    out.print(`The context tools are at ${where}/mcp`)
    await once(interrupt.signal, 'abort')
  } finally {
    await app.close()
    await handler.close()
  }
  interrupt.renew()
}
