/** Branded ids, so that a token never passes for a position nor a sequence for a message. */

declare const brand: unique symbol
type Branded<T, Name extends string> = T & { readonly [brand]: Name }

/** llama.cpp `llama_seq_id`: a tag on cells, 0 .. n_seq_max-1. */
export type SeqId = Branded<number, 'SeqId'>
/** Whose timeline a request belongs to; chosen by the caller, opaque to the cache. */
export type ConversationId = Branded<string, 'ConversationId'>
/** `f` and five hexadecimal digits (spec: acm-tools, ids). */
export type FragmentId = Branded<string, 'FragmentId'>
/** `s` and five hexadecimal digits. */
export type SearchId = Branded<string, 'SearchId'>

export const seqId = (value: number): SeqId => value as SeqId
export const conversationId = (value: string): ConversationId => value as ConversationId
export const fragmentId = (value: string): FragmentId => value as FragmentId
export const searchId = (value: string): SearchId => value as SearchId

/** A conversation id nobody else has: for one-off steps. */
export const freshConversation = (() => {
  let count = 0
  return (): ConversationId => conversationId(`one-off-${++count}`)
})()

// Whose something is.

/** Whose keys sent a request; tenants know nothing of each other. Without keys everybody is `public`. */
export type Tenant = string
export const PUBLIC: Tenant = 'public'
