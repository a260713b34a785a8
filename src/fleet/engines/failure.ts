/** Turns an endpoint's refusals and a connection's failures into kvfold's own errors. */
import { errorTable, KvfoldError, type ErrorCode } from '../../runtime/core/errors.js'
import { fieldOf, isRecord, numberAt, textAt } from '../../runtime/core/json.js'

/** The answer of an endpoint that refused a request. */
export interface EndpointRefusal {
  readonly status: number
  /** The body, as far as it was read. */
  readonly text: string
  /** Seconds to wait; null if the endpoint does not say. */
  readonly retryAfter: number | null
}

/** The most characters of an endpoint's own words that we repeat. */
const LONGEST_QUOTE = 400

/** The words by which engines say that a prompt is too long. vLLM, SGLang and OpenAI tell this error only by such words and a code. */
const TOO_LONG = /context[ _-]?(length|size|window)|exceed_context_size|maximum context|longer than the model|too many tokens/i

/** Returns the error for an answer with another status than 200. `where`: the endpoint's name in messages. */
export function errorOf(refusal: EndpointRefusal, where: string): KvfoldError {
  const { status, text, retryAfter } = refusal
  const said = quote(text)
  const again = retryAfter === null ? '' : ` It asks clients to wait ${retryAfter} s.`
  const build = (code: ErrorCode, message: string) => new KvfoldError(code, message, { cause: refusal })
  if ((status === 400 || status === 413 || status === 422) && TOO_LONG.test(text))
    return build('context/full', `The prompt does not fit into the context of ${where}: ${said}`)
  if (status === 401 || status === 403)
    return build(
      'remote/unauthorized',
      `${where} does not accept the key (${status}): ${said} Give it with --engine-key-env or --engine-key-file.`,
    )
  if (status === 404) return build('model/not-found', `${where} knows no such model or path (404): ${said}`)
  if (status === 408 || status === 504) return build('remote/timeout', `${where} stopped waiting (${status}): ${said}`)
  if (status === 429) return build('remote/rate-limited', `${where} has had too many requests: ${said}${again}`)
  if (status === 503) return build('remote/overloaded', `${where} takes no requests now: ${said}${again}`)
  if (status >= 500) return build('remote/failed', `${where} failed (${status}): ${said}`)
  if (status >= 400) return build('remote/refused', `${where} refused the request (${status}): ${said}`)
  return build(
    'remote/bad-answer',
    `${where} answered with status ${status}, which is not an answer to a chat; check its address.`,
  )
}

/** Whether the fault is the engine's and not the request's. Then another engine may be tried. */
export const isTheirs = ({ code }: KvfoldError): boolean => THEIRS.has(code)

/** Whether the error suggests that the engine is gone, or came back with another model or key. */
export const isGone = ({ code }: KvfoldError): boolean => GONE.has(code)

const GONE: ReadonlySet<ErrorCode> = new Set([
  'remote/unreachable',
  'remote/broken-stream',
  'remote/timeout',
  'model/not-found',
  'remote/unauthorized',
])

const THEIRS: ReadonlySet<ErrorCode> = new Set([
  'remote/unreachable',
  'remote/broken-stream',
  'remote/timeout',
  'remote/failed',
  'remote/overloaded',
  'remote/rate-limited',
  'remote/unauthorized',
  'remote/bad-answer',
  'model/not-found',
])

/** Returns the error for an error event in the middle of a stream, in the forms of vLLM, SGLang, llama-server, OpenAI and kvfold. */
export function streamedError(error: unknown, where: string): KvfoldError {
  const code = textAt(error, 'code')
  // kvfold sends its own error code if OpenAI has none for it.
  const own = code === 'context_length_exceeded' ? 'context/full' : code
  const known = own !== null && own in errorTable ? errorTable[own as ErrorCode] : null
  const status = numberAt(error, 'code') ?? numberAt(error, 'status') ?? known
  const valid = status !== null && status >= 400 && status < 600 ? status : 500
  return errorOf({ status: valid, text: JSON.stringify({ error }), retryAfter: null }, where)
}

/** Returns the error for a failure of the connection itself. `answering`: the answer had begun. */
export function connectionError(error: unknown, where: string, answering: boolean): KvfoldError {
  if (error instanceof KvfoldError) return error
  const code = textAt(error, 'code') ?? (error instanceof Error ? error.message : String(error))
  const cause = { cause: error }
  if (answering) return new KvfoldError('remote/broken-stream', `The answer of ${where} broke off (${code}).`, cause)
  const hint = REASONS[code] ?? 'check that it runs, and its address.'
  return new KvfoldError('remote/unreachable', `${where} cannot be reached (${code}): ${hint}`, cause)
}

const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens there; start the engine, or correct --engine.',
  ECONNRESET: 'the connection was cut; ask again.',
  EPIPE: 'the connection was cut; ask again.',
  ENOTFOUND: 'there is no such host; check the address.',
  EAI_AGAIN: 'the name of the host cannot be looked up now.',
  EPROTO: 'it does not speak TLS there; use http:// instead of https://.',
  DEPTH_ZERO_SELF_SIGNED_CERT: 'its certificate is self-signed; name it in NODE_EXTRA_CA_CERTS.',
  SELF_SIGNED_CERT_IN_CHAIN: 'its certificate authority is unknown; name it in NODE_EXTRA_CA_CERTS.',
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: 'its certificate authority is unknown; name it in NODE_EXTRA_CA_CERTS.',
}

/** Returns the seconds of a Retry-After header, which may be a number or a date. */
export function retryAfter(header: string | undefined, now: number): number | null {
  if (header === undefined) return null
  if (/^\d+(\.\d+)?$/.test(header.trim())) return Number(header)
  const date = Date.parse(header)
  return Number.isNaN(date) ? null : Math.max(0, Math.ceil((date - now) / 1000))
}

/** Returns the endpoint's words in one line, without their usual JSON wrapping. */
function quote(text: string): string {
  const words = messageIn(text) ?? text
  const line = words.replace(/\s+/g, ' ').trim()
  if (line === '') return 'it gives no reason.'
  return line.length > LONGEST_QUOTE ? `${line.slice(0, LONGEST_QUOTE)}...` : /[.!?]$/.test(line) ? line : `${line}.`
}

function messageIn(text: string): string | null {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    return null
  }
  const error = fieldOf(body, 'error') ?? body
  if (typeof error === 'string') return error
  return textAt(error, 'message') ?? textAt(body, 'detail') ?? (isRecord(error) ? JSON.stringify(error) : null)
}
