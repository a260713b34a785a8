/** Hashes a request's cache salt (`Ask.cacheSalt`). Requests of one tenant with different salts never share cells or threads. */
import { createHash } from 'node:crypto'
import type { Tenant } from '../../core/ids.js'

/**
 * Returns a digest of a tenant and a salt; undefined without a salt. Stored threads and the engine get the digest, so that they never learn
 * the salt.
 */
export const saltDigest = (tenant: Tenant, salt: string | undefined): string | undefined =>
  salt === undefined
    ? undefined
    : `salted-${createHash('sha256')
        .update(`kvfold cache salt ${JSON.stringify([tenant, salt])}`)
        .digest('base64url')}`

/**
 * Returns the tenant name for the engine: the salt's digest, or else the tenant itself. Clients cannot choose tenant names, so no tenant is
 * called like another tenant's digest.
 * @param salt the digest from `saltDigest`; undefined: no salt
 */
export const engineTenant = (tenant: Tenant, salt: string | undefined): string => salt ?? tenant
