/** The connection to the server: sends requests with the API key, and reports the server's errors. */
import type { EventSourceMessage } from 'eventsource-parser'
import { readJson, writeJson } from '../core/written-json.js'
import { eventsIn } from './wire.js'

/** The error for a refused request. Its message is the server's. */
export class ApiFailure extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message)
  }
}

const PLACE = 'kvfold-key'

/** Keeps the API key in the session storage of the tab: it is deleted with the tab, and other tabs cannot read it. */
export class Api {
  /** Called when the server asks for a key, or for another one. */
  onLocked: () => void = () => undefined

  get key(): string | null {
    return sessionStorage.getItem(PLACE)
  }

  /** Stores the API key for later requests. Null deletes it. */
  setKey(key: string | null): void {
    if (key === null || key === '') sessionStorage.removeItem(PLACE)
    else sessionStorage.setItem(PLACE, key)
  }

  /** Sends a GET and returns the JSON of the answer. @throws ApiFailure; TypeError when the server cannot be reached */
  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return readJson(await (await this.#fetch('GET', path, undefined, signal)).text()) as T
  }

  async text(path: string): Promise<string> {
    return (await this.#fetch('GET', path)).text()
  }

  async send<T>(method: 'POST' | 'PUT' | 'DELETE', path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
    return readJson(await (await this.#fetch(method, path, body, signal)).text()) as T
  }

  /** Yields the SSE events of an answer until its stream ends. */
  async *events(
    path: string,
    options: { readonly body?: unknown; readonly signal: AbortSignal },
  ): AsyncGenerator<EventSourceMessage> {
    const { body, signal } = options
    const response = await this.#fetch(body === undefined ? 'GET' : 'POST', path, body, signal)
    if (response.body !== null) yield* eventsIn(response.body)
  }

  async #fetch(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const { key } = this
    const response = await fetch(path, {
      method,
      headers: {
        ...(key === null ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: writeJson(body) }),
      ...(signal === undefined ? {} : { signal }),
      cache: 'no-store',
    })
    if (response.ok) return response
    const failure = await failureOf(response)
    if (failure.status === 401) this.onLocked()
    throw failure
  }
}

async function failureOf(response: Response): Promise<ApiFailure> {
  const { status } = response
  try {
    const { error } = (await response.json()) as { error: { code: string | null; message: string } }
    return new ApiFailure(status, error.code ?? '', error.message)
  } catch {
    return new ApiFailure(status, '', `The server answered with status ${status}.`)
  }
}

/** Describes an error in a sentence for people. */
export function sentenceOf(error: unknown): string {
  if (error instanceof ApiFailure) return error.message
  if (error instanceof TypeError) return 'The server does not answer.'
  return error instanceof Error ? error.message : String(error)
}

/** Returns the path of a thread in the API, with its parts escaped. */
export const threadPath = (thread: string, ...rest: readonly string[]): string =>
  ['/kvfold/threads', ...[thread, ...rest].map(encodeURIComponent)].join('/')
