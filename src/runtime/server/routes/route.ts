/** Owns what every route needs: the app, the server around it, and what the OpenAPI document says of its answers. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest, RawServerDefault } from 'fastify'
import Type from 'typebox'
import type { Sampling } from '../../engine/engine.js'
import type { Service, Tenant, UnsupportedParts } from '../ask.js'
import type { Exchange } from '../request-lifecycle.js'
import type { Figures } from '../request-log.js'

/** A Fastify instance that knows the types of what its schemas let through. */
export type App = FastifyInstance<RawServerDefault, IncomingMessage, ServerResponse, FastifyBaseLogger, TypeBoxTypeProvider>

export interface Ports {
  readonly service: Service
  /** Of requests that do not say. */
  readonly sampling: Sampling
  /** Of messages that are no tool results. */
  readonly unsupportedParts: UnsupportedParts
  /** @throws KvfoldError server/closing */
  readonly exchange: (request: FastifyRequest, reply: FastifyReply) => Exchange
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Whose key the request carries. */
    tenant: Tenant
    /** What it came to, of one that asks a model. */
    figures: Figures | null
    /** Why it was refused, or its stream failed: a code of the error table. */
    refused: string | null
  }
  interface FastifyContextConfig {
    /** Answered without a key, and while the server closes. */
    open?: boolean
  }
}

// Answers are written by hand, so these schemas describe and filter nothing.

export const ANSWER = Type.Unsafe<unknown>({
  type: 'object',
  additionalProperties: true,
  description: 'As the dialect has it; with stream: true a text/event-stream.',
})

const ERROR = Type.Unsafe<unknown>({
  type: 'object',
  description: 'What went wrong, where, and what to do.',
  properties: {
    error: {
      type: 'object',
      properties: {
        message: { type: 'string' },
        type: { type: 'string' },
        param: { type: ['string', 'null'], description: 'the field it is about' },
        code: { type: 'string' },
      },
    },
  },
})

export const ERRORS = { '4xx': ERROR, '5xx': ERROR } as const
