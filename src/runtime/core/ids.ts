/** Branded ids, so that the compiler rejects a token as a position, or a sequence as a message. */

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

/** Makes a conversation id that is used nowhere else, for one-off steps. Cells on disk outlive the process, so no other process uses it. */
export const freshConversation = (): ConversationId => conversationId(`one-off-${crypto.randomUUID()}`)

// The owners of requests and of their cells.

/** The owner of the API keys that sent a request. Tenants know nothing of each other. Without keys, all requests belong to `public`. */
export type Tenant = string
export const PUBLIC: Tenant = 'public'

/** A key for something of a tenant's, in maps. */
export const keyOf = (tenant: Tenant, id: string): string => JSON.stringify([tenant, id])
