/** HTTP requests without a time limit for the answer. */
import { type IncomingMessage, request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'

/** `CONNECT`: the most milliseconds for connecting. `KEEP_ALIVE`: milliseconds of silence before TCP keep-alive probes begin. */
const CONNECT = 10_000
const KEEP_ALIVE = 60_000

export type PatientRequest = RequestInit & { readonly body?: string | null }

/**
 * Like `fetch` without redirects, but waits for the answer without a time limit; `fetch` gives up after five minutes without a byte. Opens
 * a new connection per request: a server may close a kept one just when a call is sent, and a call must not be sent twice.
 */
export async function patientFetch(
  input: string | URL,
  { method = 'GET', headers, body, signal }: PatientRequest,
): Promise<Response> {
  const url = new URL(input)
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    const request = (url.protocol === 'https:' ? httpsRequest : httpRequest)(url, {
      method,
      agent: false,
      headers: { 'user-agent': 'kvfold', ...Object.fromEntries(new Headers(headers)), 'accept-encoding': 'identity' },
      ...(signal == null ? {} : { signal }),
    })
    const timer = setTimeout(() => {
      if (request.socket?.connecting !== false) request.destroy(new Error(`no connection within ${CONNECT / 1000} s`))
    }, CONNECT)
    request.setSocketKeepAlive(true, KEEP_ALIVE)
    request.on('close', () => {
      clearTimeout(timer)
    })
    request.on('error', (cause) => {
      reject(signal?.aborted === true ? (signal.reason as Error) : new TypeError('fetch failed', { cause }))
    })
    request.on('response', resolve)
    request.end(body ?? undefined)
  })
  const { statusCode: status = 0, statusMessage: statusText = '', headersDistinct } = response
  const given = new Headers()
  for (const [name, values = []] of Object.entries(headersDistinct)) for (const value of values) given.append(name, value)
  const isEmpty = status === 204 || status === 205 || status === 304
  if (isEmpty) response.resume()
  return new Response(isEmpty ? null : response, { headers: given, status, statusText })
}
