/** Defines what all routes share: the app, the ports to the server, and the schemas of answers in the OpenAPI document. */
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

/** A Fastify instance that takes types from its routes' schemas. */
export type App = FastifyInstance<RawServerDefault, IncomingMessage, ServerResponse, FastifyBaseLogger, TypeBoxTypeProvider>

/** Downloads a model of the hub into the folder of models. @throws KvfoldError as `pull` of the models */
export type PullModel = (
  name: string,
  options: { readonly signal: AbortSignal; readonly onProgress: (progress: PullProgress) => void },
) => Promise<unknown>

export interface Ports {
  readonly service: ThreadService
  /** Sampling settings for requests that leave them out. */
  readonly sampling: Sampling
  /** The software that computes the answers. OpenAI's API calls this field `system_fingerprint`. */
  readonly fingerprint: string
  /** What happens to parts of messages that are not text. Tool results do not follow it. */
  readonly unsupportedParts: UnsupportedParts
  /** Downloads a model of the hub into the folder of models; null when the server serves no such folder. */
  readonly pull: PullModel | null
  /**
   * Refuses a change of the server that concerns all keys, unless the key is named admin. Without keys nothing is refused.
   * @throws KvfoldError server/forbidden
   */
  readonly refuseGuests: (tenant: Tenant, what: string) => void
  /** Begins a request that asks a model or waits for other slow work. @throws KvfoldError server/closing */
  readonly exchange: (request: FastifyRequest, reply: FastifyReply) => RequestRun
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The tenant of the request's key. */
    tenant: Tenant
    /** Token counts and times of a request that asks a model. */
    figures: Figures | null
    /** Why the request was refused or its stream failed: a code of the error table. */
    refused: string | null
  }
  interface FastifyContextConfig {
    /** True: the route answers without a key, and also while the server closes. */
    open?: boolean
    /** True: a GET that has an effect, such as loading a model. Pages of other origins cannot send it to a server without keys. */
    acts?: boolean
  }
}

/** Returns a signal that is aborted when the client leaves, for requests that are no `exchange`. */
export function whileConnected({ raw }: FastifyReply): AbortSignal {
  const leaving = new AbortController()
  raw.once('close', () => {
    leaving.abort()
  })
  if (raw.destroyed) leaving.abort()
  return leaving.signal
}

/** The name of the key that may see figures of all tenants, and set what applies to all. */
export const ADMIN = 'admin'

// Answers are written by hand, so these schemas only describe them and filter nothing.

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

/** Describes a route in the OpenAPI document: what it does, and the API that it belongs to. */
export const described = (summary: string, api: string) => ({ summary, tags: [api], response: { 200: ANSWER, ...ERRORS } })
