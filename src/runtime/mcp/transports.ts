/**
 * Transports that keep messages to and from MCP servers as they were written. The library rounds numbers, so these classes keep the
 * original text.
 */
import { type JSONRPCMessage, ReadBuffer, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport, type StdioServerParameters } from '@modelcontextprotocol/client/stdio'
import { createParser } from 'eventsource-parser'
import { isNoted, writeJson } from '../core/written-json.js'
import { carrying } from './carried-text.js'
import { patientFetch, type PatientRequest } from './patient-fetch.js'

/** The most bytes of one message. A result of many megabytes is cut later (`outputLimit`); it must not look like the end of the server. */
const LONGEST_MESSAGE = 256 * 2 ** 20

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
const isForServer = (init: RequestInit = {}): init is PatientRequest =>
  init.redirect === 'manual' && (init.body == null || typeof init.body === 'string')

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
