/** Turns an endpoint's refusals and connection failures into errors of kvfold. */
import { errorTable, KvfoldError, type ErrorCode } from '../../runtime/core/errors.js'
import { fieldOf, isRecord, numberAt, textAt } from '../../runtime/core/json.js'

/** An endpoint's answer with an error status. */
export interface EndpointRefusal {
  readonly status: number
  /** The body; long bodies are cut. */
  readonly text: string
  /** Seconds to wait before a retry; null if the endpoint does not say. */
  readonly retryAfter: number | null
}

/** The most characters of an endpoint's error text that our own message repeats. */
const LONGEST_QUOTE = 400

/** Matches the error texts for a prompt that is too long. vLLM, SGLang and OpenAI have only such words and a general code for it. */
const TOO_LONG = /context[ _-]?(length|size|window)|exceed_context_size|maximum context|longer than the model|too many tokens/i

/** Returns the error for an answer with an error status. `where`: the endpoint's name, for the message. */
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

/** Whether the engine is at fault and not the request, so that another engine may succeed. */
export const isTheirs = ({ code }: KvfoldError): boolean => THEIRS.has(code)

/** Whether the engine seems to have stopped, or to have restarted with another model or key. */
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

/** Returns the error for an error event inside a stream. Reads the formats of vLLM, SGLang, llama-server, OpenAI and kvfold. */
export function streamedError(error: unknown, where: string): KvfoldError {
  const code = textAt(error, 'code')
  // kvfold sends its own error codes, except where OpenAI has a code for the same error.
  const own = code === 'context_length_exceeded' ? 'context/full' : code
  const known = own !== null && own in errorTable ? errorTable[own as ErrorCode] : null
  const status = numberAt(error, 'code') ?? numberAt(error, 'status') ?? known
  const valid = status !== null && status >= 400 && status < 600 ? status : 500
  return errorOf({ status: valid, text: JSON.stringify({ error }), retryAfter: null }, where)
}

/** Returns the error for a failed connection. `answering`: the answer had already begun. */
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

/**
 * Returns the seconds that a Retry-After header asks for. The header may hold seconds or a date; null if it holds neither. `now`: Unix time
 * in milliseconds.
 */
export function retryAfter(header: string | undefined, now: number): number | null {
  if (header === undefined) return null
  if (/^\d+(\.\d+)?$/.test(header.trim())) return Number(header)
  const date = Date.parse(header)
  return Number.isNaN(date) ? null : Math.max(0, Math.ceil((date - now) / 1000))
}

/** Returns an endpoint's error text in one line, without the usual JSON around it. */
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
