/** Owns what is selected: a thread, as the address says, and of it a message or a fragment. */

/** `#/threads/ID`; everything else is the overview. */
export function threadIn(hash: string): string | null {
  const [, id] = /^#\/threads\/([\w.-]+)$/.exec(hash) ?? []
  return id ?? null
}

/** Null: the overview. */
export const linkTo = (thread: string | null): string => (thread === null ? '#/' : `#/threads/${thread}`)

export type Choice = { readonly kind: 'message'; readonly index: number } | { readonly kind: 'fragment'; readonly id: string }

export const keyOf = (choice: Choice): string => (choice.kind === 'message' ? `message-${choice.index}` : `fragment-${choice.id}`)
