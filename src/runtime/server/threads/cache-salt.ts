/** Keeps requests of one tenant apart in the cache, if they have different salts (`Ask.cacheSalt`). */
import { createHash } from 'node:crypto'
import type { Tenant } from '../../core/ids.js'

/**
 * Returns a digest of a tenant and a salt of its requests. It stands for both where threads are stored and in the engine, so that neither
 * learns the salt. Undefined for requests without a salt.
 */
export const saltDigest = (tenant: Tenant, salt: string | undefined): string | undefined =>
  salt === undefined
    ? undefined
    : `salted-${createHash('sha256')
        .update(`kvfold cache salt ${JSON.stringify([tenant, salt])}`)
        .digest('base64url')}`

/**
 * Returns the tenant that the engine is told. A client cannot choose a tenant's name, so none is the digest of another tenant's salt.
 * @param salt the digest of the salt; undefined: none
 */
export const engineTenant = (tenant: Tenant, salt: string | undefined): string => salt ?? tenant
