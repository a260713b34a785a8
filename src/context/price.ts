/** Owns whether hiding a fragment pays: the tokens that are shown with its text and with what would stand there instead. */
import type { Fragment, Price } from './fragment.js'
import { refuse, type Refusal } from './refusal.js'

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
