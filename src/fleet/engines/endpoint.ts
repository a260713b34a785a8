/** The HTTP connection to an endpoint: its address and key, timeouts, and repeated tries. */
import { readFileSync } from 'node:fs'
import { Agent as HttpAgent, type IncomingMessage, request as httpRequest } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { setTimeout as sleep } from 'node:timers/promises'
import { KvfoldError } from '../../runtime/core/errors.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'
import { connectionError, errorOf, type EndpointRefusal, retryAfter } from './failure.js'

export interface Patience {
  /** Milliseconds until the connection is made. Default 10,000. */
  readonly connect?: number
  /** The most milliseconds without a byte, before the answer or within it. A long prompt may take that long. Default 600,000. */
  readonly idle?: number
  /** Total milliseconds that a request waits while the endpoint is overloaded (429, 503). Default 10,000; 0: not at all. */
  readonly busy?: number
}

export interface EndpointOptions {
  /** `http://host:port`, with or without `/v1`. */
  readonly url: string
  readonly key?: string | null
  readonly patience?: Patience
}

/** An answer. Its body is still coming. */
export interface EndpointAnswer {
  readonly type: string
  /** The bytes as they come. @throws KvfoldError remote/broken-stream, remote/timeout; the reason of `signal` when it was aborted */
  readonly body: AsyncIterable<Uint8Array>
}

interface Asking {
  readonly method: 'GET' | 'POST'
  readonly url: URL
  readonly body: string | null
  readonly signal: AbortSignal | undefined
  /**
   * Milliseconds until a new connection is made. When absent, an open connection may be used again, and the endpoint's patience applies.
   */
  readonly connect?: number
  readonly headers?: Sending['headers']
}

/** Settings of a single request. */
export interface Sending {
  /** Headers that are sent in addition to those of every request. */
  readonly headers?: Readonly<Record<string, string>>
  /** Milliseconds to wait while the endpoint is overloaded, in place of `Patience.busy`. */
  readonly busy?: number
}

/** An answer that has begun. */
interface Sent {
  readonly response: IncomingMessage
  /** The error of our own timeout, if the timeout ended the response; else null. The response itself does not say why it ended. */
  readonly timeout: () => KvfoldError | null
}

/** The most bytes of an error's body that are read. */
const LONGEST_ERROR = 65_536
/** An answer that is read as a whole is refused when it has more bytes than this. */
const LONGEST_ANSWER = 64 * 2 ** 20
const FIRST_PAUSE = 500
/** The least pause before a busy engine is asked again, whatever it asks for. */
const LEAST_PAUSE = 100

/**
 * Uses plain node:http, because fetch gives up when no header comes for five minutes. A long prompt on a slow machine takes that long, and
 * fetch has no option for it. Redirects are not followed: the key goes only to the given address.
 */
export class Endpoint {
  /** The endpoint's name in messages, without any secret. */
  readonly name: string
  readonly #root: URL
  readonly #key: string | null
  readonly #patience: Required<Patience>
  readonly #agent: HttpAgent

  /** @throws KvfoldError remote/bad-endpoint */
  constructor({ url, key = null, patience = {} }: EndpointOptions) {
    this.#root = rootOf(url)
    this.#key = key
    this.#patience = { connect: 10_000, idle: 600_000, busy: 10_000, ...patience }
    this.#agent = this.#root.protocol === 'https:' ? new HttpsAgent({ keepAlive: true }) : new HttpAgent({ keepAlive: true })
    this.name = this.#root.origin + this.#root.pathname.replace(/\/$/, '')
  }

  /**
   * Returns the JSON at `path` (from the root, with `/v1` where needed); null if the endpoint has no such path. @throws KvfoldError
   * remote/*
   */
  async get(path: string, signal?: AbortSignal): Promise<unknown> {
    const answer = await this.#ask({ method: 'GET', url: this.#at(path), body: null, signal })
    if ('status' in answer) {
      if (answer.status === 404 || answer.status === 405 || answer.status === 501) return null
      throw errorOf(answer, this.name)
    }
    return this.json(answer)
  }

  /**
   * Returns true if the path answers with success, false if there is no such path; the body does not matter. Uses a new connection, because
   * a kept one may lead to a machine that is gone. @param connect milliseconds until the connection is made
   * @throws KvfoldError remote/* for any other answer; remote/unreachable if there is no connection
   */
  async reach(path: string, connect: number, signal?: AbortSignal): Promise<boolean> {
    const answer = await this.#ask({ method: 'GET', url: this.#at(path), body: null, signal, connect })
    if (!('status' in answer)) {
      await textOf(answer.body, LONGEST_ERROR, 'cut')
      return true
    }
    if (answer.status === 404 || answer.status === 405 || answer.status === 501) return false
    throw errorOf(answer, this.name)
  }

  /** Sends a POST and returns the JSON of its answer. @throws KvfoldError remote/*, context/full, model/not-found */
  async post(path: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
    return this.json(await this.open(path, body, signal))
  }

  /** Sends a POST and waits for the beginning of its answer; tries again while the endpoint is busy. @throws as `post` */
  async open(
    path: string,
    body: unknown,
    signal?: AbortSignal,
    { headers = {}, busy = this.#patience.busy }: Sending = {},
  ): Promise<EndpointAnswer> {
    const text = writeJson(body)
    let waited = 0
    for (let tries = 0; ; tries++) {
      const answer = await this.#ask({ method: 'POST', url: this.#at(path), body: text, signal, headers })
      if (!('status' in answer)) return answer
      const pause = answer.retryAfter === null ? FIRST_PAUSE * 2 ** tries : Math.max(LEAST_PAUSE, answer.retryAfter * 1000)
      if ((answer.status !== 429 && answer.status !== 503) || waited + pause > busy) throw errorOf(answer, this.name)
      waited += pause
      await sleep(pause, undefined, signal === undefined ? {} : { signal }).catch((error: unknown) => {
        // `sleep` throws an error of its own, not the signal's reason.
        signal?.throwIfAborted()
        throw error
      })
    }
  }

  /** Closes the connections that no request uses. */
  close(): void {
    this.#agent.destroy()
  }

  #at(path: string): URL {
    return new URL(this.#root.pathname.replace(/\/$/, '') + path, this.#root)
  }

  async #ask(asking: Asking): Promise<EndpointAnswer | EndpointRefusal> {
    let sent: Sent
    try {
      sent = await this.#send(asking)
    } catch (error) {
      asking.signal?.throwIfAborted()
      throw connectionError(error, this.name, false)
    }
    const { response } = sent
    const status = response.statusCode ?? 0
    const body = this.#bytes(sent, asking.signal)
    if (status === 200) return { type: response.headers['content-type'] ?? '', body }
    const text = this.#withoutKey(await textOf(body, LONGEST_ERROR, 'cut'))
    const { date, 'retry-after': again } = response.headers
    // Use the endpoint's own clock if it sends the time: our clock may differ.
    const told = Date.parse(date ?? '')
    return { status, text, retryAfter: retryAfter(again, Number.isNaN(told) ? Date.now() : told) }
  }

  /**
   * Sends a request. Sends it once more, on a new connection, if the endpoint closed the kept one before any of the answer came. Another
   * kept connection would not do: an endpoint that closes one of them (llama-server, after its keep-alive limit) closes all.
   */
  async #send(asking: Asking, again = true): Promise<Sent> {
    const { idle } = this.#patience
    const { connect = this.#patience.connect } = asking
    return new Promise((resolve, reject) => {
      const send = asking.url.protocol === 'https:' ? httpsRequest : httpRequest
      const { body, signal, headers = {} } = asking
      const request = send(asking.url, {
        method: asking.method,
        agent: asking.connect === undefined && again ? this.#agent : false,
        headers: {
          ...headers,
          accept: 'application/json, text/event-stream',
          'accept-encoding': 'identity',
          ...(this.#key === null ? {} : { authorization: `Bearer ${this.#key}` }),
          ...(body === null ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
        },
        ...(signal === undefined ? {} : { signal }),
      })
      const unreached = `${this.name} could not be reached within ${connect / 1000} s; check its machine and the network.`
      const timer = setTimeout(() => request.destroy(new KvfoldError('remote/unreachable', unreached)), connect)
      request.on('socket', (socket) => {
        const connected = () => {
          clearTimeout(timer)
        }
        if (socket.connecting) socket.once('connect', connected)
        else connected()
      })
      let timeout: KvfoldError | null = null
      request.setTimeout(idle, () => {
        const silent = `${this.name} sent nothing for ${idle / 1000} s; raise --engine-timeout to wait longer.`
        request.destroy((timeout = new KvfoldError('remote/timeout', silent)))
      })
      let answers = false
      request.on('response', (response) => {
        answers = true
        resolve({ response, timeout: () => timeout })
      })
      request.on('error', (error: NodeJS.ErrnoException) => {
        clearTimeout(timer)
        const isClosed = error.code === 'ECONNRESET' || error.code === 'EPIPE'
        if (again && isClosed && request.reusedSocket && !answers) this.#send(asking, false).then(resolve, reject)
        else reject(error)
      })
      request.end(body ?? undefined)
    })
  }

  async *#bytes({ response, timeout }: Sent, signal: AbortSignal | undefined): AsyncGenerator<Uint8Array> {
    try {
      for await (const chunk of response) yield chunk as Uint8Array
    } catch (error) {
      signal?.throwIfAborted()
      throw timeout() ?? connectionError(error, this.name, true)
    }
  }

  /** Returns the JSON of an answer. @throws KvfoldError remote/bad-answer, remote/broken-stream, remote/timeout */
  async json({ body }: EndpointAnswer): Promise<unknown> {
    const text = await textOf(body, LONGEST_ANSWER, 'refuse')
    try {
      return readJson(text)
    } catch (error) {
      throw new KvfoldError('remote/bad-answer', `${this.name} answered with something that is not JSON; check its address.`, {
        cause: error,
      })
    }
  }

  /** Removes the key from an endpoint's words, because endpoints repeat keys that they do not know. */
  #withoutKey(text: string): string {
    return this.#key === null ? text : text.replaceAll(this.#key, '[key]')
  }
}

/** Returns the part of the address before `/v1`. */
function rootOf(text: string): URL {
  const bad = (why: string) =>
    new KvfoldError('remote/bad-endpoint', `--engine needs an address such as http://localhost:8000/v1: ${why}.`)
  let url: URL
  try {
    url = new URL(text)
  } catch {
    throw bad('this is not a URL')
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') throw bad(`${url.protocol} is neither http: nor https:`)
  if (url.username !== '' || url.password !== '')
    throw bad('this one contains a password; give the key with --engine-key-env or --engine-key-file')
  if (url.search !== '' || url.hash !== '') throw bad('it must end with its path, without ? and #')
  url.pathname = url.pathname.replace(/\/+$/, '').replace(/\/v1$/, '')
  return url
}

async function textOf(body: AsyncIterable<Uint8Array>, most: number, beyond: 'cut' | 'refuse'): Promise<string> {
  const chunks: Uint8Array[] = []
  let size = 0
  for await (const chunk of body) {
    size += chunk.length
    if (size > most) {
      if (beyond === 'cut') break
      throw new KvfoldError('remote/bad-answer', `The endpoint's answer has more than ${most} bytes.`)
    }
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

// Reads the key of an endpoint. It is never part of a message, a log or a listing.

/** The environment variable that is read if no other source is named. */
export const KEY_VARIABLE = 'KVFOLD_ENGINE_KEY'

export interface KeySource {
  /** Name of an environment variable. Default: KVFOLD_ENGINE_KEY. */
  readonly variable?: string
  /** A file whose first line is the key; it takes precedence over the variable. */
  readonly file?: string
}

/** Returns the key; null if there is none and no source was named. @throws KvfoldError remote/bad-endpoint if the named source has none */
export function readKey({ variable, file }: KeySource, environment: NodeJS.ProcessEnv = process.env): string | null {
  const bad = (message: string, cause?: unknown) => new KvfoldError('remote/bad-endpoint', message, { cause })
  if (file !== undefined) {
    let text: string
    try {
      text = readFileSync(file, 'utf8')
    } catch (error) {
      throw bad(`The key file ${file} cannot be read; check its path and its permissions.`, error)
    }
    const key = text.split('\n', 1)[0]?.trim() ?? ''
    if (!isKey(key)) throw bad(`The first line of the key file ${file} is not a valid key.`)
    return key
  }
  const key = environment[variable ?? KEY_VARIABLE]?.trim()
  if (key === undefined || key === '') {
    if (variable === undefined) return null
    throw bad(`The environment variable ${variable} is not set, so there is no key for the engine.`)
  }
  if (!isKey(key)) throw bad(`The environment variable ${variable ?? KEY_VARIABLE} does not hold a valid key.`)
  return key
}

/** Whether the text is a usable key: only characters that a header may have. */
const isKey = (text: string): boolean => /^[\x21-\x7e]+$/.test(text)
