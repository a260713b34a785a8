/** Owns the answer to a request that failed: the problem in the words of its dialect, and in the log. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { anthropicError } from './dialects/anthropic/error.js'
import { openAiError } from './dialects/openai/wire.js'
import type { Problem } from './problem.js'

export function fail(request: FastifyRequest, reply: FastifyReply, problem: Problem, error: unknown): void {
  const { status, retryAfter } = problem
  request.log[problem.unexpected ? 'error' : 'info']({ err: error }, 'request refused')
  if (reply.raw.destroyed || reply.sent) return
  if (retryAfter !== null) reply.header('retry-after', String(retryAfter))
  if (status === 401) reply.header('www-authenticate', 'Bearer')
  // Both makers' clients ask again after any 5xx unless they are told not to.
  reply.header('x-should-retry', String(retryAfter !== null))
  void reply
    .code(status)
    .type('application/json')
    .send(isAnthropic(request) ? anthropicError(problem, request.id) : openAiError(problem))
}

/** Routes that both makers have (`/v1/models`) answer each in its own words. */
const isAnthropic = ({ url, headers }: FastifyRequest): boolean =>
  url.startsWith('/v1/messages') || headers['anthropic-version'] !== undefined
