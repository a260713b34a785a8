/** Serves the odd server over Streamable HTTP, with sessions, behind a token or its own authorization server. */
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/server'
import { randomUUID } from 'node:crypto'
import Fastify, { type FastifyRequest } from 'fastify'
import { oddMcpServer } from './odd-server.js'

export interface HttpServer {
  readonly url: string
  readonly issuer: string
  /** How many tokens were given for client credentials, and how many credentials were refused. */
  readonly granted: number
  readonly refused: number
  /** How many sessions there are now. */
  readonly sessions: number
  /** Ends all sessions, as a restart would. */
  forget(): Promise<void>
  close(): Promise<void>
}

export async function httpServer({
  token = randomUUID(),
  client,
  before,
  listed = () => null,
}: {
  readonly token?: string
  readonly client?: { readonly id: string; readonly secret: string }
  /** Awaited before each call of a tool. A call is answered with the returned status; null: the tool answers. */
  readonly before?: (tool: string) => Promise<number | null>
  /** The status with which a request for the tools is answered. Null, the default: the tools are listed. */
  readonly listed?: () => number | null
}): Promise<HttpServer> {
  const app = Fastify({ forceCloseConnections: true })
  const sessions = new Map<string, WebStandardStreamableHTTPServerTransport>()
  const counts = { granted: 0, refused: 0 }
  let issuer = ''
  app.addContentTypeParser('application/x-www-form-urlencoded', { parseAs: 'string' }, (_request, body, done) => {
    done(null, body)
  })
  app.all('/mcp', async (request, reply) => {
    if (request.headers.authorization !== `Bearer ${token}`) {
      void reply.header('www-authenticate', `Bearer resource_metadata="${issuer}/.well-known/oauth-protected-resource"`)
      return reply.code(401).send('a token is wanted')
    }
    const known = sessions.get(String(request.headers['mcp-session-id']))
    const transport = known ?? (request.headers['mcp-session-id'] === undefined ? await begun() : null)
    if (transport === null) return reply.code(404).send('no such session')
    const { method, params } = (request.body ?? {}) as { method?: string; params?: { name?: string } }
    const called = params?.name === undefined ? null : ((await before?.(params.name)) ?? null)
    const status = method === 'tools/list' ? listed() : called
    if (status !== null) return reply.code(status).send('not this call')
    return reply.send(await transport.handleRequest(webRequest(request, issuer), { parsedBody: request.body }))
  })
  app.get('/.well-known/oauth-protected-resource', () => ({ resource: `${issuer}/mcp`, authorization_servers: [issuer] }))
  app.get('/.well-known/oauth-authorization-server', () => ({
    issuer,
    authorization_endpoint: `${issuer}/authorize`,
    token_endpoint: `${issuer}/token`,
    response_types_supported: ['code'],
    grant_types_supported: ['client_credentials'],
    token_endpoint_auth_methods_supported: ['client_secret_basic'],
  }))
  app.post('/token', (request, reply) => {
    const basic = client === undefined ? null : `Basic ${btoa(`${client.id}:${client.secret}`)}`
    if (request.headers.authorization !== basic || !String(request.body).includes('grant_type=client_credentials')) {
      counts.refused++
      return reply.code(401).send({ error: 'invalid_client' })
    }
    counts.granted++
    return reply.send({ access_token: token, token_type: 'Bearer', expires_in: 3600 })
  })
  const begun = async (): Promise<WebStandardStreamableHTTPServerTransport> => {
    const transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => {
        sessions.set(id, transport)
      },
      onsessionclosed: (id) => {
        sessions.delete(id)
      },
    })
    await oddMcpServer().connect(transport)
    return transport
  }
  const forget = async () => {
    const all = [...sessions.values()]
    sessions.clear()
    await Promise.all(all.map((transport) => transport.close()))
  }
  issuer = await app.listen({ host: '127.0.0.1', port: 0 })
  return {
    url: `${issuer}/mcp`,
    issuer,
    get granted() {
      return counts.granted
    },
    get refused() {
      return counts.refused
    },
    get sessions() {
      return sessions.size
    },
    forget,
    close: async () => {
      await forget()
      await app.close()
    },
  }
}

function webRequest({ method, url, headers }: FastifyRequest, base: string): Request {
  const given = Object.entries(headers).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, String(value)] as [string, string]],
  )
  return new Request(new URL(url, base), { method, headers: given, ...(method === 'POST' ? { body: '{}' } : {}) })
}
