/** Owns what of a thread is chosen: a message or a fragment. */

export type Choice = { readonly kind: 'message'; readonly index: number } | { readonly kind: 'fragment'; readonly id: string }

export const keyOf = (choice: Choice): string => (choice.kind === 'message' ? `message-${choice.index}` : `fragment-${choice.id}`)
