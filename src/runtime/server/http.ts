/** Sets up HTTP for all routes: limits on connections, headers and bodies, request ids, and errors that occur before a route. */
import { randomUUID } from 'node:crypto'
import { type IncomingMessage, STATUS_CODES } from 'node:http'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import { KvfoldError } from '../core/errors.js'
import { writeJson } from '../core/written-json.js'
import { inTurns } from '../core/turns.js'
import { anthropicError } from './dialects/anthropic/messages.js'
import { ollamaError } from './dialects/ollama/ollama.js'
import { openAiError } from './dialects/openai/wire.js'
import { readJsonBody, schemaError } from './json-body.js'
import { isLong, writtenInSteps } from './json-slices.js'
import type { App } from './routes/route.js'
import { PLAIN, type Problem, problemOf } from './problem.js'
import { errorForLogs, type LogFormat, logRequest, logStream, RequestLog } from './request-log.js'

export type LogLevel = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'fatal' | 'silent'

export interface HttpOptions {
  /** The most bytes of a body. Default 16 MiB. */
  readonly bodyLimit?: number
  /** Certificate and key as PEM texts. Default: no TLS. */
  readonly tls?: { readonly cert: string; readonly key: string }
  /** The lowest level that is logged. Default `info`. Logs never contain text of requests or answers. */
  readonly logLevel?: LogLevel
  /** `json`: one object per line; `text`: lines for people. Default `json`. */
  readonly logFormat?: LogFormat
  /** Receives each log line. Default: writes it to stderr. */
  readonly log?: (line: string) => void
}

const BODY_LIMIT = 16 * 2 ** 20
/** The most bytes of all headers together, and the most headers. */
const HEADER_BYTES = 16 * 1024
const HEADERS = 128
/** Milliseconds within which all headers, and the whole request, must have arrived. Answers have no time limit. */
const HEADERS_TIMEOUT = 20_000
const REQUEST_TIMEOUT = 120_000

/** Paths that also work without `/v1`, as in llama-server. `/completions` is missing here: without `/v1` it is a route of its own. */
const UNVERSIONED = /^\/(chat\/completions|models|embeddings|rerank|reranking|responses|messages)(?=[/?]|$)/

/** Makes the HTTP server, without any route. */
export function newHttp({ tls, logLevel = 'info', logFormat, log, bodyLimit = BODY_LIMIT }: HttpOptions): App {
  const http = { maxHeaderSize: HEADER_BYTES, headersTimeout: HEADERS_TIMEOUT }
  const app = fastify({
    ...(tls === undefined ? { http } : { https: { ...http, ...tls } }),
    bodyLimit,
    requestTimeout: REQUEST_TIMEOUT,
    forceCloseConnections: true,
    return503OnClosing: false,
    genReqId: requestId,
    rewriteUrl: ({ url = '/' }) => (UNVERSIONED.test(url) ? `/v1${url}` : url),
    routerOptions: { maxParamLength: 256 },
    ajv: {
      customOptions: { coerceTypes: false, removeAdditional: false, useDefaults: false, strict: false, strictNumbers: true },
    },
    schemaErrorFormatter: schemaError,
    frameworkErrors: (error, request, reply) => {
      fail(request, reply, problemOf(error), error)
      logRequest(request, reply.statusCode, reply.elapsedTime)
    },
    clientErrorHandler: ({ code }, socket) => {
      const status = code === 'HPE_HEADER_OVERFLOW' ? 431 : code === 'ERR_HTTP_REQUEST_TIMEOUT' ? 408 : 400
      const body = JSON.stringify(openAiError({ ...MALFORMED, status }))
      if (socket.writable && code !== 'ECONNRESET')
        socket.end(
          `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
        )
      else socket.destroy()
    },
    logController: new RequestLog(),
    logger:
      logLevel === 'silent'
        ? false
        : {
            level: logLevel,
            stream: logStream(log, logFormat),
            base: null,
            serializers: { err: errorForLogs },
          },
  })
    .withTypeProvider<TypeBoxTypeProvider>()
    .setSerializerCompiler(() => (value) => writeJson(value)) as unknown as App
  takeOnlyJson(app)
  writeLongInTurns(app)
  return app
}

/** Adds a hook that writes long JSON answers in pieces, with yields to the event loop in between. */
function writeLongInTurns(app: App): void {
  app.addHook('preSerialization', (_request, reply, payload, done) => {
    if (!isLong(payload)) {
      done(null, payload)
      return
    }
    inTurns(writtenInSteps(payload)).then((text) => {
      reply.serializer(() => text as unknown as string)
      done(null, payload)
    }, done)
  })
}

const MALFORMED: Problem = {
  ...PLAIN,
  status: 400,
  code: 'server/bad-request',
  message: `The request is not well-formed HTTP, arrived too slowly, or has headers of more than ${HEADER_BYTES} bytes.`,
}

/** Returns the id for the request: the client's `x-request-id`, so that clients find their requests in our logs, or else a new one. */
function requestId({ headers }: IncomingMessage): string {
  const given = headers['x-request-id']
  return typeof given === 'string' && /^[\w.:-]{1,128}$/.test(given) ? given : `req_${randomUUID().replaceAll('-', '')}`
}

/**
 * Content types of bodies that are read as JSON. curl and Ollama's examples send JSON under the form type. `refuseCrossSite` keeps real web
 * forms out.
 */
const JSON_TYPES = new Set(['application/json', 'text/plain', 'application/x-www-form-urlencoded'])

function takeOnlyJson(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => {
    // OpenAI's clients send a content type but no body with DELETE.
    if (body.length === 0 && request.routeOptions.schema?.body === undefined) {
      done(null, undefined)
      return
    }
    const { 'content-encoding': encoding, 'content-type': type = 'application/json' } = request.headers
    try {
      if (!JSON_TYPES.has(type.split(';', 1)[0]!.trim().toLowerCase()))
        throw new KvfoldError('server/bad-media-type', 'The server reads JSON; send the body as content-type: application/json.')
      if (encoding !== undefined && encoding !== 'identity')
        throw new KvfoldError('server/bad-media-type', 'The server does not support content-encoding; send the body without it.')
      if (request.raw.rawHeaders.length > 2 * HEADERS)
        throw new KvfoldError('server/bad-request', `The request has more than ${HEADERS} headers; send fewer.`)
      readJsonBody(body as Buffer).then((value) => {
        done(null, value)
      }, done)
    } catch (error) {
      done(error as Error)
    }
  })
}

// Answers a failed request with an error in its dialect, and logs it.

export function fail(request: FastifyRequest, reply: FastifyReply, problem: Problem, error: unknown): void {
  const { status, retryAfter } = problem
  request.refused = problem.code
  if (problem.unexpected) request.log.error({ err: error }, 'request failed')
  if (reply.raw.destroyed || reply.sent) return
  if (retryAfter !== null) reply.header('retry-after', String(retryAfter))
  if (status === 401) reply.header('www-authenticate', 'Bearer')
  // OpenAI's and Anthropic's clients retry every 5xx unless this header says `false`.
  reply.header('x-should-retry', String(retryAfter !== null))
  void reply.code(status).type('application/json').send(errorFor(request, problem))
}

/**
 * Returns the error body in the form of the route's API. Routes that both APIs have, and unknown paths, take Anthropic's form if the
 * request has the header of its clients.
 */
function errorFor(request: FastifyRequest, problem: Problem): object {
  const { url, headers, is404 } = request
  if (url.startsWith('/api/')) return ollamaError(problem)
  const isShared = is404 || /^\/v1\/models(?=[/?]|$)/.test(url)
  const isAnthropic = /^\/v1\/messages(?=[/?]|$)/.test(url) || (isShared && headers['anthropic-version'] !== undefined)
  return isAnthropic ? anthropicError(problem, request.id) : openAiError(problem)
}
