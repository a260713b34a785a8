/** Owns how messages to MCP servers are written: the library rounds numbers, so what a call's arguments lose is put in here. */
import { type JSONRPCMessage, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import { isNoted, writeJson } from '../core/written-json.js'

/** To a process. */
export class ProcessTransport extends StdioClientTransport {
  override send(message: JSONRPCMessage): Promise<void> {
    // Private in the library, whose release is exact.
    const { _process: process } = this as unknown as { readonly _process?: { readonly stdin?: NodeJS.WritableStream } }
    const input = process?.stdin
    if (input === undefined || !isNoted(message)) return super.send(message)
    return new Promise((resolve) => {
      if (input.write(`${writeJson(message)}\n`)) resolve()
      else input.once('drain', resolve)
    })
  }
}

type HttpOptions = NonNullable<ConstructorParameters<typeof StreamableHTTPClientTransport>[1]>
type SendOptions = Parameters<StreamableHTTPClientTransport['send']>[1]

/** To a server over HTTP. */
export class HttpTransport extends StreamableHTTPClientTransport {
  /** Bodies as they were written, by the body that the library makes. */
  readonly #written: Map<string, string>

  constructor(url: URL, options: HttpOptions) {
    const written = new Map<string, string>()
    super(url, {
      ...options,
      fetch: (input, init) => {
        const body = typeof init?.body === 'string' ? written.get(init.body) : undefined
        return fetch(input, body === undefined ? init : { ...init, body })
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
