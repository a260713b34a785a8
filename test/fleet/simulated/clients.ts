/**
 * The clients of a simulated fleet. Each has one conversation after the other, asks any front, retries until it gets an answer, and
 * remembers what was acknowledged.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Random } from '../../../src/runtime/core/random.js'
import { words } from '../../../bench/runtime/client-edits/clients.js'

export interface Message {
  readonly role: 'user' | 'assistant'
  readonly content: string
}

/** What a server acknowledged. */
export type Acknowledged =
  /** All messages of the thread up to the answer, as the client has them. */
  | { readonly kind: 'answer'; readonly thread: string; readonly messages: readonly Message[] }
  | { readonly kind: 'response'; readonly id: string; readonly said: string; readonly previous: string | null }
  | { readonly kind: 'fold'; readonly thread: string; readonly fragment: string }
  | { readonly kind: 'deletion'; readonly thread: string }

/** An error, as the client received it. */
export interface Refused {
  /** The HTTP status; 0 for an error in the middle of a stream. */
  readonly status: number
  readonly code: string
  readonly message: string
  readonly retryAfter: number | null
}

/** How many attempts were made for each question. */
export type Attempts = Map<string, number>

export interface ClientOptions {
  readonly number: number
  readonly seed: number
  readonly fronts: readonly string[]
  readonly key: string
  /** Called before every turn. Returns true when the client is to start no further conversation. */
  readonly isOver: () => boolean
  /** Called after every answer or other operation. */
  readonly onDone: () => void
}

/** Milliseconds until a client gives up waiting and asks the other front. A client of a machine that is cut off gets no error. */
const PATIENCE = 15_000
/** The longest pause between two attempts in milliseconds, whatever retry-after says. */
const LONGEST_PAUSE = 1000
/** The text of a conversation's first question; some of it is folded. */
const NOTES = Array.from({ length: 24 }, (_, at) => `Line ${at}: the value of key ${at % 7} is ${at * 7}.`).join('\n')

class Refusal extends Error {
  constructor(readonly refused: Refused) {
    super(refused.message)
  }
}

interface Sent {
  readonly method: 'POST' | 'DELETE'
  readonly path: string
  readonly body?: object
  /** Reads the answer. */
  readonly read: (response: Response) => Promise<unknown>
}

interface Answered {
  readonly content: string
  readonly thread: string
}

export class Client {
  readonly acknowledged: Acknowledged[] = []
  readonly refused: Refused[] = []
  readonly attempts: Attempts = new Map()
  /** Connections that broke or were refused, and attempts that the client gave up. */
  broken = 0
  givenUp = 0
  /** The longest time of one attempt, in milliseconds. */
  slowest = 0
  readonly #random: Random
  #front = 0

  constructor(private readonly options: ClientOptions) {
    this.#random = new Random(options.seed, options.number)
  }

  async talk(): Promise<void> {
    for (let conversation = 0; !this.options.isOver(); conversation++) {
      this.#front = this.#random.below(this.options.fronts.length)
      if ((conversation + this.options.number) % 4 === 3) await this.#respond(conversation)
      else await this.#chat(conversation)
    }
  }

  async #chat(conversation: number): Promise<void> {
    const messages: Message[] = []
    const threads = new Set<string>()
    const turns = 2 + this.#random.below(5)
    for (let turn = 0; turn < turns; turn++) {
      const question = this.#question(conversation, turn)
      messages.push({ role: 'user', content: question })
      const stream = this.#random.below(2) === 0
      const body = { messages, max_tokens: 8 + this.#random.below(40), stream, ...endless }
      const { content, thread } = (await this.#until(question, {
        ...{ method: 'POST', path: '/v1/chat/completions', body },
        read: stream ? streamed : whole,
      })) as Answered
      messages.push({ role: 'assistant', content })
      threads.add(thread)
      this.#done({ kind: 'answer', thread, messages: [...messages] })
      if (turn === 0 && this.#random.below(3) === 0) await this.#fold(thread)
    }
    if (this.#random.below(8) === 0)
      for (const thread of threads) {
        await this.#until(null, { method: 'DELETE', path: `/kvfold/threads/${thread}`, read: deleted })
        this.#done({ kind: 'deletion', thread })
      }
  }

  /** Runs a conversation by ids of responses instead of messages. */
  async #respond(conversation: number): Promise<void> {
    let previous: string | null = null
    const turns = 2 + this.#random.below(4)
    for (let turn = 0; turn < turns; turn++) {
      const input = this.#question(conversation, turn)
      const body = {
        ...{ input, max_output_tokens: 8 + this.#random.below(40) },
        ...(previous === null ? {} : { previous_response_id: previous }),
        ...endless,
      }
      const { id, said } = (await this.#until(input, { method: 'POST', path: '/v1/responses', body, read: response })) as {
        id: string
        said: string
      }
      this.#done({ kind: 'response', id, said, previous })
      previous = id
    }
  }

  async #fold(thread: string): Promise<void> {
    const path = `/kvfold/threads/${thread}/fragments`
    const cut = { startMarker: 'Line 5:', endMarker: 'Line 18:', numFragments: 1 }
    const fragment = (await this.#until(null, { method: 'POST', path, body: cut, read: cutOut })) as string
    await this.#until(null, { method: 'POST', path: `${path}/${fragment}/fold`, body: {}, read: (answer) => answer.json() })
    this.#done({ kind: 'fold', thread, fragment })
  }

  #question(conversation: number, turn: number): string {
    const { number, seed } = this.options
    const text = words(seed + 10_000 * number + 100 * conversation + turn, 120)
    return `${turn === 0 ? `${NOTES}\n` : ''}[${number}.${conversation}.${turn}] ${text}`
  }

  #done(what: Acknowledged): void {
    this.acknowledged.push(what)
    this.options.onDone()
  }

  /**
   * Retries until it succeeds.
   * @param question Counts the attempts; null for requests that may be repeated.
   */
  async #until(question: string | null, sent: Sent): Promise<unknown> {
    for (let tries = 0; ; tries++) {
      if (question !== null) this.attempts.set(question, (this.attempts.get(question) ?? 0) + 1)
      const since = performance.now()
      try {
        return await this.#ask(sent)
      } catch (error) {
        if (error instanceof Refusal) this.refused.push(error.refused)
        else if (error instanceof DOMException && error.name === 'TimeoutError') this.givenUp++
        else if (isConnection(error)) this.broken++
        else throw error
        // The next attempt goes to the other front, and not in lockstep with other clients.
        this.#front++
        const asked = error instanceof Refusal ? (error.refused.retryAfter ?? 0) * 1000 : 0
        await sleep(
          Math.min(LONGEST_PAUSE, Math.max(asked, 100 * 2 ** Math.min(tries, 3))) * (0.5 + this.#random.below(500) / 1000),
        )
      } finally {
        this.slowest = Math.max(this.slowest, performance.now() - since)
      }
    }
  }

  async #ask({ method, path, body, read }: Sent): Promise<unknown> {
    const { fronts, key } = this.options
    const response = await fetch(`${fronts[this.#front % fronts.length]}${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(PATIENCE),
    })
    if (response.status === 404 && method === 'DELETE') return null
    if (response.ok) return read(response)
    throw new Refusal(refusedBy(response, await response.text()))
  }
}

/** Makes an answer end with `max_tokens` and not before. */
const endless = { kvfold: { grammar: 'root ::= [a-z ] root' } }

/** Recognises the errors of fetch for a connection that broke, and for an answer without its end. */
const isConnection = (error: unknown): boolean =>
  error instanceof TypeError || error instanceof Unfinished || (error instanceof SyntaxError && error.message.includes('JSON'))

/** The connection ended in good order, but the answer did not. */
class Unfinished extends Error {}

function refusedBy({ status, headers }: Response, text: string): Refused {
  const { error } = JSON.parse(text) as { error: { code?: string; message: string } }
  const again = headers.get('retry-after')
  return { status, code: error.code ?? '', message: error.message, retryAfter: again === null ? null : Number(again) }
}

async function whole(response: Response): Promise<Answered> {
  const { choices, kvfold } = (await response.json()) as { choices: { message: Message }[]; kvfold: { thread: string } }
  return { content: choices[0]!.message.content, thread: kvfold.thread }
}

async function streamed(response: Response): Promise<Answered> {
  let [text, content, thread] = ['', '', '']
  const decoder = new TextDecoder()
  for await (const bytes of response.body!) text += decoder.decode(bytes as Uint8Array, { stream: true })
  for (const event of text.split('\n\n')) {
    if (!event.startsWith('data: {')) continue
    const told = JSON.parse(event.slice(6)) as {
      choices?: { delta: { content?: string } }[]
      kvfold?: { thread: string }
      error?: { code?: string; message: string }
    }
    if (told.error !== undefined)
      throw new Refusal({ status: 0, code: told.error.code ?? '', message: told.error.message, retryAfter: null })
    content += told.choices?.[0]?.delta.content ?? ''
    thread = told.kvfold?.thread ?? thread
  }
  if (!text.includes('data: [DONE]')) throw new Unfinished('the stream ended without its end')
  return { content, thread }
}

async function response(answer: Response): Promise<{ id: string; said: string }> {
  const { id, output } = (await answer.json()) as { id: string; output: { content: { text: string }[] }[] }
  return { id, said: output[0]!.content[0]!.text }
}

const deleted = async (answer: Response): Promise<null> => {
  await answer.text()
  return null
}

const cutOut = async (answer: Response): Promise<string> =>
  ((await answer.json()) as { fragments: { id: string }[] }).fragments[0]!.id
