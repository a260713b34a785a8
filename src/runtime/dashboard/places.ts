/** The place of the page: the content that its address names, and the selection there. Pure. */

export const TABS = ['chat', 'steps', 'attention', 'search'] as const
export type Tab = (typeof TABS)[number]

export type PagePlace =
  { readonly kind: 'new' } | { readonly kind: 'server' } | { readonly kind: 'thread'; readonly id: string; readonly tab: Tab }

/** Parses `#/threads/ID/TAB` and `#/server`; everything else is a new thread. */
export function placeIn(hash: string): PagePlace {
  if (hash === '#/server') return { kind: 'server' }
  const [, id, name] = /^#\/threads\/([\w.-]+)(?:\/(\w+))?$/.exec(hash) ?? []
  return id === undefined ? { kind: 'new' } : { kind: 'thread', id, tab: TABS.find((tab) => tab === name) ?? 'chat' }
}

/** Null: a new thread. */
export const linkTo = (thread: string | null, tab: Tab = 'chat'): string =>
  thread === null ? '#/' : `#/threads/${thread}${tab === 'chat' ? '' : `/${tab}`}`

export type Selection = { readonly kind: 'message'; readonly index: number } | { readonly kind: 'fragment'; readonly id: string }

export const keyOf = (choice: Selection): string =>
  choice.kind === 'message' ? `message-${choice.index}` : `fragment-${choice.id}`
