/** Owns API keys: which tenant a request belongs to, and how much it may ask. */
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
  /** Of all keys of the name together. Default: the server's. */
  readonly limit?: RateLimit
}

/** A minute; what is not said is not limited. */
export interface RateLimit {
  /** Requests that a model is asked by. */
  readonly requests?: number
  /** Tokens computed and generated: those of prompts that were cached do not count. */
  readonly tokens?: number
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

/**
 * Keys in a file: `name:key` a line, or `key` alone, and behind it what it may ask a minute (`requests=60 tokens=100000`); empty lines and lines that
 * begin with # do not count. @throws KvfoldError cli/bad-usage
 */
export function parseKeys(text: string): ApiKey[] {
  return text
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => {
      const [, whole = line, limits = ''] = /^(.*?\S)\s+((?:requests|tokens)=.*)$/.exec(line) ?? []
      const at = whole.indexOf(':')
      const key = at < 0 ? unnamed(whole) : { name: whole.slice(0, at).trim(), key: whole.slice(at + 1).trim() }
      return limits === '' ? key : { ...key, limit: parseLimit(limits) }
    })
}

/** `requests=60 tokens=100000`, one of them or both, with blanks or commas between. @throws KvfoldError cli/bad-usage */
export function parseLimit(text: string): RateLimit {
  const limit: { requests?: number; tokens?: number } = {}
  for (const part of text.split(/[\s,]+/).filter((each) => each !== '')) {
    const [, what, amount] = /^(requests|tokens)=([1-9]\d{0,11})$/.exec(part) ?? []
    if ((what !== 'requests' && what !== 'tokens') || limit[what] !== undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `${JSON.stringify(part)} is no limit; write requests=60, tokens=100000 or both, each a whole number a minute.`,
      )
    limit[what] = Number(amount)
  }
  return limit
}

const digest = (key: string): Buffer => createHash('sha256').update(key).digest()

// How much the keys of a name may ask.

/** It is asked too often, or for too much (code server/rate-limited). */
export class RateLimited extends KvfoldError {
  constructor(
    message: string,
    /** Whole seconds, at least 1, after which there is room again. */
    readonly retryAfter: number,
  ) {
    super('server/rate-limited', message)
  }
}

const MINUTE = 60_000
/** What can be limited, in the order in which it is looked at. */
const LIMITED = ['requests', 'tokens'] as const

/** What OpenAI's clients are told of it by. */
export const RATE_HEADERS = LIMITED.flatMap((what) =>
  ['limit', 'remaining', 'reset'].map((each) => `x-ratelimit-${each}-${what}`),
)

/** What is left of a limit: it fills up evenly, to the limit of one minute at most. Below nothing where more was spent than there was. */
class Allowance {
  #left: number
  #at: number

  constructor(
    readonly limit: number,
    private readonly clock: () => number,
  ) {
    this.#left = limit
    this.#at = clock()
  }

  get left(): number {
    const now = this.clock()
    this.#left = Math.min(this.limit, this.#left + ((now - this.#at) * this.limit) / MINUTE)
    this.#at = now
    return this.#left
  }

  spend(amount: number): void {
    this.#left = this.left - amount
  }

  /** Milliseconds until so much is left. */
  until(amount: number): number {
    return Math.max(0, ((amount - this.left) * MINUTE) / this.limit)
  }
}

type Allowances = Readonly<Partial<Record<keyof RateLimit, Allowance>>>

export class RateLimits {
  readonly #own = new Map<string, RateLimit>()
  readonly #allowances = new Map<string, Allowances>()

  /**
   * @param usual of names that have no limit of their own
   * @param clock milliseconds
   * @throws KvfoldError cli/bad-usage where two keys of a name say different things
   */
  constructor(
    keys: readonly ApiKey[],
    private readonly usual: RateLimit = {},
    private readonly clock: () => number = () => performance.now(),
  ) {
    for (const { name, limit } of keys) {
      if (limit === undefined) continue
      const before = this.#own.get(name) ?? limit
      if (before.requests !== limit.requests || before.tokens !== limit.tokens)
        throw new KvfoldError('cli/bad-usage', `Keys of ${name} have different limits; they share one, so say it once.`)
      this.#own.set(name, limit)
    }
  }

  /**
   * Counts a request that asks a model; its tokens are to be told when they are known.
   * @throws RateLimited where nothing is left
   */
  take(name: string): { readonly spend: (tokens: number) => void } {
    const allowances = this.#of(name)
    for (const what of LIMITED) {
      const allowance = allowances[what]
      if (allowance === undefined || allowance.left >= 1) continue
      const seconds = Math.max(1, Math.ceil(allowance.until(1) / 1000))
      throw new RateLimited(
        `The key's limit of ${allowance.limit} ${what} a minute is reached; try again in ${seconds} s.`,
        seconds,
      )
    }
    allowances.requests?.spend(1)
    return { spend: (tokens) => allowances.tokens?.spend(tokens) }
  }

  /** What is left, in OpenAI's words and in Anthropic's; none where nothing is limited. */
  headers(name: string): Readonly<Record<string, string>> {
    return Object.fromEntries(
      Object.entries(this.#of(name)).flatMap(([what, allowance]) => {
        const left = String(Math.max(0, Math.floor(allowance.left)))
        const until = allowance.until(allowance.limit)
        return [
          [`x-ratelimit-limit-${what}`, String(allowance.limit)],
          [`x-ratelimit-remaining-${what}`, left],
          [`x-ratelimit-reset-${what}`, `${Math.ceil(until)}ms`],
          [`anthropic-ratelimit-${what}-limit`, String(allowance.limit)],
          [`anthropic-ratelimit-${what}-remaining`, left],
          [`anthropic-ratelimit-${what}-reset`, new Date(Date.now() + until).toISOString().replace(/\.\d+Z$/, 'Z')],
        ]
      }),
    )
  }

  #of(name: string): Allowances {
    const known = this.#allowances.get(name)
    if (known !== undefined) return known
    const { requests, tokens } = this.#own.get(name) ?? this.usual
    const allowances = {
      ...(requests === undefined ? {} : { requests: new Allowance(requests, this.clock) }),
      ...(tokens === undefined ? {} : { tokens: new Allowance(tokens, this.clock) }),
    }
    this.#allowances.set(name, allowances)
    return allowances
  }
}

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
