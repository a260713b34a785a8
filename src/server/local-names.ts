/** Owns which names a server without keys answers to. */
import { isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { KvfoldError } from '../core/errors.js'

/**
 * Without keys, a page in the user's browser whose name was rebound to this machine would be let in; such requests name a host that is not this
 * one.
 *
 * @throws KvfoldError server/forbidden
 */
export function refuseRebound(request: FastifyRequest): void {
  const local = request.socket.localAddress
  if (local === undefined || !isLoopback(local)) return
  const { hostname } = request
  const name = hostname.startsWith('[') ? hostname.slice(1, -1) : hostname
  if (name === '' || name === 'localhost' || name.endsWith('.localhost') || isIP(name) !== 0) return
  throw new KvfoldError(
    'server/forbidden',
    'This server has no keys and answers only to localhost; set --api-key to use another name.',
  )
}

const isLoopback = (address: string): boolean => address === '::1' || /^(::ffff:)?127\./.test(address)
