/** Sends folds as AKV's `drop_message` and `reposition`, to engines that keep the cells behind a dropped message. */
import { type ChatMessage, type Edit, indexesLeft, omitting } from '../../runtime/chat/message.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'

/** The messages that one conversation has dropped, by their numbers. */
export class DroppedMessages {
  /** For each dropped message, the first message that was sent after the drop. The engine then lays out the same cells every time. */
  readonly #since = new Map<number, number>()
  /** How many messages the conversation had after its last step, the answer included. */
  #known = 0

  /**
   * Splits a request: messages that leave under a contract other than exact are sent whole and named in the fields. All other edits become
   * text. A message that is shown again is simply no longer named.
   * @param shown the edits of contents; they number the messages as `left` does
   * @param left the messages without all that is left out
   */
  split(asked: EngineRequest, left: readonly ChatMessage[], shown: readonly Edit[]): Dropping | null {
    const { messages, edits = [], contract = 'exact' } = asked
    const last = messages.length - 1
    const isDrop = (edit: Edit) =>
      edit.omits?.part === 'message' && (edit.contract ?? contract) !== 'exact' && edit.forget !== true && edit.message < last
    const dropped = new Set(edits.filter(isDrop).map(({ message }) => message))
    for (const message of [...this.#since.keys()]) if (!dropped.has(message)) this.#since.delete(message)
    for (const message of dropped)
      if (!this.#since.has(message)) this.#since.set(message, Math.min(last, Math.max(message + 1, this.#known)))
    this.#known = messages.length + 1
    if (dropped.size === 0) return null

    const gone = new Set(edits.flatMap((edit) => (edit.omits?.part === 'message' ? [edit.message] : [])))
    const sent = messages.flatMap((_, at) => (gone.has(at) && !dropped.has(at) ? [] : [at]))
    const place = (message: number) => sent.findIndex((at) => at >= message)
    const visible = indexesLeft(messages, edits)
    const drops = new Map<number, number[]>()
    for (const [message, since] of this.#since) {
      const after = Math.max(place(since), place(message) + 1)
      drops.set(after, [...(drops.get(after) ?? []), place(message)])
    }
    return {
      messages: omitting(
        messages,
        edits.filter((edit) => edit.omits !== undefined && !isDrop(edit)),
      ).messages,
      edits: shown.map((edit) => ({ ...edit, message: place(visible[edit.message]!) })),
      first: left.findIndex((_, at) => visible[at]! > Math.min(...dropped)),
      fields: { drop_message: Object.fromEntries(drops), reposition: [...drops.keys()] },
    }
  }
}

/** A request with drops. */
export interface Dropping {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  /** The first shown message behind a dropped one, numbered as in a list without hidden messages. */
  readonly first: number
  readonly fields: { readonly drop_message: Readonly<Record<string, readonly number[]>>; readonly reposition: readonly number[] }
}
