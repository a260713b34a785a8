/** What all routes share: the app's type, the parts of the server that routes use, and the answer schemas of the OpenAPI document. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest, RawServerDefault } from 'fastify'
import Type from 'typebox'
import type { Sampling } from '../../engine/engine.js'
import type { PullProgress } from '../../models/folder.js'
import type { Tenant, UnsupportedParts } from '../ask.js'
import type { ThreadService } from '../service.js'
import type { RequestRun } from '../request-lifecycle.js'
import type { Figures } from '../request-log.js'

/** A Fastify instance that infers types from its routes' TypeBox schemas. */
export type App = FastifyInstance<RawServerDefault, IncomingMessage, ServerResponse, FastifyBaseLogger, TypeBoxTypeProvider>

/** Downloads a model from the hub into the folder of models. @throws KvfoldError the errors of `pull` in `models/folder.ts` */
export type PullModel = (
  name: string,
  options: { readonly signal: AbortSignal; readonly onProgress: (progress: PullProgress) => void },
) => Promise<unknown>

export interface Ports {
  readonly service: ThreadService
  /** Sampling settings for requests that leave them out. */
  readonly sampling: Sampling
  /** Name and version of the software, for the field `system_fingerprint` of OpenAI's API. */
  readonly fingerprint: string
  /** What happens to message parts that are not text, except in tool results, where they always become a placeholder. */
  readonly unsupportedParts: UnsupportedParts
  /** Downloads a model from the hub; null when the server has no folder of models. */
  readonly pull: PullModel | null
  /**
   * Refuses a change that affects all tenants, unless the request's key is named `admin`. Without keys nothing is refused.
   * @throws KvfoldError server/forbidden
   */
  readonly refuseGuests: (tenant: Tenant, what: string) => void
  /** Begins a request that asks a model or does other slow work. @throws KvfoldError server/closing */
  readonly exchange: (request: FastifyRequest, reply: FastifyReply) => RequestRun
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The tenant of the request's key. */
    tenant: Tenant
    /** Token counts and times of a request to a model; null for other requests. */
    figures: Figures | null
    /** The error code with which the request was refused or its stream failed; else null. */
    refused: string | null
  }
  interface FastifyContextConfig {
    /** True: the route needs no key, and answers while the server closes. */
    open?: boolean
    /** True: this GET has an effect, such as loading a model. A server without keys then refuses it from pages of other origins. */
    acts?: boolean
  }
}

/** Returns a signal that is aborted when the client leaves, for routes without `exchange`. */
export function whileConnected({ raw }: FastifyReply): AbortSignal {
  const leaving = new AbortController()
  raw.once('close', () => {
    leaving.abort()
  })
  if (raw.destroyed) leaving.abort()
  return leaving.signal
}

/** The name of the key that sees figures of all tenants and may change settings for all. */
export const ADMIN = 'admin'

// Answers are not serialized by these schemas. They only describe the answers and filter nothing.

export const ANSWER = Type.Unsafe<unknown>({
  type: 'object',
  additionalProperties: true,
  description: 'The answer in the form of its dialect; with stream: true a text/event-stream.',
})

const ERROR = Type.Unsafe<unknown>({
  type: 'object',
  description: 'The error: its cause, its place, and the remedy.',
  properties: {
    error: {
      type: 'object',
      properties: {
        message: { type: 'string' },
        type: { type: 'string' },
        param: { type: ['string', 'null'], description: 'the field that the error is about' },
        code: { type: 'string' },
      },
    },
  },
})

export const ERRORS = { '4xx': ERROR, '5xx': ERROR } as const

/** Describes a route in the OpenAPI document: a summary, and the API it belongs to. */
export const described = (summary: string, api: string) => ({ summary, tags: [api], response: { 200: ANSWER, ...ERRORS } })
