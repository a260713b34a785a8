/** Owns whose something is. */

/** Whose keys sent a request; tenants know nothing of each other. Without keys everybody is `public`. */
export type Tenant = string
export const PUBLIC: Tenant = 'public'
