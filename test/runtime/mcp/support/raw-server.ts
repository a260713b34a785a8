/**
 * An MCP server that writes its JSON by hand. Its tool `raw` answers with the message that called it, its tool `data` with data, or with an
 * error of 5 MB when its argument `fails` is given. Run as a program, it uses stdio.
 */
import Fastify from 'fastify'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const RAW = fileURLToPath(import.meta.url)

/** Returns the command that starts it as a process. */
export const rawServer = () => ({ command: process.execPath, args: ['--import', 'tsx', RAW] })

/** JSON that JavaScript would write differently: the schema of both tools, and the answer of `data`. */
export const RAW_SCHEMA =
  '{"type":"object","properties":{"zeta":{"type":"integer","maximum":9007199254740993},"7":{"type":"number","default":1.0,"enum":[1.50,1e400]},"3":{}}}'
export const RAW_DATA = '{"zeta":[9007199254740993,1e400,1.50],"id":12345678901234567890,"7":{"b":1.0,"3":"x"}}'

const CAPABILITIES = '{"tools":{}}'

/** Returns the answer as JSON in one line, or undefined for a notification. */
function answerTo(text: string, capabilities = CAPABILITIES): string | undefined {
  const { id, method, params } = JSON.parse(text) as {
    id?: number
    method: string
    params?: { protocolVersion?: string; cursor?: string; name?: string; arguments?: { fails?: boolean } }
  }
  if (id === undefined) return undefined
  if (params?.arguments?.fails === true)
    return `{"jsonrpc":"2.0","id":${id},"error":{"code":-32603,"message":"${'0123456789'.repeat(2 ** 19)}"}}`
  const tool = (name: string) => `{"name":"${name}","inputSchema":${RAW_SCHEMA},"_meta":{"own":1}}`
  const said = (content: unknown) => `{"content":${JSON.stringify(content)}}`
  const result = {
    initialize: `{"protocolVersion":"${params?.protocolVersion}","capabilities":${capabilities},"serverInfo":{"name":"raw","version":"1"}}`,
    'tools/list': params?.cursor === undefined ? `{"tools":[${tool('raw')}],"nextCursor":"2"}` : `{"tools":[${tool('data')}]}`,
    'tools/call': params?.name === 'data' ? `{"content":[],"structuredContent":${RAW_DATA}}` : said([{ type: 'text', text }]),
  }[method]
  const what = result === undefined ? `"error":{"code":-32601,"message":"${method}"}` : `"result":${result}`
  return `{"jsonrpc":"2.0","id":${id},${what}}`
}

/** Serves the same over Streamable HTTP, without sessions. `events`: answers come as server-sent events. */
export async function rawHttpServer(
  events: boolean,
  capabilities = CAPABILITIES,
): Promise<{ readonly url: string; close(): Promise<void> }> {
  const app = Fastify({ forceCloseConnections: true })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'string' }, (_request, body, done) => {
    done(null, body)
  })
  app.post('/mcp', (request, reply) => {
    const answer = answerTo(request.body as string, capabilities)
    if (answer === undefined) return reply.code(202).send()
    if (!events) return reply.type('application/json').send(answer)
    // A message may be split over several lines of an event.
    const lines = answer.replace(',', ',\n').split('\n')
    return reply
      .type('text/event-stream')
      .send(`: hello\nid: 1\nevent: message\n${lines.map((line) => `data: ${line}\n`).join('')}\n`)
  })
  app.get('/mcp', (_request, reply) => reply.code(405).send())
  const url = `${await app.listen({ host: '127.0.0.1', port: 0 })}/mcp`
  return { url, close: () => app.close() }
}

if (process.argv[1] === RAW)
  for await (const line of createInterface({ input: process.stdin })) {
    const answer = answerTo(line)
    if (answer !== undefined) process.stdout.write(`${answer}\n`)
  }
