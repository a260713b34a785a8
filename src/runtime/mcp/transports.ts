/**
 * Transports that keep messages to and from MCP servers as they were written. The library rounds numbers, so these classes keep the
 * original text.
 */
import { type IncomingMessage, request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { type JSONRPCMessage, ReadBuffer, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport, type StdioServerParameters } from '@modelcontextprotocol/client/stdio'
import { createParser } from 'eventsource-parser'
import { isNoted, writeJson } from '../core/written-json.js'
import { carrying } from './carried-text.js'

/** The most bytes of one message. A result of many megabytes is cut later (`outputLimit`); it must not look like the end of the server. */
const LONGEST_MESSAGE = 256 * 2 ** 20

/** The most milliseconds that connecting to a server may take, and the milliseconds between probes of a silent connection. */
const CONNECT = 10_000
const KEEP_ALIVE = 60_000

/** The transport to a process. */
export class ProcessTransport extends StdioClientTransport {
  constructor(server: Omit<StdioServerParameters, 'maxBufferSize'>) {
    super(server)
    // `_readBuffer` is a private field of the library. Its version is pinned, so the field does not change.
    Object.assign(this, { _readBuffer: new Lines() })
  }

  override send(message: JSONRPCMessage): Promise<void> {
    // `_process` is a private field of the library, too.
    const { _process: process } = this as unknown as { readonly _process?: { readonly stdin?: NodeJS.WritableStream } }
    const input = process?.stdin
    if (input === undefined || !isNoted(message)) return super.send(message)
    return new Promise((resolve) => {
      if (input.write(`${writeJson(message)}\n`)) resolve()
      else input.once('drain', resolve)
    })
  }
}

/** Reads the output of a process, one message a line. */
class Lines extends ReadBuffer {
  /** The last, incomplete line. */
  #begun: Buffer[] = []
  #size = 0

  constructor() {
    super({ maxBufferSize: Infinity })
  }

  override append(chunk: Buffer): void {
    const end = chunk.lastIndexOf('\n') + 1
    if (end > 0) {
      const whole = Buffer.concat([...this.#begun, chunk.subarray(0, end)]).toString()
      this.#begun = []
      this.#size = 0
      super.append(Buffer.from(whole.split('\n').map(carrying).join('\n')))
    }
    this.#begun.push(chunk.subarray(end))
    this.#size += chunk.length - end
    if (this.#size <= LONGEST_MESSAGE) return
    this.clear()
    throw new Error(`it wrote a message of more than ${LONGEST_MESSAGE / 2 ** 20} MiB`)
  }

  override clear(): void {
    this.#begun = []
    this.#size = 0
    super.clear()
  }
}

type HttpOptions = NonNullable<ConstructorParameters<typeof StreamableHTTPClientTransport>[1]>
type SendOptions = Parameters<StreamableHTTPClientTransport['send']>[1]

/** The transport to a server over HTTP. */
export class HttpTransport extends StreamableHTTPClientTransport {
  /** Maps the body that the library sends to the body with the original text, which is sent in its place. */
  readonly #written: Map<string, string>

  constructor(url: URL, options: HttpOptions) {
    const written = new Map<string, string>()
    super(url, {
      ...options,
      fetch: async (input, init) => {
        const body = typeof init?.body === 'string' ? written.get(init.body) : undefined
        const sent = body === undefined ? init : { ...init, body }
        return answering(await (isForServer(sent) ? patientFetch(input, sent) : fetch(input, sent)))
      },
    })
    this.#written = written
  }

  override async send(message: JSONRPCMessage | JSONRPCMessage[], options?: SendOptions): Promise<void> {
    if (!isNoted(message)) return super.send(message, options)
    const body = JSON.stringify(message)
    this.#written.set(body, writeJson(message))
    try {
      await super.send(message, options)
    } finally {
      this.#written.delete(body)
    }
  }
}

/** A request to the server. What the library sends to an authorization server has another form of body, or follows redirects. */
type ServerRequest = RequestInit & { readonly body?: string | null }
const isForServer = (init: RequestInit = {}): init is ServerRequest =>
  init.redirect === 'manual' && (init.body == null || typeof init.body === 'string')

/**
 * Does what `fetch` does without following redirects, but waits for an answer as long as it takes. `fetch` gives up after five minutes
 * without a byte, and has no option for it. Each request has its own connection. A server may close a kept one just when a call is sent, and a
 * call is not sent twice.
 */
async function patientFetch(input: string | URL, { method = 'GET', headers, body, signal }: ServerRequest): Promise<Response> {
  const url = new URL(input)
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    const request = (url.protocol === 'https:' ? httpsRequest : httpRequest)(url, {
      method,
      agent: false,
      headers: { 'user-agent': 'kvfold', ...Object.fromEntries(new Headers(headers)), 'accept-encoding': 'identity' },
      ...(signal == null ? {} : { signal }),
    })
    const timer = setTimeout(() => {
      if (request.socket?.connecting !== false) request.destroy(new Error(`no connection within ${CONNECT / 1000} s`))
    }, CONNECT)
    request.setSocketKeepAlive(true, KEEP_ALIVE)
    request.on('close', () => {
      clearTimeout(timer)
    })
    request.on('error', (cause) => {
      reject(signal?.aborted === true ? (signal.reason as Error) : new TypeError('fetch failed', { cause }))
    })
    request.on('response', resolve)
    request.end(body ?? undefined)
  })
  const { statusCode: status = 0, statusMessage: statusText = '', headersDistinct } = response
  const given = new Headers()
  for (const [name, values = []] of Object.entries(headersDistinct)) for (const value of values) given.append(name, value)
  const isEmpty = status === 204 || status === 205 || status === 304
  if (isEmpty) response.resume()
  return new Response(isEmpty ? null : response, { headers: given, status, statusText })
}

/** Returns the response with messages that carry their original text. */
async function answering(response: Response): Promise<Response> {
  const { ok, body, headers, status, statusText } = response
  const type = headers.get('content-type') ?? ''
  if (!ok || body === null) return response
  if (/^application\/json\b/i.test(type)) return new Response(carrying(await response.text()), { headers, status, statusText })
  if (!/^text\/event-stream\b/i.test(type)) return response
  return new Response(body.pipeThrough(new TextDecoderStream()).pipeThrough(events()), { headers, status, statusText })
}

/** Rewrites server-sent events so that their data carry the original text. */
function events(): TransformStream<string, Uint8Array> {
  const encoder = new TextEncoder()
  let out: TransformStreamDefaultController<Uint8Array>
  const tell = (...lines: readonly string[]): void => {
    out.enqueue(encoder.encode([...lines, '', ''].join('\n')))
  }
  const parser = createParser({
    onEvent: ({ id, event, data }) => {
      const said = carrying(data).split('\n')
      tell(
        ...(id === undefined ? [] : [`id: ${id}`]),
        ...(event === undefined ? [] : [`event: ${event}`]),
        ...said.map((line) => `data: ${line}`),
      )
    },
    onRetry: (milliseconds) => {
      tell(`retry: ${milliseconds}`)
    },
  })
  return new TransformStream({
    start: (controller) => {
      out = controller
    },
    transform: (chunk) => {
      parser.feed(chunk)
    },
  })
}
