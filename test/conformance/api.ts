/** Sends the requests of conformance checks to a server, kvfold's or a peer's. */
import { expect } from 'vitest'
import { EventSourceParserStream } from 'eventsource-parser/stream'
import { isRecord } from '../../src/runtime/core/json.js'

export interface Reply {
  readonly status: number
  readonly headers: Headers
  /** The body, parsed if it is JSON. */
  readonly body: any
}

/** A server under check. */
export class Api {
  constructor(
    readonly url: string,
    private readonly headers: Readonly<Record<string, string>> = {},
  ) {}

  get(path: string, headers: Readonly<Record<string, string>> = {}): Promise<Reply> {
    return this.#ask('GET', path, undefined, headers)
  }

  post(path: string, body: unknown, headers: Readonly<Record<string, string>> = {}): Promise<Reply> {
    return this.#ask('POST', path, body, headers)
  }

  options(path: string, headers: Readonly<Record<string, string>>): Promise<Reply> {
    return this.#ask('OPTIONS', path, undefined, headers)
  }

  /** Returns the data of all events, without `[DONE]`. */
  async stream(path: string, body: object): Promise<Reply['body'][]> {
    const response = await this.#fetch('POST', path, { stream: true, ...body }, {})
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`)
    const events: unknown[] = []
    for await (const { data } of response.body!.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream()))
      if (data !== '[DONE]') events.push(JSON.parse(data))
    return events
  }

  async #ask(method: string, path: string, body: unknown, headers: Readonly<Record<string, string>>): Promise<Reply> {
    const response = await this.#fetch(method, path, body, headers)
    const text = await response.text()
    let parsed: unknown = text
    try {
      parsed = JSON.parse(text)
    } catch {
      // Some answers are not JSON.
    }
    return { status: response.status, headers: response.headers, body: parsed }
  }

  #fetch(method: string, path: string, body: unknown, headers: Readonly<Record<string, string>>): Promise<Response> {
    const content = isRecord(body) || Array.isArray(body) ? JSON.stringify(body) : null
    return fetch(`${this.url}${path}`, {
      method,
      headers: { ...this.headers, ...(content === null ? {} : { 'content-type': 'application/json' }), ...headers },
      body: content,
    })
  }
}

/** A promise of a server to its clients, and how to check it. */
export interface Check {
  readonly name: string
  readonly run: (api: Api) => Promise<void>
}

export const check = (name: string, run: Check['run']): Check => ({ name, run })

/** Sends the body, expects an answer without an error, and returns it. */
export async function answered(api: Api, path: string, body: object) {
  const reply = await api.post(path, body)
  expect(reply.body.error?.message ?? null).toBeNull()
  expect(reply.status).toBe(200)
  return reply.body
}

export const WEATHER_TOOL = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The weather of a place',
    parameters: { type: 'object', properties: { unit: { enum: ['c', 'f'] } }, required: ['unit'], additionalProperties: false },
  },
}
