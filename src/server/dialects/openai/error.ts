/** Owns errors as OpenAI's clients read them. */
import type { Problem } from '../../problem.js'

export interface OpenAiError {
  readonly error: { readonly message: string; readonly type: string; readonly param: string | null; readonly code: string }
}

/** Codes that OpenAI has a name of its own for, which clients look for. */
const CODES: Readonly<Partial<Record<Problem['code'], string>>> = {
  'context/full': 'context_length_exceeded',
  'model/not-found': 'model_not_found',
  'server/unauthorized': 'invalid_api_key',
}

export function openAiError({ status, code, message, param }: Problem): OpenAiError {
  return { error: { message, type: typeOf(status), param, code: CODES[code] ?? code } }
}

function typeOf(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 429) return 'rate_limit_error'
  if (status === 501) return 'not_implemented_error'
  if (status === 503) return 'service_unavailable_error'
  return status < 500 ? 'invalid_request_error' : 'server_error'
}
