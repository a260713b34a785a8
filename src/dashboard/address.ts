/** Owns what the page's address says: which thread is shown. */

/** `#/threads/ID`; everything else is the overview. */
export function threadIn(hash: string): string | null {
  const [, id] = /^#\/threads\/([\w.-]+)$/.exec(hash) ?? []
  return id ?? null
}

/** Null: the overview. */
export const linkTo = (thread: string | null): string => (thread === null ? '#/' : `#/threads/${thread}`)
