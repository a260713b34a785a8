/** Owns what a fragment is, and the text that stands in the place of a hidden one. */
import type { Edit } from '../chat/message.js'
import type { Contract } from '../core/contract.js'
import type { FragmentId } from '../core/ids.js'
import { length, type Span } from '../core/span.js'
import { listed, type Refusal, refuse } from './refusal.js'

/** Tokens that the conversation's messages take, all else as it is; definitions of tools are not among them. */
export interface Price {
  /** With the fragment's text. */
  readonly open: number
  /** With what stands in its place. */
  readonly hidden: number
}

/** `open`: shown as it was written. `folded`: one marker is shown. `summarised`: a marker that holds the summary is shown. */
export type FragmentState =
  | { readonly kind: 'open' }
  | { readonly kind: 'folded' }
  | { readonly kind: 'summarised'; readonly summary: string; readonly focus: string }

/** A stretch of one message's content that has an id. Fragments of a conversation are disjoint and never go away. */
export interface Fragment {
  readonly id: FragmentId
  /** Index of the message. */
  readonly message: number
  /** Characters (UTF-16 units) of the message's original content; both ends are token borders. Never empty. */
  readonly span: Span
  readonly state: FragmentState
  /** What hiding it asks of the cache; left out: what the step does that shows it. */
  readonly contract?: Contract
  /** Of a hidden one: what it came to when it was hidden; left out where nobody could count. */
  readonly price?: Price
}

/** What is shown instead of the fragment's text, null when the text itself is. */
function markerOf({ id, span, state }: Fragment): string | null {
  switch (state.kind) {
    case 'open':
      return null
    case 'folded':
      return `[folded ${id}: ${length(span)} characters, restore_fragment shows them]`
    case 'summarised':
      return `[summary of ${id}, ${length(span)} characters, restore_fragment shows them: ${state.summary}]`
  }
}

/** The edit that hides the fragment, null when it is open. */
export function editOf(fragment: Fragment): Edit | null {
  const replacement = markerOf(fragment)
  const { message, span, contract } = fragment
  return replacement === null ? null : { message, span, replacement, ...(contract === undefined ? {} : { contract }) }
}

/** Order of the conversation: message, then place in it. */
export const inOrder = (a: Fragment, b: Fragment): number => a.message - b.message || a.span.start - b.span.start

/** Fragments a message names before it only counts the rest. */
const MOST = 40

/** `f1a2b3 (folded) and f4c5d6 (open)`, as messages name fragments. */
export function several(fragments: readonly Fragment[]): string {
  const named = fragments
    .slice(0, MOST)
    .map(({ id, state }) => `${id} (${state.kind === 'summarised' ? 'summarized' : state.kind})`)
  const rest = fragments.length - named.length
  return listed(rest > 0 ? [...named, `${rest} more`] : named)
}

// Whether hiding a fragment pays: the tokens that are shown with its text and with what would stand there instead.

/** What is done about hiding that takes at least as many tokens as the text: it is refused, or done and said. */
export type CostlyFolds = 'refuse' | 'allow'

/** Tokens that hiding saves; negative when it costs some. */
export const savedBy = ({ open, hidden }: Price): number => open - hidden

/** One sentence when hiding the fragment does not pay, null when it does or nobody counted. */
export function priceRemark({ state, price }: Pick<Fragment, 'state' | 'price'>): string | null {
  if (price === undefined || savedBy(price) > 0) return null
  const { open, hidden } = price
  const what = state.kind === 'summarised' ? 'summary' : 'marker'
  const more = hidden - open
  const by = more === 0 ? 'as many tokens as' : `${more} ${more === 1 ? 'token' : 'tokens'} more than`
  return `This does not pay: the ${what} takes ${by} the text (${open} tokens shown with the text, ${hidden} with the ${what}).`
}

/** What is answered instead of hiding a fragment that does not pay. */
export const tooCostly = (id: string, remark: string): Refusal =>
  refuse(
    'tool/costs-more',
    `${id} stays as it is. ${remark} Hide a longer fragment, or several beside each other as one; whoever runs this may allow it all the same.`,
  )
