/**
 * Keeps tenants and adapters apart in the cache. Each has a salt of its own that keys the cell hashes. So no cell of one tenant is found
 * for another, and no cell that was computed with an adapter is found without it.
 */
import { createHmac, randomBytes } from 'node:crypto'

/** Cell hashes under different salts never agree (except with probability 2^-128). So no tenant is lent cells of another tenant's text. */
export interface CacheSalt {
  /** The key of the hash function: four words of 32 bits. */
  readonly key: Int32Array
  /** The hasher's state before any cell is seen: four words of 32 bits. */
  readonly start: Int32Array
  /** The tenant and the adapters that the salt was made for, as `CacheSalts.of` got them. */
  readonly tenant?: string
  readonly adapters?: string
}

export const SECRET_BYTES = 32

/**
 * The salts under one secret. A tenant has the same salt under the same secret, so cells on disk stay their tenant's (DiskTierFolder keeps
 * the secret beside them). Without the secret, cell hashes cannot be computed. So an attacker cannot look for two texts with the same cell
 * hash.
 */
export class CacheSalts {
  readonly #secret: Uint8Array

  /** @param secret 32 random bytes. Default: drawn now, so that no other process and no later start has the same one */
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
    // UTF-16, because UTF-8 encodes all invalid text as the same replacement.
    if (tenant === undefined) hmac.update('kvfold cell salt, common')
    else hmac.update('kvfold cell salt, tenant:').update(Buffer.from(tenant, 'utf16le'))
    const digest = hmac.digest()
    const words = (from: number) => Int32Array.from({ length: 4 }, (_, word) => digest.readInt32LE(from + 4 * word))
    return { key: words(0), start: words(16), adapters, ...(tenant === undefined ? {} : { tenant }) }
  }
}

/** The salt for callers that name no salt, different in each process. */
export const COMMON: CacheSalt = new CacheSalts().of(undefined)

export function sameSalt(a: CacheSalt, b: CacheSalt): boolean {
  return a === b || (a.key.every((word, at) => word === b.key[at]) && a.start.every((word, at) => word === b.start[at]))
}
