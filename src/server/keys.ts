/** Owns API keys: which tenant a request belongs to. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { KvfoldError } from '../core/errors.js'
import { PUBLIC } from './ask.js'

export interface ApiKey {
  /** The tenant. Several keys may have one name. */
  readonly name: string
  readonly key: string
}

/** Longest key that is looked at. */
const LONGEST = 4096

/**
 * Keys are kept as digests, and a presented key is compared with all of them however early one matches, so that the time of an answer tells
 * nothing about them.
 */
export class KeyRing {
  readonly #keys: readonly { readonly name: string; readonly digest: Buffer }[]

  /** @throws KvfoldError cli/bad-usage when a key is empty, or belongs to two names */
  constructor(keys: readonly ApiKey[]) {
    this.#keys = keys.map(({ name, key }) => ({ name, digest: digest(key) }))
    if (keys.some(({ name, key }) => key === '' || name === ''))
      throw new KvfoldError('cli/bad-usage', 'An API key or its name is empty; write name:key.')
    const owners = new Map<string, string>()
    for (const { name, key } of keys) {
      const owner = owners.get(key) ?? name
      if (owner !== name)
        throw new KvfoldError('cli/bad-usage', `The keys of ${owner} and ${name} are the same; give each a key of its own.`)
      owners.set(key, name)
    }
  }

  /** False: anybody may ask. */
  get locked(): boolean {
    return this.#keys.length > 0
  }

  /** The tenant a key belongs to; null for an unknown one. Without keys all requests are of `public`. */
  tenantOf(key: string | null): string | null {
    if (!this.locked) return PUBLIC
    if (key === null || key.length > LONGEST) return null
    const presented = digest(key)
    let found: string | null = null
    for (const { name, digest: known } of this.#keys) if (timingSafeEqual(presented, known)) found = name
    return found
  }
}

/** The key a request carries: `authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it. */
export function keyOf(headers: IncomingHttpHeaders): string | null {
  const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  if (bearer !== undefined) return bearer
  const key = headers['x-api-key']
  return typeof key === 'string' && key !== '' ? key : null
}

/** A key without a name: its tenant is named by its digest, so that it is the same after a restart and tells nothing of the key. */
export const unnamed = (key: string): ApiKey => ({ name: `key-${digest(key).toString('hex').slice(0, 12)}`, key })

/** Keys in a file: `name:key` a line, or `key` alone; empty lines and lines that begin with # do not count. @throws KvfoldError cli/bad-usage */
export function parseKeys(text: string): ApiKey[] {
  return text
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => {
      const at = line.indexOf(':')
      return at < 0 ? unnamed(line) : { name: line.slice(0, at).trim(), key: line.slice(at + 1).trim() }
    })
}

const digest = (key: string): Buffer => createHash('sha256').update(key).digest()

// Which names a server without keys answers to.

/**
 * Without keys, a page in the user's browser whose name was rebound to this machine would be let in; such requests name a host that is not this
 * one. `allowed`: names that do, `*` for all.
 *
 * @throws KvfoldError server/forbidden
 */
export function refuseRebound(request: FastifyRequest, allowed: readonly string[]): void {
  const local = request.socket.localAddress
  if (local === undefined || !isLoopback(local)) return
  const { hostname } = request
  const name = hostname.startsWith('[') ? hostname.slice(1, -1) : hostname
  if (name === '' || name === 'localhost' || name.endsWith('.localhost') || isIP(name) !== 0) return
  if (allowed.some((each) => each === '*' || each.toLowerCase() === name.toLowerCase())) return
  throw new KvfoldError(
    'server/forbidden',
    `This server has no keys and does not answer to the name ${JSON.stringify(name.slice(0, 80))}; start it with --allowed-hosts or --api-key to use it.`,
  )
}

const isLoopback = (address: string): boolean => address === '::1' || /^(::ffff:)?127\./.test(address)
