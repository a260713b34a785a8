/** The HTTP connection to an endpoint: address, key, timeouts and retries. */
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
  /** The longest silence, in milliseconds, before the answer or within it. A long prefill is silent too. Default 600,000. */
  readonly idle?: number
  /** Total milliseconds that a request waits and retries while the endpoint is overloaded (429, 503). Default 10,000; 0: no retry. */
  readonly busy?: number
}

export interface EndpointOptions {
  /** `http://host:port`, with or without `/v1`. */
  readonly url: string
  readonly key?: string | null
  readonly patience?: Patience
}

/** An answer with a success status. Its body may still be arriving. */
export interface EndpointAnswer {
  readonly type: string
  /** The bytes as they arrive. @throws KvfoldError remote/broken-stream, remote/timeout; the reason of `signal` when it was aborted */
  readonly body: AsyncIterable<Uint8Array>
}

interface Asking {
  readonly method: 'GET' | 'POST'
  readonly url: URL
  readonly body: string | null
  readonly signal: AbortSignal | undefined
  /**
   * Milliseconds until a new connection is made; a kept-alive connection is then not used. If absent, a kept-alive connection may serve,
   * and `Patience.connect` applies.
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

/** A response whose headers have arrived. */
interface Sent {
  readonly response: IncomingMessage
  /** The error of our own idle timeout if that ended the response; else null. Node's response does not say why it ended. */
  readonly timeout: () => KvfoldError | null
}

/** The most bytes that are read of an error's body. */
const LONGEST_ERROR = 65_536
/** The most bytes of an answer that is read as a whole. A larger answer is refused. */
const LONGEST_ANSWER = 64 * 2 ** 20
const FIRST_PAUSE = 500
/** The shortest pause in milliseconds before a busy engine is asked again, even if it asks for a shorter one. */
const LEAST_PAUSE = 100

/**
 * Sends requests by plain node:http. `fetch` gives up after five minutes without a response header, which a long prefill on a slow machine
 * exceeds, and has no option for it. Redirects are not followed, so the key goes only to the given address.
 */
export class Endpoint {
  /** The endpoint's address without key or password, for messages. */
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
   * Returns the JSON at `path`, which counts from the server's root, so include `/v1` where needed. Returns null if the endpoint has no
   * such path (404, 405 or 501).
   * @throws KvfoldError remote/*
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
   * Returns true if the path answers with success, false if there is no such path; the body does not matter. Opens a new connection,
   * because a kept-alive one may lead to a machine that is gone.
   * @param connect milliseconds until the connection is made
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

  /** Sends a POST. Resolves when the answer's headers are there; retries while the endpoint is busy. @throws as `post` */
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
        // An aborted `sleep` throws an error of its own; callers expect the signal's reason.
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
    // Retry-After may be a date. Compare it with the endpoint's own clock if it sends one, because ours may differ.
    const told = Date.parse(date ?? '')
    return { status, text, retryAfter: retryAfter(again, Number.isNaN(told) ? Date.now() : told) }
  }

  /**
   * Sends a request. Repeats it once, on a new connection, if the endpoint closed a kept-alive connection before any byte of the answer
   * came. A second kept-alive connection would not help: llama-server closes all of them after its keep-alive limit.
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

  /** Removes the key from a text of the endpoint, because some endpoints repeat a key that they do not know. */
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

// The functions below read an endpoint's key. The key never appears in a message, a log or a listing.

/** The environment variable that holds the key if no other source is named. */
export const KEY_VARIABLE = 'KVFOLD_ENGINE_KEY'

export interface KeySource {
  /** Name of an environment variable. Default: KVFOLD_ENGINE_KEY. */
  readonly variable?: string
  /** A file whose first line is the key; it takes precedence over the variable. */
  readonly file?: string
}

/**
 * Returns the key; null if no source was named and the default variable is unset. @throws KvfoldError remote/bad-endpoint if a named source
 * has no key
 */
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

/** Whether the text can be sent in a header: printable ASCII without spaces. */
const isKey = (text: string): boolean => /^[\x21-\x7e]+$/.test(text)
