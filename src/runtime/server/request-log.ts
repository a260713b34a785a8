/** Logs each request as one line: JSON for programs, or text for people. The log never holds text of requests or answers. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { LogController } from 'fastify'
import { KvfoldError } from '../core/errors.js'
import { count, duration } from '../figures/numbers.js'
import { PUBLIC, type AnyAnswer, type AskEvent } from './ask.js'

export type LogFormat = 'json' | 'text'

/** Token counts and times of a request to a model, summed over its answers. */
export class Figures {
  readonly #begun = performance.now()
  #first: number | null = null
  #last = 0
  #told: Readonly<Record<string, unknown>> = {}
  readonly #sums = { prompt: 0, cached: 0, generated: 0, saved: 0 }
  #answers = 0

  note(event: AskEvent): void {
    if (event.type === 'started') this.#told = { model: event.model, thread: event.thread }
    if (event.type !== 'tokens') return
    this.#last = performance.now()
    this.#first ??= this.#last
  }

  answered({ usage }: Pick<AnyAnswer, 'usage'>): void {
    this.#answers++
    const sums = this.#sums
    sums.prompt += usage.promptTokens
    sums.cached += usage.cachedTokens
    sums.generated += usage.completionTokens
    sums.saved += usage.saved?.tokens ?? 0
  }

  aside(model: string, tokens: number): void {
    this.#answers++
    this.#told = { model }
    this.#sums.prompt += tokens
  }

  /**
   * Fields for the log line. `ttft`: milliseconds from the request to its first token. `rate`: tokens per second, without the first token
   * of each answer.
   */
  get fields(): Readonly<Record<string, unknown>> {
    const first = this.#first
    // An answer's first token belongs to its prefill, so the rate does not count it.
    const later = this.#sums.generated - this.#answers
    const seconds = first === null ? 0 : (this.#last - first) / 1000
    return {
      ...this.#told,
      ...(this.#answers > 0 ? this.#sums : {}),
      ...(first === null ? {} : { ttft: tenth(first - this.#begun) }),
      ...(seconds > 0 && later > 0 ? { rate: tenth(later / seconds) } : {}),
    }
  }
}

const tenth = (value: number): number => Math.round(value * 10) / 10

/**
 * Writes the log line of an ended request. Successful reads without effect (health, status, metrics, the dashboard's polling) are logged at
 * `debug`.
 */
export function logRequest(request: FastifyRequest, status: number, milliseconds: number): void {
  const { method, tenant, figures, refused } = request
  const quiet = (method === 'GET' || method === 'HEAD' || method === 'OPTIONS') && status < 400
  request.log[status >= 500 ? 'warn' : quiet ? 'debug' : 'info'](
    {
      ...{ method, path: pathOf(request), status, ms: tenth(milliseconds), ip: request.ip },
      ...(tenant === '' ? {} : { key: tenant }),
      ...figures?.fields,
      ...(refused === null ? {} : { refused }),
    },
    'request',
  )
}

const pathOf = ({ url }: FastifyRequest): string => url.split('?')[0]?.slice(0, 200) ?? ''

/** Fastify's log control: one line per request, written at its end. */
export class RequestLog extends LogController {
  constructor() {
    super({ requestIdLogLabel: 'request' })
  }

  override incomingRequest(): void {
    // `logRequest` writes the line at the end of the request.
  }

  override requestCompleted(_error: Error | null | undefined, request: FastifyRequest, reply: FastifyReply): void {
    logRequest(request, reply.statusCode, reply.elapsedTime)
  }
}

export function logStream(
  write: (line: string) => void = (line) => process.stderr.write(line),
  format: LogFormat = 'json',
): { write: (line: string) => void } {
  if (format === 'json') return { write }
  return {
    write: (line) => {
      write(`${textOf(line)}\n`)
    },
  }
}

const LEVELS: Readonly<Record<number, string>> = { 10: 'trace', 20: 'debug', 40: 'warning', 50: 'error', 60: 'fatal' }

/** Turns a log line from JSON into text for people. */
function textOf(line: string): string {
  const { time, level, msg, err, ...rest } = JSON.parse(line) as RequestLine
  const clock = new Date(time).toTimeString().slice(0, 8)
  if (msg === 'request') return [clock, ...requestText(rest)].join('  ')
  const said = [LEVELS[level], msg, rest.request, err?.message].filter((part) => part !== undefined)
  return [clock, ...said].join('  ') + (err?.stack === undefined || err.stack === '' ? '' : `\n${err.stack}`)
}

function requestText(told: Omit<RequestLine, 'time' | 'level'>): readonly string[] {
  const {
    status,
    method,
    path,
    ms = 0,
    key,
    model,
    thread,
    prompt = 0,
    cached = 0,
    generated,
    ttft,
    rate,
    saved = 0,
    refused,
  } = told
  return [
    `${status} ${method} ${path}`,
    duration(ms),
    ...(key === undefined || key === PUBLIC ? [] : [`key ${key}`]),
    ...(model === undefined ? [] : [model]),
    ...(thread === undefined ? [] : [thread]),
    ...(prompt === 0 ? [] : [`${count(prompt)} prompt${cached === 0 ? '' : ` (${count(cached)} cached)`}`]),
    ...(generated === undefined || generated === 0 ? [] : [`${count(generated)} generated`]),
    ...(ttft === undefined ? [] : [`first after ${duration(ttft)}`]),
    ...(rate === undefined ? [] : [`${rate} tokens/s`]),
    ...(saved === 0 ? [] : [`saved ${count(saved)}`]),
    ...(refused === undefined ? [] : [refused]),
  ]
}

interface RequestLine {
  readonly time: number
  readonly level: number
  readonly msg?: string
  readonly request?: string
  readonly err?: { readonly message?: string; readonly stack?: string }
  readonly status?: number
  readonly method?: string
  readonly path?: string
  readonly ms?: number
  readonly key?: string
  readonly model?: string
  readonly thread?: string
  readonly prompt?: number
  readonly cached?: number
  readonly generated?: number
  readonly ttft?: number
  readonly rate?: number
  readonly saved?: number
  readonly refused?: string
}

/**
 * Returns an error as logs show it. A message for clients may quote the request, so only its code is logged. Unexpected errors are logged
 * with message and stack.
 */
export function errorForLogs(error: Error): { type: string; message: string; stack: string } {
  if (error instanceof KvfoldError) return { type: error.name, message: error.code, stack: '' }
  if ('statusCode' in error && Number(error.statusCode) < 500)
    return { type: error.name, message: String((error as { code?: unknown }).code), stack: '' }
  return { type: error.name, message: error.message, stack: error.stack ?? '' }
}
