/**
 * Keeps tenants and adapters apart in the cache. Each combination has its own salt, which keys the cell hashes. So cells of one tenant are
 * never found for another, and cells that were computed with an adapter are never found without it.
 */
import { createHmac, randomBytes } from 'node:crypto'

/** Cell hashes under different salts never agree (except with probability 2^-128), so tenants never get each other's cells. */
export interface CacheSalt {
  /** The key of the hash function: four words of 32 bits. */
  readonly key: Int32Array
  /** The hasher's state before any cell is seen: four words of 32 bits. */
  readonly start: Int32Array
  /** The tenant and (next field) the adapters for which `CacheSalts.of` made the salt. */
  readonly tenant?: string
  readonly adapters?: string
}

export const SECRET_BYTES = 32

/**
 * Makes salts from one secret. A tenant always gets the same salt from the same secret, so it finds its cells on disk again (DiskTierFolder
 * keeps the secret beside them). Cell hashes cannot be computed without the secret. So an attacker cannot search for two texts with the
 * same cell hash.
 */
export class CacheSalts {
  readonly #secret: Uint8Array

  /** @param secret 32 random bytes. Default: newly drawn, so that salts differ between processes */
  constructor(secret: Uint8Array = randomBytes(SECRET_BYTES)) {
    this.#secret = Uint8Array.from(secret)
  }

  /**
   * Returns the salt of a tenant with these adapters.
   * @param tenant undefined: all callers that name no tenant; they share one salt
   * @param adapters the key of the adapters that the cells are computed with (AdapterSet): 64 hexadecimal digits, or empty for none
   */
  of(tenant: string | undefined, adapters = ''): CacheSalt {
    const hmac = createHmac('sha256', this.#secret)
    // The key of the adapters has a fixed length, so no tenant's name can look like it.
    if (adapters !== '') hmac.update(`kvfold cell salt, adapters:${adapters};`)
    // UTF-16, because UTF-8 would encode all invalid text alike, and two tenants could get the same salt.
    if (tenant === undefined) hmac.update('kvfold cell salt, common')
    else hmac.update('kvfold cell salt, tenant:').update(Buffer.from(tenant, 'utf16le'))
    const digest = hmac.digest()
    const words = (from: number) => Int32Array.from({ length: 4 }, (_, word) => digest.readInt32LE(from + 4 * word))
    return { key: words(0), start: words(16), adapters, ...(tenant === undefined ? {} : { tenant }) }
  }
}

/** The salt of callers that name none. It differs in each process. */
export const COMMON: CacheSalt = new CacheSalts().of(undefined)

export function sameSalt(a: CacheSalt, b: CacheSalt): boolean {
  return a === b || (a.key.every((word, at) => word === b.key[at]) && a.start.every((word, at) => word === b.start[at]))
}
