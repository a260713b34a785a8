/** Owns whether the sampled tokens that an answer carries are this model's: what was stored may have been answered by another one of the same name. */
import type { ChatMessage } from '../chat/message.js'
import type { NativeModel } from '../native/types.js'

type Sampled = NonNullable<ChatMessage['sampled']>

export class OwnAnswers {
  readonly #known = new WeakMap<Sampled, boolean>()

  constructor(private readonly model: Pick<NativeModel, 'info' | 'piece'>) {}

  /** The messages; those whose sampled tokens do not spell their sampled text in this vocabulary go without them, and are tokenised anew. */
  of(messages: readonly ChatMessage[]): readonly ChatMessage[] {
    if (messages.every(({ sampled }) => sampled === undefined || this.#isOwn(sampled))) return messages
    return messages.map((message) => {
      const { sampled, ...rest } = message
      return sampled === undefined || this.#isOwn(sampled) ? message : rest
    })
  }

  #isOwn(sampled: Sampled): boolean {
    let own = this.#known.get(sampled)
    if (own === undefined) this.#known.set(sampled, (own = this.#spells(sampled)))
    return own
  }

  #spells({ text, tokens }: Sampled): boolean {
    if (tokens.some((token) => token < 0 || token >= this.model.info.vocabulary)) return false
    const bytes = Buffer.concat(Array.from(tokens, (token) => this.model.piece(token, true)))
    // As streams decode it (Job).
    return new TextDecoder().decode(bytes) === text
  }
}
