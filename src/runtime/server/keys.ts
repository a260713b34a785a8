/** API keys: they decide a request's tenant and its rate limit. Also protects servers without keys from web pages. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { KvfoldError } from '../core/errors.js'
import { PUBLIC } from './ask.js'

export interface ApiKey {
  /** The tenant of the key. Several keys may have the same tenant. */
  readonly name: string
  readonly key: string
  /** The limit for all keys of this tenant together. Default: the server's limit. */
  readonly limit?: RateLimit
}

/** Limits per minute; a field left out means no limit. */
export interface RateLimit {
  /** Requests that ask a model. */
  readonly requests?: number
  /** Tokens computed and generated; cached prompt tokens do not count. */
  readonly tokens?: number
}

/** Longer keys are refused without being read. */
const LONGEST = 4096

/** Holds keys as digests. A presented key is compared with every digest, even after a match, so that response times reveal nothing. */
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

  /** Whether requests need a key. */
  get locked(): boolean {
    return this.#keys.length > 0
  }

  /** Returns the tenant of a key; null for an unknown key. Without keys every request belongs to `public`. */
  tenantOf(key: string | null): string | null {
    if (!this.locked) return PUBLIC
    if (key === null || key.length > LONGEST) return null
    const presented = digest(key)
    let found: string | null = null
    for (const { name, digest: known } of this.#keys) if (timingSafeEqual(presented, known)) found = name
    return found
  }
}

/** Returns the key in `authorization: Bearer KEY` or, from Anthropic's clients, in `x-api-key: KEY`. */
export function keyOf(headers: IncomingHttpHeaders): string | null {
  const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  if (bearer !== undefined) return bearer
  const key = headers['x-api-key']
  return typeof key === 'string' && key !== '' ? key : null
}

/**
 * Makes an `ApiKey` of a key without a name. The tenant's name comes from the key's digest, so it survives a restart and does not reveal
 * the key.
 */
export const unnamed = (key: string): ApiKey => ({ name: `key-${digest(key).toString('hex').slice(0, 12)}`, key })

/**
 * Reads the keys of a file. Each line is `name:key` or `key`, optionally with limits per minute (`requests=60 tokens=100000`). Empty
 * lines and lines that begin with # are ignored. @throws KvfoldError cli/bad-usage
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

/** Reads `requests=60 tokens=100000`: either or both, separated by spaces or commas. @throws KvfoldError cli/bad-usage */
export function parseLimit(text: string): RateLimit {
  const limit: { requests?: number; tokens?: number } = {}
  for (const part of text.split(/[\s,]+/).filter((each) => each !== '')) {
    const [, what, amount] = /^(requests|tokens)=([1-9]\d{0,11})$/.exec(part) ?? []
    if ((what !== 'requests' && what !== 'tokens') || limit[what] !== undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `${JSON.stringify(part)} is not a limit; write requests=60, tokens=100000 or both, each a whole number per minute.`,
      )
    limit[what] = Number(amount)
  }
  return limit
}

const digest = (key: string): Buffer => createHash('sha256').update(key).digest()

// Rate limits per tenant.

/** The tenant's limit of requests or tokens is used up (code server/rate-limited). */
export class RateLimited extends KvfoldError {
  constructor(
    message: string,
    /** Whole seconds, at least 1, until the next request may come. */
    readonly retryAfter: number,
  ) {
    super('server/rate-limited', message)
  }
}

const MINUTE = 60_000
/** The limited amounts, in the order of the checks. */
const LIMITED = ['requests', 'tokens'] as const

/** The header names by which OpenAI's clients read limits. */
export const RATE_HEADERS = LIMITED.flatMap((what) =>
  ['limit', 'remaining', 'reset'].map((each) => `x-ratelimit-${each}-${what}`),
)

/**
 * The rest of a limit per minute (token bucket). It refills evenly up to the limit. It becomes negative when a request spends more than
 * is left.
 */
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

  /** Returns the milliseconds until `amount` is left. */
  until(amount: number): number {
    return Math.max(0, ((amount - this.left) * MINUTE) / this.limit)
  }
}

type Allowances = Readonly<Partial<Record<keyof RateLimit, Allowance>>>

export class RateLimits {
  readonly #own = new Map<string, RateLimit>()
  readonly #allowances = new Map<string, Allowances>()

  /**
   * @param usual limit of tenants without their own
   * @param clock returns milliseconds
   * @throws KvfoldError cli/bad-usage when two keys of a tenant have different limits
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
        throw new KvfoldError('cli/bad-usage', `Keys of ${name} have different limits, but share one; give the limit once.`)
      this.#own.set(name, limit)
    }
  }

  /**
   * Counts a request to a model. Call `spend` with its tokens when they are known.
   * @throws RateLimited when the tenant's requests or tokens are used up
   */
  take(name: string): { readonly spend: (tokens: number) => void } {
    const allowances = this.#of(name)
    for (const what of LIMITED) {
      const allowance = allowances[what]
      if (allowance === undefined || allowance.left >= 1) continue
      const seconds = Math.max(1, Math.ceil(allowance.until(1) / 1000))
      throw new RateLimited(
        `The key has used its limit of ${allowance.limit} ${what} per minute; try again in ${seconds} s.`,
        seconds,
      )
    }
    allowances.requests?.spend(1)
    return { spend: (tokens) => allowances.tokens?.spend(tokens) }
  }

  /** Returns the headers by which OpenAI's and Anthropic's clients read their limits; none without limits. */
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

// Which host names a server without keys answers to.

/**
 * Refuses requests under a foreign host name on a loopback address. Otherwise a web page could reach a server without keys by DNS
 * rebinding: its own host name, resolved to this machine.
 * @param allowed further host names to accept; `*` for all
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

// Which web pages may use a server without keys.

/** HTTP methods without an effect. A route with an effect under such a method declares `acts`. */
const SAFE: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS'])

/**
 * Refuses requests that a page of another origin makes a browser send. Browsers send forms and simple scripts without asking (no CORS
 * preflight), so any page could use a server without keys. Browsers name the page's site (`Sec-Fetch-Site`) or at least its origin;
 * programs send neither.
 * @param allowed further origins to accept; `*` for all
 * @throws KvfoldError server/forbidden
 */
export function refuseCrossSite(request: FastifyRequest, allowed: readonly string[]): void {
  if (SAFE.has(request.method) && request.routeOptions.config.acts !== true) return
  const { origin, host, 'sec-fetch-site': site } = request.headers
  if (origin !== undefined && allowed.some((each) => each === '*' || each.toLowerCase() === origin.toLowerCase())) return
  // `none`: a person typed the address. `same-site` is not enough: it includes pages of other ports.
  const isOwn = site === undefined ? origin === undefined || isAt(origin, host) : site === 'same-origin' || site === 'none'
  if (isOwn) return
  throw new KvfoldError(
    'server/forbidden',
    `This server has no keys and takes no requests of web pages from ${origin === undefined ? 'other origins' : JSON.stringify(origin.slice(0, 80))}; start it with --cors-origin or --api-key to allow them.`,
  )
}

/** Whether a page of this origin came from `host`. */
function isAt(origin: string, host: string | undefined): boolean {
  if (host === undefined || !/^https?:\/\//i.test(origin) || !URL.canParse(origin)) return false
  const page = new URL(origin)
  const own = `${page.protocol}//${host}`
  return URL.canParse(own) && new URL(own).host === page.host
}
