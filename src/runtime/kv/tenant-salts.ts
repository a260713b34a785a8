/** Owns what keeps tenants apart in the cache: the salts that key cell hashes, one a tenant, so that no cell of one is ever found for another. */
import { createHmac, randomBytes } from 'node:crypto'

/** Cell hashes under different salts never agree (but once in 2^128), so nobody is lent cells that another tenant's text left. */
export interface CacheSalt {
  /** Four words. */
  readonly key: Int32Array
  /** Four words: what stands for all that was seen while nothing was. */
  readonly start: Int32Array
}

export const SECRET_BYTES = 32

/**
 * The salts under one secret. The same tenant has the same salt wherever the secret is the same: cells on disk stay their tenant's (DiskTierFolder
 * keeps the secret beside them). Who does not know the secret cannot compute a cell hash, hence cannot look for two texts with the same one.
 */
export class CacheSalts {
  readonly #secret: Uint8Array

  /** @param secret 32 random bytes. Default: drawn now, so that no other process and no later start has the same */
  constructor(secret: Uint8Array = randomBytes(SECRET_BYTES)) {
    this.#secret = Uint8Array.from(secret)
  }

  /** @param tenant undefined: who names none, all of whom share */
  of(tenant: string | undefined): CacheSalt {
    const hmac = createHmac('sha256', this.#secret)
    // UTF-16, because UTF-8 has one and the same replacement for all that is no text.
    if (tenant === undefined) hmac.update('kvfold cell salt, common')
    else hmac.update('kvfold cell salt, tenant:').update(Buffer.from(tenant, 'utf16le'))
    const digest = hmac.digest()
    const words = (from: number) => Int32Array.from({ length: 4 }, (_, word) => digest.readInt32LE(from + 4 * word))
    return { key: words(0), start: words(16) }
  }
}

/** Of callers that name no salt: this process's. */
export const COMMON: CacheSalt = new CacheSalts().of(undefined)

export function sameSalt(a: CacheSalt, b: CacheSalt): boolean {
  return a === b || (a.key.every((word, at) => word === b.key[at]) && a.start.every((word, at) => word === b.start[at]))
}
