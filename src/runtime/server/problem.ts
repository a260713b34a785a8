/** Translates an error into its status, code and sentence for clients. The dialects only put these into their own form. */
import type { FastifyError } from 'fastify'
import { type ErrorCode, KvfoldError, type PromptSize, PromptTooLong } from '../core/errors.js'
import { BrokenAnswer, waitAskedBy } from '../engine/elsewhere.js'
import { Overloaded } from './ask.js'
import { RateLimited } from './keys.js'

export interface Problem {
  readonly status: number
  readonly code: ErrorCode
  readonly message: string
  /** The field of the request that caused the error. */
  readonly param: string | null
  /** The size of a prompt that is too long; null when unknown. */
  readonly size: PromptSize | null
  /** Seconds after which the client may try again; null when a retry makes no sense. */
  readonly retryAfter: number | null
  /** The text so far of an answer that broke off; null when the answer had not begun. The thread keeps none of it. */
  readonly said: string | null
  /** True: an error that no client was meant to see. Its message is general; the log has the details. */
  readonly unexpected: boolean
}

/** A problem of which nothing more is known. */
export const PLAIN = { param: null, size: null, said: null, retryAfter: null, unexpected: false } as const

/**
 * Seconds after which a client should try again. Until then this server, its database or an engine may be back, or another instance
 * answers.
 */
export const RETRY_AFTER = 5

const AWAY: ReadonlySet<ErrorCode> = new Set(['server/closing', 'store/unreachable', 'remote/unreachable', 'remote/no-engine'])

export function problemOf(error: unknown): Problem {
  if (error instanceof KvfoldError) {
    const { code, status, message } = error
    const param = error instanceof FieldError ? error.param : null
    const size = error instanceof PromptTooLong ? error.size : null
    const said = error instanceof BrokenAnswer ? error.said.content : null
    return { status, code, message, param, size, said, retryAfter: retryAfterOf(error), unexpected: false }
  }
  const status = isFastifyError(error) ? (error.statusCode ?? 500) : 500
  if (isFastifyError(error) && status < 500) return fromFastify(error, status)
  const message = "The server failed; its log has the error beside this request's id."
  return { ...PLAIN, status: 500, code: 'internal/invariant', message, unexpected: true }
}

function retryAfterOf(error: KvfoldError): number | null {
  if (error instanceof Overloaded || error instanceof RateLimited) return error.retryAfter
  if (AWAY.has(error.code)) return RETRY_AFTER
  if (error.code !== 'remote/rate-limited' && error.code !== 'remote/overloaded') return null
  // An engine behind this server may ask for a wait, which is passed on to the client.
  const asked = waitAskedBy(error)
  return asked === null ? null : Math.ceil(asked)
}

function fromFastify(error: FastifyError, status: number): Problem {
  const message = `${error.message.replace(/\.$/, '')}.`
  const plain = { ...PLAIN, status, message }
  switch (status) {
    case 404:
      return { ...plain, code: 'server/not-found' }
    case 413:
      return { ...plain, code: 'server/too-large', message: 'The body is longer than this server takes; see --body-limit.' }
    case 415:
      return {
        ...plain,
        code: 'server/bad-media-type',
        message: 'The content type cannot be read; send the body as content-type: application/json.',
      }
    default:
      return { ...plain, code: 'server/bad-request' }
  }
}

const isFastifyError = (error: unknown): error is FastifyError => error instanceof Error && 'statusCode' in error

// Errors caused by one field of a request, which every dialect calls `param`.

export class FieldError extends KvfoldError {
  /** @param param the field as a client would write it, e.g. `messages[2].content` */
  constructor(
    readonly param: string,
    message: string,
    code: Extract<
      ErrorCode,
      'server/bad-request' | 'server/unsupported' | 'server/not-found' | 'model/not-found'
    > = 'server/bad-request',
  ) {
    super(code, message)
  }
}

/** Makes the error for a field that asks for something this server does not do. */
export const unsupported = (param: string, message: string): FieldError => new FieldError(param, message, 'server/unsupported')
