/**
 * Builds the whole server: routes, API keys, the routes that report on it (`/health`, `/metrics`, `/kvfold/status`), the dashboard and the
 * shutdown.
 */
import { readFile } from 'node:fs/promises'
import { extname } from 'node:path'
import cors from '@fastify/cors'
import swagger from '@fastify/swagger'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { KvfoldError } from '../core/errors.js'
import type { Sampling } from '../engine/engine.js'
import type { UnsupportedParts } from './ask.js'
import type { ThreadService } from './service.js'
import { addMessages } from './dialects/anthropic/messages.js'
import { addLlamaCompletions } from './dialects/llama-server/completion.js'
import { addLora } from './dialects/llama-server/lora.js'
import { addPage } from './dialects/llama-server/page.js'
import { addProps, addTokens } from './dialects/llama-server/props.js'
import { addOllama } from './dialects/ollama/ollama.js'
import { addChat } from './dialects/openai/chat.js'
import { addCompletions } from './dialects/openai/completions.js'
import { addClassify, addEmbeddings, addRerank, addScore } from './dialects/side-models.js'
import { addModels } from './dialects/openai/models.js'
import { addResponses } from './dialects/openai/responses.js'
import { RequestRun, Running } from './request-lifecycle.js'
import { fail, type HttpOptions, newHttp } from './http.js'
import { type ApiKey, keyOf, KeyRing, RATE_HEADERS, type RateLimit, RateLimits, refuseCrossSite, refuseRebound } from './keys.js'
import { Metrics } from './metrics.js'
import { ChangeStreams } from './routes/changes.js'
import { ADMIN, ANSWER, type App, described, type PullModel } from './routes/route.js'
import { Replays } from './replays.js'
import { problemOf, RETRY_AFTER } from './problem.js'
import { addChanges, addThreads } from './routes/threads.js'
import type { ModelStatus, ServiceStatus } from './threads/status.js'

export interface ServerOptions extends HttpOptions {
  readonly service: ThreadService
  readonly version: string
  /** The accepted API keys. Default: none; every request then belongs to the tenant `public`. */
  readonly keys?: readonly ApiKey[]
  /** The rate limit of keys that have none of their own. Without keys: one limit for all requests together. Default: none. */
  readonly rateLimit?: RateLimit
  /** Returns milliseconds, for the rate limits. Default: the process's clock. */
  readonly clock?: () => number
  /** Origins whose web pages may send requests (CORS); `*` for all. Default: none. */
  readonly corsOrigins?: readonly string[]
  /** Without keys and on a loopback address: accepted host names besides localhost; `*` for all. Default: none. */
  readonly allowedHosts?: readonly string[]
  /** Sampling settings for requests that leave them out; they override the model file's settings. Default: none. */
  readonly sampling?: Sampling
  /**
   * What happens to message parts that are not text: `refuse` (default) or a placeholder. In tool results they always become a placeholder.
   */
  readonly unsupportedParts?: UnsupportedParts
  /** Downloads a model from the hub for `/api/pull` of Ollama's API. Default: refused. */
  readonly pull?: PullModel
}

export type Address = { readonly host: string; readonly port: number } | { readonly path: string }

const CONNECTIONS = 2048

export class Server {
  readonly app: App
  readonly #service: ThreadService
  readonly #running = new Running()
  #closed: Promise<void> | null = null

  private constructor(app: App, service: ThreadService) {
    this.app = app
    this.#service = service
  }

  static async create(options: ServerOptions): Promise<Server> {
    const { service } = options
    const app = newHttp(options)
    const server = new Server(app, service)
    await server.#build(options)
    await app.ready()
    return server
  }

  /** Starts to listen; resolves to the URL, or to the socket's path. */
  async listen(address: Address): Promise<string> {
    this.app.server.maxConnections = CONNECTIONS
    // The caller reports the address itself, so Fastify's log line about it is suppressed.
    const { log } = this.app
    const { level } = log
    if (level === 'info') log.level = 'warn'
    try {
      return await this.app.listen(address)
    } finally {
      log.level = level
    }
  }

  /** Whether the server is shutting down; `/health` reports it. */
  get closing(): boolean {
    return this.#running.closing
  }

  /**
   * Accepts no more requests and waits up to `graceMs` for the running ones. Then cancels the others, whose streams end with an error, and
   * unloads the models. Calling it again does nothing more.
   */
  close(graceMs = 0): Promise<void> {
    return (this.#closed ??= this.#close(graceMs))
  }

  async #close(graceMs: number): Promise<void> {
    await this.#running.close(graceMs)
    await this.#service.close(0)
    await this.app.close()
  }

  async #build({
    service,
    version,
    keys = [],
    corsOrigins = [],
    allowedHosts = [],
    sampling = {},
    unsupportedParts = 'refuse',
    rateLimit,
    clock,
    pull,
  }: ServerOptions): Promise<void> {
    const { app } = this
    const running = this.#running
    const metrics = new Metrics(service)
    const ring = new KeyRing(keys)
    const replays = new Replays()
    const limits = new RateLimits(keys, rateLimit, clock)
    const ports = {
      service,
      sampling,
      fingerprint: `kvfold-${version}`,
      unsupportedParts,
      pull: pull ?? null,
      refuseGuests: (tenant: string, what: string) => {
        if (ring.locked && tenant !== ADMIN)
          throw new KvfoldError('server/forbidden', `Only the key named ${ADMIN} may ${what}: it concerns all keys.`)
      },
      exchange: (request: FastifyRequest, reply: FastifyReply) =>
        new RequestRun(request, reply, { running, metrics, limits, replays }),
    }
    const streams = new ChangeStreams(running)
    const allowed = allowedMethods(app)
    await app.register(swagger, { openapi: document(version, ring.locked) })
    app.addHook('onRequest', (request, reply, done) => {
      // OpenAI's clients read the id in the first header, Anthropic's in the second.
      reply.headers({ 'x-request-id': request.id, 'request-id': request.id })
      done()
    })
    if (corsOrigins.length > 0)
      await app.register(cors, {
        origin: corsOrigins.includes('*') ? '*' : [...corsOrigins],
        methods: ['GET', 'POST', 'PUT', 'DELETE'],
        exposedHeaders: ['x-request-id', 'request-id', 'retry-after', 'x-should-retry', ...RATE_HEADERS],
      })
    app.decorateRequest('tenant', '')
    app.decorateRequest('figures', null)
    app.decorateRequest('refused', null)
    app.addHook('onRequest', (request, _reply, done) => {
      if (!ring.locked) {
        refuseRebound(request, allowedHosts)
        refuseCrossSite(request, corsOrigins)
      }
      if (request.is404 || request.routeOptions.config.open === true) {
        done()
        return
      }
      const tenant = ring.tenantOf(keyOf(request.headers))
      if (tenant === null)
        throw new KvfoldError('server/unauthorized', 'The API key is missing or unknown; send authorization: Bearer KEY.')
      request.tenant = tenant
      running.refuseClosing()
      done()
    })
    app.addHook('onResponse', (request, reply, done) => {
      metrics.request(request.method, request.routeOptions.url ?? 'none', reply.statusCode, reply.elapsedTime / 1000)
      done()
    })
    app.setErrorHandler((error, request, reply) => {
      fail(request, reply, problemOf(error), error)
    })
    app.setNotFoundHandler((request, reply) => {
      const path = request.url.split('?')[0] ?? ''
      const methods = allowed.get(path)
      if (methods !== undefined) {
        reply.header('allow', methods.join(', '))
        throw new KvfoldError('server/method-not-allowed', `${path} takes ${methods.join(', ')}, not ${request.method}.`)
      }
      throw new KvfoldError('server/not-found', 'This path does not exist; /openapi.json lists all paths.')
    })
    addChat(app, ports)
    addCompletions(app, ports)
    addResponses(app, ports)
    addMessages(app, ports)
    addEmbeddings(app, ports)
    addRerank(app, ports)
    addScore(app, ports)
    addClassify(app)
    addModels(app, ports, streams)
    addTokens(app, ports)
    addLlamaCompletions(app, ports)
    addProps(app, ports)
    addLora(app, { service, locked: ring.locked })
    addPage(app, replays)
    addOllama(app, ports, version)
    addThreads(app, ports)
    addChanges(app, ports, streams)
    addHealth(app, { service, metrics, running, locked: ring.locked, version })
    addDashboard(app)
  }
}

/** Returns the HTTP methods of each path without parameters. The map fills as routes are added. */
function allowedMethods(app: App): ReadonlyMap<string, readonly string[]> {
  const methods = new Map<string, string[]>()
  app.addHook('onRoute', ({ url, method }) => {
    const all = methods.get(url) ?? []
    methods.set(url, [...all, ...[method].flat()])
  })
  return methods
}

function document(version: string, locked: boolean) {
  return {
    openapi: '3.1.0',
    info: {
      title: 'kvfold',
      version,
      description:
        'Chat, completion and message routes in the dialects of OpenAI, Anthropic, llama-server and Ollama, and routes that fold.',
    },
    ...(locked
      ? {
          components: { securitySchemes: { key: { type: 'http' as const, scheme: 'bearer' } } },
          security: [{ key: [] }],
        }
      : {}),
  }
}

/** Whether the model is computed by other servers, and none of them is up. */
const isWithoutEngines = ({ loaded }: ModelStatus): boolean =>
  loaded?.engines != null && loaded.engines.every(({ state }) => state !== 'up')

// Routes that report on the server: `/health`, `/metrics`, `/kvfold/status`, `/openapi.json`.

interface HealthPorts {
  readonly service: ThreadService
  readonly metrics: Metrics
  readonly running: Running
  /** Whether requests need an API key. */
  readonly locked: boolean
  readonly version: string
}

const STORE_FAULTS: Readonly<Record<NonNullable<ServiceStatus['storeFault']>, string>> = {
  away: 'The database that keeps the conversations does not answer.',
  full: 'The store has no room for conversations; make room on its disk.',
  gone: 'The store of the conversations is no longer at its path; put it back.',
  failed: 'The server cannot write conversations to the store; /kvfold/status says why.',
}

function addHealth(app: App, { service, metrics, running, locked, version }: HealthPorts): void {
  const refuseOthers = (tenant: string) => {
    if (locked && tenant !== ADMIN)
      throw new KvfoldError('server/forbidden', `These figures cover all keys; only the key named ${ADMIN} may see them.`)
  }
  const health = {
    config: { open: true },
    schema: { summary: 'ok, loading, unavailable or closing', tags: ['server'], response: { 200: ANSWER, 503: ANSWER } },
  }
  // llama-server also has the second path.
  for (const path of ['/health', '/v1/health'])
    app.get(path, health, (_request, reply) => {
      const { models, closing, damaged, storeFault } = service.status()
      const loading = models.length > 0 && models.every(({ state }) => state === 'loading')
      // This route needs no key, so it does not tell addresses of engines and of the database; `/kvfold/status` does.
      const problems = [
        ...(storeFault === null ? [] : [STORE_FAULTS[storeFault]]),
        ...(models.length > 0 && models.every(isWithoutEngines) ? ['No engine takes requests.'] : []),
      ]
      const state = loading ? 'loading' : problems.length > 0 ? 'unavailable' : 'ok'
      const status = closing || running.closing ? 'closing' : state
      if (status === 'unavailable') reply.header('retry-after', RETRY_AFTER)
      return reply.code(status === 'ok' ? 200 : 503).send({
        status,
        ...(problems.length > 0 ? { problems } : {}),
        ...(damaged.threads + damaged.responses > 0 ? { damaged } : {}),
      })
    })
  app.get('/version', { config: { open: true }, schema: { summary: 'Version (vLLM)', tags: ['server'] } }, () => ({ version }))
  app.get(
    '/load',
    { config: { open: true }, schema: { summary: 'Requests that are being answered (vLLM)', tags: ['server'] } },
    () => ({
      server_load: service.status().running,
    }),
  )
  app.get(
    '/metrics',
    { schema: { summary: 'Figures for Prometheus', tags: ['server'], produces: ['text/plain'] } },
    async (request, reply) => {
      refuseOthers(request.tenant)
      return reply.type(metrics.contentType).send(await metrics.text())
    },
  )
  app.get('/kvfold/status', { schema: described('Models, queue and cache', 'server') }, (request) => {
    refuseOthers(request.tenant)
    return service.status()
  })
  app.get('/openapi.json', { config: { open: true }, schema: { hide: true } }, () => app.swagger())
}

// Serves the dashboard's built files, and no other files, at `/`.

/** Vite's output folder. The relative path holds from `src/runtime/server` and from `dist/runtime/server`. */
const BUILT = new URL('../../../dist/dashboard/', import.meta.url)

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
}

/** Security headers: the page may load from and send to this server only, and no other page may frame it. */
const SAFE = {
  'content-security-policy': "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
}

const NOT_BUILT = 'The dashboard is not built. Run `npm run build` in the folder of kvfold, then load this page again.\n'

/**
 * Adds the dashboard at `/`. Its files need no key; the page asks for one and shows no data without it. @param folder Vite's output folder;
 * only tests set it
 */
export function addDashboard(app: App, folder: URL = BUILT): void {
  const open = { config: { open: true }, schema: { hide: true } }

  app.get('/', open, async (_request, reply) => {
    const page = await contentOf(new URL('index.html', folder))
    if (page === null) return reply.code(404).headers(SAFE).type('text/plain; charset=utf-8').send(NOT_BUILT)
    return sent(reply, 'index.html', page, 'no-cache')
  })

  for (const path of ['/dashboard', '/dashboard/']) app.get(path, open, (_request, reply) => reply.redirect('/'))

  app.get<{ Params: { file: string } }>('/dashboard/assets/:file', open, async ({ params: { file } }, reply) => {
    // Vite puts a content hash into file names, so files can be cached forever. Only plain names are allowed, so no request leaves the
    // folder.
    const content = /^\w[\w-]*\.[a-z]+$/.test(file) ? await contentOf(new URL(`assets/${file}`, folder)) : null
    if (content === null) throw new KvfoldError('server/not-found', 'The dashboard has no such file; load the page again.')
    return sent(reply, file, content, 'public, max-age=31536000, immutable')
  })
}

function sent(reply: FastifyReply, file: string, content: Buffer, caching: string): FastifyReply {
  const type = TYPES[extname(file)] ?? 'application/octet-stream'
  return reply
    .headers({ ...SAFE, 'cache-control': caching })
    .type(type)
    .send(content)
}

/** Returns the content of a file; null when there is no such file. */
async function contentOf(file: URL): Promise<Buffer | null> {
  try {
    return await readFile(file)
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'EISDIR')) return null
    throw error
  }
}
