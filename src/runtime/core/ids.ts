/** Branded ids, so that the compiler rejects, for example, a token as a sequence id. */

declare const brand: unique symbol
type Branded<T, Name extends string> = T & { readonly [brand]: Name }

/** llama.cpp's `llama_seq_id`: the number of a sequence, 0 .. n_seq_max-1. Cells are tagged with it. */
export type SeqId = Branded<number, 'SeqId'>
/** Names the conversation that a request belongs to. The caller chooses it; the cache does not interpret it. */
export type ConversationId = Branded<string, 'ConversationId'>
/** The id of a fragment: `f` and five hexadecimal digits (spec: acm-tools, ids). */
export type FragmentId = Branded<string, 'FragmentId'>
/** The id of a search: `s` and five hexadecimal digits. */
export type SearchId = Branded<string, 'SearchId'>

export const seqId = (value: number): SeqId => value as SeqId
export const conversationId = (value: string): ConversationId => value as ConversationId
export const fragmentId = (value: string): FragmentId => value as FragmentId
export const searchId = (value: string): SearchId => value as SearchId

/** Returns a new conversation id for a one-off step. It is unique across processes, because cells on disk outlive the process. */
export const freshConversation = (): ConversationId => conversationId(`one-off-${crypto.randomUUID()}`)

// Tenants: the owners of requests and of their cells.

/** The owner of an API key, to whom its requests belong. Tenants never see each other's data. Without keys, all requests are `public`. */
export type Tenant = string
export const PUBLIC: Tenant = 'public'

/** Returns a key for maps from a tenant and an id that is unique within the tenant. */
export const keyOf = (tenant: Tenant, id: string): string => JSON.stringify([tenant, id])
