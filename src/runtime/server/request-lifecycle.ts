/**
 * Runs an HTTP request from its arrival to the last byte: running count, rate limit, log, streaming, and what happens when the client
 * leaves or the server closes.
 */
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { errorTable, KvfoldError } from '../core/errors.js'
import { writeJson } from '../core/written-json.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { AnyAnswer, AnyAsked, AskEvent, EmbedAnswer, RerankAnswer, SideModelStatus } from './ask.js'
import type { RateLimits } from './keys.js'
import type { AskMeter, Metrics } from './metrics.js'
import { problemOf, type Problem } from './problem.js'
import type { Replay, Replays } from './replays.js'
import { Figures, logRequest } from './request-log.js'
import { Spending, spentIn, spentOn } from './spent.js'

/** How a dialect writes its stream. `index`: which answer of the request an event belongs to, from 0. */
export interface StreamShape<A extends AnyAnswer> {
  /** True: JSON lines instead of server-sent events. */
  readonly lines?: boolean
  on(event: AskEvent, index: number): readonly Frame[]
  /** Returns the frames for the completed answer at `index`. */
  done(answer: A, index: number): readonly Frame[] | Promise<readonly Frame[]>
  /** An answer was cancelled and its thread keeps the text so far. The client may be gone already, and can fetch the text later. */
  cut?(answer: A): Promise<void>
  /** Returns the last frames, after all answers were completed. */
  end(answers: readonly A[]): readonly Frame[]
  /** The request failed after some frames were sent. Returns the frames that end the stream. */
  failed(problem: Problem): readonly Frame[]
  /**
   * The request failed before any frame was sent. Returns frames to send with status 200, or null to answer with the error's HTTP status.
   * Default: null.
   */
  refused?(problem: Problem): readonly Frame[] | null
}

export class RequestRun {
  readonly #run: RunningRequest
  readonly #figures = new Figures()
  #gone = false
  /** Keeps the stream for a client that comes back. With it, the answer continues when the client leaves. */
  #replay: Replay | null = null
  #detached = false

  readonly #spend: (tokens: number) => void

  /**
   * Begins the request: it counts as running, and towards the rate limit of its tenant.
   * @throws KvfoldError server/closing, server/rate-limited
   */
  constructor(
    private readonly request: FastifyRequest,
    private readonly reply: FastifyReply,
    private readonly server: {
      readonly running: Running
      readonly metrics: Metrics
      readonly limits: RateLimits
      readonly replays: Replays
    },
  ) {
    const { running, limits } = server
    running.refuseClosing()
    try {
      this.#spend = limits.take(request.tenant).spend
    } finally {
      reply.headers(limits.headers(request.tenant))
    }
    this.#run = running.enter()
    request.figures = this.#figures
    const { raw } = reply
    raw.once('close', () => {
      if (raw.writableFinished) return
      if (this.#replay !== null) {
        this.#detached = true
        return
      }
      this.#gone = true
      this.#run.cancel()
    })
    if (raw.destroyed) this.#run.cancel()
  }

  /** Aborted when the client disconnects or the server gives the request up. Pass it on as the signal of the work. */
  get signal(): AbortSignal {
    return this.#run.signal
  }

  /**
   * Runs slow work that is no answer of the model, such as an operation on a thread, and then ends the request. `onSpent` counts steps of
   * the model towards the tenant's rate limit.
   */
  async wait<T>(work: (signal: AbortSignal, onSpent: (entries: readonly LedgerEntry[]) => void) => Promise<T>): Promise<T> {
    const onSpent = (entries: readonly LedgerEntry[]) => {
      this.#spend(spentIn(entries))
    }
    try {
      return await work(this.signal, onSpent)
    } finally {
      this.#leave()
    }
  }

  /** Runs preparations of an answer. If they fail, the request ends. @throws the errors of `work` */
  async before<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      this.#leave()
      throw error
    }
  }

  /**
   * Runs and measures a request for embeddings or rankings, and then ends the request. @param count returns the number of vectors or scores
   * @throws the errors of `work`
   */
  aside<A extends EmbedAnswer | RerankAnswer>(
    use: SideModelStatus['use'],
    work: (signal: AbortSignal) => Promise<A>,
    count: (answer: A) => number,
  ): Promise<A> {
    return this.wait(async (signal) => {
      const meter = this.server.metrics.aside(use)
      try {
        const answer = await work(signal)
        const { model, tokens } = answer
        meter.done(model, tokens, count(answer))
        this.#figures.aside(model, tokens)
        this.#spend(tokens)
        return answer
      } catch (error) {
        meter.failed(problemOf(error).code)
        throw error
      }
    })
  }

  /**
   * Returns all answers when they are complete. The first error cancels the others.
   * @throws what the requests throw; server/closing; engine/cancelled
   */
  async answers<A extends AnyAnswer>(begin: (signal: AbortSignal) => readonly AnyAsked<A>[]): Promise<readonly A[]> {
    try {
      return await this.#all(
        begin(this.signal),
        () => undefined,
        () => undefined,
      )
    } finally {
      this.#leave()
    }
  }

  /**
   * Streams the answers as they come. An error before the first frame is thrown, so that it gets an HTTP status. A later error ends the
   * stream, as does any error after the client left a stream that is kept.
   * @param ping seconds between comments that keep the connection open until the first token; undefined: none
   * @param conversation name of a conversation whose client may come back and read on (`Replays`); undefined: none
   */
  async stream<A extends AnyAnswer>(
    begin: (signal: AbortSignal) => readonly AnyAsked<A>[],
    shape: StreamShape<A>,
    ping?: number,
    conversation?: string,
  ): Promise<FastifyReply> {
    const { reply } = this
    const replay = this.#replayed(conversation)
    const headers = () => {
      reply.hijack()
      return reply.getHeaders() as OutgoingHttpHeaders
    }
    const writer = new EventWriter(reply.raw, headers, shape.lines, this.signal, replay)
    const timer = ping === undefined ? null : setInterval(() => void writer.ping(), 1000 * ping)
    const quiet = () => {
      if (timer !== null) clearInterval(timer)
    }
    try {
      const answers = await this.#all(
        begin(this.signal),
        (event, index) => {
          if (event.type === 'tokens') quiet()
          return writer.write(shape.on(event, index))
        },
        async (answer, index) =>
          answer.finish === 'cancelled' ? shape.cut?.(answer) : writer.write(await shape.done(answer, index)),
      )
      quiet()
      await writer.write(shape.end(answers))
    } catch (error) {
      quiet()
      const problem = problemOf(error)
      // A client that comes back sees no HTTP status, so the stream must contain the error.
      const frames = writer.begun || this.#detached ? shape.failed(problem) : (shape.refused?.(problem) ?? null)
      if (frames === null) throw error
      this.request.refused = problem.code
      if (problem.unexpected && !this.#gone) this.request.log.error({ err: error }, 'stream failed')
      await writer.write(frames)
    } finally {
      quiet()
      if (replay !== null) this.server.replays.end(this.request.tenant, replay)
      this.#leave()
    }
    await writer.end()
    // The client left before the first frame and gets nothing. `hijack` tells Fastify that no reply will follow.
    if (!writer.begun) reply.hijack()
    return reply
  }

  /** Starts to keep the stream of the conversation, if it has one. */
  #replayed(conversation: string | undefined): Replay | null {
    const { raw } = this.reply
    if (conversation === undefined || raw.destroyed) return null
    const replay = this.server.replays.begin(this.request.tenant, conversation, () => {
      this.#run.cancel()
    })
    if (replay !== null) raw.once('close', replay.enter())
    return (this.#replay = replay)
  }

  async #all<A extends AnyAnswer>(
    asked: readonly AnyAsked<A>[],
    on: (event: AskEvent, index: number) => Promise<void> | undefined,
    done: (answer: A, index: number) => Promise<void> | undefined,
  ): Promise<readonly A[]> {
    try {
      return await Promise.all(
        asked.map(async (one, index) => {
          const answer = await this.#one(one, this.server.metrics.ask(), (event) => on(event, index))
          await done(answer, index)
          if (answer.finish === 'cancelled') throw this.#cancelled()
          return answer
        }),
      )
    } catch (error) {
      this.#run.cancel()
      await Promise.allSettled(asked.map(({ answer }) => answer))
      throw error
    }
  }

  async #one<A extends AnyAnswer>(
    asked: AnyAsked<A>,
    meter: AskMeter,
    on: (event: AskEvent) => Promise<void> | undefined,
  ): Promise<A> {
    const spending = new Spending()
    try {
      for await (const event of asked) {
        spending.on(event)
        meter.on(event)
        this.#figures.note(event)
        await on(event)
      }
      const answer = await asked.answer
      this.#figures.answered(answer)
      this.#spend(spentOn(answer) + spending.aside)
      if (answer.finish === 'cancelled') meter.failed(problemOf(this.#cancelled()).code)
      else meter.done(answer)
      return answer
    } catch (error) {
      this.#spend(spending.tokens)
      const meant = this.#run.signal.aborted && error instanceof KvfoldError && error.code === 'engine/cancelled'
      const shown = meant ? this.#cancelled() : error
      meter.failed(problemOf(shown).code)
      throw shown
    }
  }

  /** Ends the request. The HTTP server writes no log line for a client that left, so that is done here. */
  #leave(): void {
    this.#run.leave()
    if (!this.#gone && !this.#detached) return
    const isCut = this.#gone || this.signal.aborted
    logRequest(this.request, isCut ? errorTable['engine/cancelled'] : 200, this.reply.elapsedTime)
  }

  #cancelled(): KvfoldError {
    if (this.server.running.closing && !this.#gone)
      return new KvfoldError(
        'server/closing',
        'The server shut down before the answer was complete; ask again when it runs again.',
      )
    return new KvfoldError('engine/cancelled', 'The request was cancelled before its answer was complete.')
  }
}

// The running requests, and how they end when the server closes.

/** One running request. */
export interface RunningRequest {
  /** Aborted when the client disconnects or the server gives the request up. */
  readonly signal: AbortSignal
  cancel(): void
  leave(): void
}

export class Running {
  readonly #runs = new Set<AbortController>()
  readonly #watchers = new Set<() => void>()
  #closing = false
  #empty: (() => void) | null = null

  get closing(): boolean {
    return this.#closing
  }

  get count(): number {
    return this.#runs.size
  }

  /** Counts a request as running until its `leave`. @throws KvfoldError server/closing */
  enter(): RunningRequest {
    this.refuseClosing()
    const controller = new AbortController()
    this.#runs.add(controller)
    return {
      signal: controller.signal,
      cancel: () => {
        controller.abort()
      },
      leave: () => {
        this.#runs.delete(controller)
        if (this.#runs.size === 0) this.#empty?.()
      },
    }
  }

  refuseClosing(): void {
    if (this.#closing)
      throw new KvfoldError(
        'server/closing',
        'The server is shutting down and takes no more requests; ask again when it runs again.',
      )
  }

  /** Registers a stream that never ends by itself; `end` is called when the server closes. Returns a function that unregisters it. */
  watch(end: () => void): () => void {
    this.#watchers.add(end)
    return () => this.#watchers.delete(end)
  }

  /**
   * Accepts no more requests. Resolves when the running ones have ended; after `graceMs` they are aborted. A client that then leaves data
   * unread for `UNREAD_MS` loses its connection.
   */
  async close(graceMs: number): Promise<void> {
    this.#closing = true
    for (const end of this.#watchers) end()
    if (this.#runs.size === 0) return
    const empty = new Promise<void>((resolve) => (this.#empty = resolve))
    const timer = setTimeout(() => {
      for (const controller of this.#runs) controller.abort()
    }, graceMs)
    await empty
    clearTimeout(timer)
  }
}

// Writes a stream of server-sent events or JSON lines: frames in order, no faster than the client reads.

/** One event. `data` is written as JSON, but a string as it is (`[DONE]`). */
export interface Frame {
  readonly event?: string
  readonly data: unknown
}

/** Milliseconds that an aborted stream waits for a client that does not read. */
const UNREAD_MS = 2000

export class EventWriter {
  #last: Promise<void> = Promise.resolve()

  /**
   * @param headers called once when the stream begins; returns headers to send besides the stream's own
   * @param lines true: JSON lines instead of server-sent events
   * @param aborted once aborted, a client that leaves data unread for `UNREAD_MS` is disconnected
   * @param replay keeps a copy of all that is written
   */
  constructor(
    private readonly response: ServerResponse,
    private readonly headers: () => OutgoingHttpHeaders,
    private readonly lines = false,
    private readonly aborted?: AbortSignal,
    private readonly replay: Replay | null = null,
  ) {}

  /** Makes a writer for a stream that belongs to no answer, such as a stream of changes. */
  static over(reply: FastifyReply): EventWriter {
    reply.hijack()
    return new EventWriter(reply.raw, () => reply.getHeaders() as OutgoingHttpHeaders)
  }

  /** Whether the status line is sent. From then on errors can only be reported inside the stream. */
  get begun(): boolean {
    return this.response.headersSent
  }

  begin(): void {
    if (this.begun || this.response.destroyed) return
    this.response.writeHead(200, {
      ...this.headers(),
      'content-type': this.lines ? 'application/x-ndjson' : 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache, no-transform',
      connection: 'keep-alive',
      'x-accel-buffering': 'no',
    })
    this.response.flushHeaders()
  }

  /** Resolves when the client has room for more, or is gone. Calls are sent in order. */
  write(frames: readonly Frame[]): Promise<void> {
    return frames.length === 0 ? this.#last : this.#send(frames.map(this.lines ? line : text).join(''))
  }

  /** Sends an SSE comment, which clients ignore, so that proxies do not close the connection as idle. */
  ping(): Promise<void> {
    return this.#send(': ping\n\n')
  }

  /** Sends bytes of a kept stream unchanged. */
  again(chunk: Buffer): Promise<void> {
    return this.#send(chunk)
  }

  async end(): Promise<void> {
    await this.#last
    this.response.end()
  }

  #send(chunk: string | Buffer): Promise<void> {
    this.begin()
    if (typeof chunk === 'string') this.replay?.append(chunk)
    return (this.#last = this.#last.then(() => this.#put(chunk)))
  }

  #put(chunk: string | Buffer): Promise<void> | undefined {
    const { response, aborted } = this
    if (response.destroyed || response.writableEnded || response.write(chunk)) return undefined
    return new Promise((resolve) => {
      let timer: NodeJS.Timeout | undefined
      const hurry = () => {
        timer = setTimeout(() => response.destroy(), UNREAD_MS)
      }
      const done = () => {
        clearTimeout(timer)
        aborted?.removeEventListener('abort', hurry)
        response.off('drain', done).off('close', done)
        resolve()
      }
      response.once('drain', done).once('close', done)
      if (aborted?.aborted === true) hurry()
      else aborted?.addEventListener('abort', hurry)
    })
  }
}

function text({ event, data }: Frame): string {
  const body = typeof data === 'string' ? data : writeJson(data)
  return `${event === undefined ? '' : `event: ${event}\n`}data: ${body}\n\n`
}

const line = ({ data }: Frame): string => `${writeJson(data)}\n`
