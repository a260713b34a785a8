/** Owns what answers have in common, whether they came from a conversation or from bare text. */
import type { Answer, Asked } from './ask.js'

/** What `Answer` and `CompletionAnswer` have in common. */
export type AnyAnswer = Pick<Answer, 'model' | 'finish' | 'usage' | 'timing' | 'waited'>

export type AnyAsked<A extends AnyAnswer> = Omit<Asked, 'answer'> & { readonly answer: Promise<A> }
