/** Turns an error into the status, code and message for clients. Each dialect puts these into its own JSON. */
import type { FastifyError } from 'fastify'
import { type ErrorCode, KvfoldError, type PromptSize, PromptTooLong } from '../core/errors.js'
import { BrokenAnswer, waitAskedBy } from '../engine/elsewhere.js'
import { Overloaded } from './ask.js'
import { RateLimited } from './keys.js'

export interface Problem {
  readonly status: number
  readonly code: ErrorCode
  readonly message: string
  /** The request field that caused the error, as a client would write it. */
  readonly param: string | null
  /** The token count of a prompt that is too long, and the context's; null when unknown. */
  readonly size: PromptSize | null
  /** Seconds after which the client may try again; null if a retry would fail again. */
  readonly retryAfter: number | null
  /** The text so far of an answer that failed midway; null if none had begun. The thread does not keep it. */
  readonly said: string | null
  /** True: an internal error. The client gets a general message, and the log has the details. */
  readonly unexpected: boolean
}

/** Defaults of the optional fields of a `Problem`. */
export const PLAIN = { param: null, size: null, said: null, retryAfter: null, unexpected: false } as const

/** Seconds after which a client should try again when this server, its database or an engine is away. */
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
  // An engine behind this server may ask for a wait; the client gets the same number of seconds.
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

// Errors about one field of a request, which the error bodies name as `param`.

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

/** Makes the error for a field whose feature this server does not have. */
export const unsupported = (param: string, message: string): FieldError => new FieldError(param, message, 'server/unsupported')
