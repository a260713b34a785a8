/** An MCP server with the six context tools, for threads of a running `kvfold serve`. */
import { fromJsonSchema, McpServer } from '@modelcontextprotocol/server'
import type { ChatMessage } from '../chat/message.js'
import type { Conversation, FragmentOptions } from '../context/conversation.js'
import type { Fragment } from '../context/fragment.js'
import { type Refusal, refuse, type Result } from '../context/refusal.js'
import type { Hit, SearchOptions, SearchResult } from '../context/search.js'
import { type ContextOperations, contextTools } from '../context/tools.js'
import { KvfoldError } from '../core/errors.js'
import { patientFetch } from './patient-fetch.js'

export interface ContextServerOptions extends Omit<ServedThreadOptions, 'signal'> {
  /** Kvfold's version, as sent to clients. */
  readonly version: string
}

const ABOUT =
  'Tools for your own context: cut what was said into fragments, fold or summarize what you no longer need, and restore or search it. They work on ' +
  'the conversation that the kvfold server keeps of your requests; messages that you send again stay folded.'

/** Makes an MCP server for one connection, or for one request over HTTP. */
export function contextServer({ version, ...where }: ContextServerOptions): McpServer {
  const server = new McpServer({ name: 'kvfold', version }, { instructions: ABOUT })
  for (const tool of contextTools) {
    const { name, description, parameters } = tool.definition
    // The tools check their arguments themselves and explain errors in plain words. So the library's own check is turned off.
    const inputSchema = fromJsonSchema<Readonly<Record<string, unknown>>>(parameters, {
      getValidator: () => (given) => ({ valid: true, data: given as never, errorMessage: undefined }),
    })
    server.registerTool(name, { description, inputSchema }, async (args, { mcpReq: { signal } }) => {
      const { text, failed } = await tool.run(new ServedThread({ ...where, signal }), args, signal)
      return { content: [{ type: 'text', text }], isError: failed }
    })
  }
  return server
}

// A thread of a running `kvfold serve`, whose context operations go over that server's HTTP API.

export interface ServedThreadOptions {
  /** Address of the `kvfold serve`, without a path. */
  readonly url: string
  readonly key: string | null
  /** The thread's id; null: the most recently used thread of this key's tenant. */
  readonly thread: string | null
  readonly signal?: AbortSignal
}

/** Carries out the context operations of one tool call over HTTP. Finds the thread once. */
export class ServedThread implements ContextOperations {
  messages: readonly ChatMessage[] = []
  #path: string | null = null

  constructor(private readonly options: ServedThreadOptions) {}

  fragment(options: FragmentOptions): Promise<Result<{ fragments: readonly Fragment[] }>> {
    return this.#ask('POST', '/fragments', options)
  }

  fold(id: string): Promise<Result<{ fragment: Fragment }>> {
    return this.#ask('POST', `/fragments/${encodeURIComponent(id)}/fold`, {})
  }

  restore(id: string): Promise<Result<{ fragment: Fragment }>> {
    return this.#ask('POST', `/fragments/${encodeURIComponent(id)}/restore`)
  }

  summarize(id: string, focus: string): ReturnType<Conversation['summarize']> {
    return this.#ask('POST', `/fragments/${encodeURIComponent(id)}/summarize`, { focus })
  }

  async search(options: SearchOptions): Promise<Result<SearchResult>> {
    const result = await this.#ask<SearchResult>('POST', '/search', options)
    if (result.ok && result.hits.length > 0) await this.#readMessages()
    return result
  }

  async detail(id: string, extendedContext?: number): Promise<Result<{ hit: Hit }>> {
    const query = extendedContext === undefined ? '' : `?extendedContext=${extendedContext}`
    const result = await this.#ask<{ hit: Hit }>('GET', `/search/${encodeURIComponent(id)}${query}`)
    if (result.ok) await this.#readMessages()
    return result
  }

  async #readMessages(): Promise<void> {
    const thread = await this.#ask<{ messages: readonly { readonly message: ChatMessage }[] }>('GET', '')
    if (!thread.ok) throw new KvfoldError(thread.code, thread.message)
    this.messages = thread.messages.map(({ message }) => message)
  }

  async #ask<T extends object>(method: 'GET' | 'POST', path: string, body?: object): Promise<Result<T>> {
    this.#path ??= `/kvfold/threads/${encodeURIComponent(this.options.thread ?? (await this.#last()))}`
    const { status, answer } = await this.#request(method, this.#path + path, body)
    if (status === 200) return { ok: true, ...(answer as T) }
    const { code, message } = (answer as { readonly error?: { readonly code?: string; readonly message?: string } }).error ?? {}
    const said = message ?? `the server answered with status ${status} and no reason.`
    if (isRefusal(code)) return refuse(code, said)
    throw new KvfoldError(status === 404 ? 'server/no-thread' : 'remote/failed', said)
  }

  async #last(): Promise<string> {
    const { answer } = await this.#request('GET', '/kvfold/threads')
    const { threads = [] } = answer as { readonly threads?: readonly { readonly id: string }[] }
    const [first] = threads
    if (first === undefined)
      throw new KvfoldError(
        'server/no-thread',
        `${this.options.url} has no conversation of this key yet. Talk to a model there first, with the same key.`,
      )
    return first.id
  }

  async #request(method: string, path: string, body?: object): Promise<{ readonly status: number; readonly answer: object }> {
    const { url, key, signal } = this.options
    // `fetch` would give up after five minutes, and a summary may take longer.
    const response = await patientFetch(new URL(path, url), {
      method,
      headers: {
        ...(key === null ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    }).catch((cause: unknown) => {
      if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The call was cancelled.', { cause })
      throw new KvfoldError('remote/unreachable', `No server answers at ${url}; start kvfold serve, or name it with --url.`, {
        cause,
      })
    })
    const { status } = response
    if (status === 401)
      throw new KvfoldError(
        'remote/unauthorized',
        `${url} does not accept the key; give another with --key-file or KVFOLD_API_KEY.`,
      )
    const answer: unknown = await response.json().catch(() => null)
    if (typeof answer !== 'object' || answer === null)
      throw new KvfoldError(
        'remote/bad-answer',
        `The server at ${url} is not a kvfold server (it answered with status ${status} and no JSON); name another with --url.`,
      )
    return { status, answer }
  }
}

const REFUSALS: readonly Refusal['code'][] = ['tool/bad-arguments', 'tool/unknown-id', 'tool/refused', 'tool/costs-more']
const isRefusal = (code: string | undefined): code is Refusal['code'] => REFUSALS.some((known) => known === code)
