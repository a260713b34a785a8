/** An MCP server that answers by hand: its one tool says what stood in the message that called it. As a program it speaks over stdio. */
import Fastify from 'fastify'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const RAW = fileURLToPath(import.meta.url)

/** How it is started as a process. */
export const rawServer = () => ({ command: process.execPath, args: ['--import', 'tsx', RAW] })

/** Undefined for what wants no answer. */
function answerTo(text: string): object | undefined {
  const { id, method, params } = JSON.parse(text) as { id?: number; method: string; params?: { protocolVersion?: string } }
  if (id === undefined) return undefined
  const result = {
    initialize: {
      protocolVersion: params?.protocolVersion,
      capabilities: { tools: {} },
      serverInfo: { name: 'raw', version: '1' },
    },
    'tools/list': { tools: [{ name: 'raw', inputSchema: { type: 'object' } }] },
    'tools/call': { content: [{ type: 'text', text }] },
  }[method]
  return { jsonrpc: '2.0', id, ...(result === undefined ? { error: { code: -32601, message: method } } : { result }) }
}

/** The same over Streamable HTTP, without sessions. */
export async function rawHttpServer(): Promise<{ readonly url: string; close(): Promise<void> }> {
  const app = Fastify({ forceCloseConnections: true })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'string' }, (_request, body, done) => {
    done(null, body)
  })
  app.post('/mcp', (request, reply) => {
    const answer = answerTo(request.body as string)
    return reply.code(answer === undefined ? 202 : 200).send(answer)
  })
  app.get('/mcp', (_request, reply) => reply.code(405).send())
  const url = `${await app.listen({ host: '127.0.0.1', port: 0 })}/mcp`
  return { url, close: () => app.close() }
}

if (process.argv[1] === RAW)
  for await (const line of createInterface({ input: process.stdin })) {
    const answer = answerTo(line)
    if (answer !== undefined) process.stdout.write(`${JSON.stringify(answer)}\n`)
  }
