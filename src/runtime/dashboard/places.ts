/** What the address of the page names: a new thread, a thread with one of its tabs, or the server. Also what is selected there. Pure. */

export const TABS = ['chat', 'steps', 'attention', 'search'] as const
export type Tab = (typeof TABS)[number]

export type PagePlace =
  | { readonly kind: 'new' }
  | { readonly kind: 'server' }
  /** `message`: index of the message to scroll to. Null: none. */
  | { readonly kind: 'thread'; readonly id: string; readonly tab: Tab; readonly message: number | null }

/** Parses the address: `#/threads/ID/TAB`, `#/threads/ID/chat/MESSAGE` or `#/server`. Anything else is the page of a new thread. */
export function placeIn(hash: string): PagePlace {
  if (hash === '#/server') return { kind: 'server' }
  const [, id, name, message] = /^#\/threads\/([\w.-]+)(?:\/(\w+)(?:\/(\d{1,9}))?)?$/.exec(hash) ?? []
  if (id === undefined) return { kind: 'new' }
  const tab = TABS.find((one) => one === name) ?? 'chat'
  return { kind: 'thread', id, tab, message: message === undefined ? null : Number(message) }
}

/** Whether `place` is a page of this thread. `thread` null: whether it is the page of a new thread. */
export const isAt = (place: PagePlace, thread: string | null): boolean =>
  place.kind === 'thread' ? place.id === thread : place.kind === 'new' && thread === null

/** Returns the address of a thread's page. `thread` null: of the page of a new thread. */
export const linkTo = (thread: string | null, tab: Tab = 'chat'): string =>
  thread === null ? '#/' : `#/threads/${thread}${tab === 'chat' ? '' : `/${tab}`}`

export const linkToMessage = (thread: string, message: number): string => `#/threads/${thread}/chat/${message}`

export type Selection = { readonly kind: 'message'; readonly index: number } | { readonly kind: 'fragment'; readonly id: string }

export const keyOf = (choice: Selection): string =>
  choice.kind === 'message' ? `message-${choice.index}` : `fragment-${choice.id}`
