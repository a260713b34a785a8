/** Owns errors as Anthropic's clients read them. */
import type { Problem } from '../../problem.js'

export interface AnthropicError {
  readonly type: 'error'
  readonly error: { readonly type: string; readonly message: string }
  readonly request_id: string
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

export function anthropicError({ status, message, code }: Problem, requestId: string): AnthropicError {
  const type = TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error')
  return { type: 'error', error: { type, message: `${message} [${code}]` }, request_id: requestId }
}
