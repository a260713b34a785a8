/** Transports of the MCP library that keep the original text of messages, because the library itself rounds large numbers. */
import { type JSONRPCMessage, ReadBuffer, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport, type StdioServerParameters } from '@modelcontextprotocol/client/stdio'
import { createParser } from 'eventsource-parser'
import { isNoted, writeJson } from '../core/written-json.js'
import { carrying } from './carried-text.js'
import { patientFetch, type PatientRequest } from './patient-fetch.js'

/** The most bytes of a message. `outputLimit` cuts long results later; a message above this limit looks as if the server had ended. */
const LONGEST_MESSAGE = 256 * 2 ** 20

/** Transport to a server that is a process of this machine. */
export class ProcessTransport extends StdioClientTransport {
  constructor(server: Omit<StdioServerParameters, 'maxBufferSize'>) {
    super(server)
    // `_readBuffer` is a private field of the library. Its version is pinned, so the field is there.
    Object.assign(this, { _readBuffer: new Lines() })
  }

  override send(message: JSONRPCMessage): Promise<void> {
    // `_process` is a private field of the library as well.
    const { _process: process } = this as unknown as { readonly _process?: { readonly stdin?: NodeJS.WritableStream } }
    const input = process?.stdin
    if (input === undefined || !isNoted(message)) return super.send(message)
    return new Promise((resolve) => {
      if (input.write(`${writeJson(message)}\n`)) resolve()
      else input.once('drain', resolve)
    })
  }
}

/** Splits the process's output into messages, one per line. */
class Lines extends ReadBuffer {
  /** Chunks of the last line, which is not complete yet. */
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

/** Transport to a server over HTTP. */
export class HttpTransport extends StreamableHTTPClientTransport {
  /** From each body as the library writes it to the body with the original text, which is sent instead. */
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

/** Whether this is a request to the MCP server. The library's requests to an authorization server have other bodies or follow redirects. */
const isForServer = (init: RequestInit = {}): init is PatientRequest =>
  init.redirect === 'manual' && (init.body == null || typeof init.body === 'string')

/** Returns the response with the original text added to its messages (`carrying`). */
async function answering(response: Response): Promise<Response> {
  const { ok, body, headers, status, statusText } = response
  const type = headers.get('content-type') ?? ''
  if (!ok || body === null) return response
  if (/^application\/json\b/i.test(type)) return new Response(carrying(await response.text()), { headers, status, statusText })
  if (!/^text\/event-stream\b/i.test(type)) return response
  return new Response(body.pipeThrough(new TextDecoderStream()).pipeThrough(events()), { headers, status, statusText })
}

/** Adds the original text to the data of server-sent events (`carrying`). */
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
