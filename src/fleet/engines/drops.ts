/** Translates folds into AKV's request fields `drop_message` and `reposition`, for engines that keep the cells behind a dropped message. */
import { type ChatMessage, type Edit, indexesLeft, omitting } from '../../runtime/chat/message.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'

/** The messages that one conversation has dropped, by message index. */
export class DroppedMessages {
  /**
   * For each dropped message, the index of the first message that was sent after the drop. Sending the same index each time makes the
   * engine lay out the same cells.
   */
  readonly #since = new Map<number, number>()
  /** How many messages the conversation had after its last step, the answer included. */
  #known = 0

  /**
   * Splits the edits of a request. A message left out as a whole under a contract other than `exact` becomes a drop: its text is sent, and
   * the fields name it. All other edits change the text that is sent. A message that is shown again is no longer named in the fields.
   * Returns null if no message is dropped.
   * @param shown the edits of message contents, with message indexes as in `left`
   * @param left the messages after everything that edits leave out was removed
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

    const visible = indexesLeft(messages, edits)
    const sent = [...visible, ...dropped].sort((a, b) => a - b)
    const place = (message: number) => sent.findIndex((at) => at >= message)
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

/** A request in which messages are dropped by `drop_message`. */
export interface Dropping {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  /** Index of the first shown message behind a dropped one, counted without the hidden messages. */
  readonly first: number
  readonly fields: { readonly drop_message: Readonly<Record<string, readonly number[]>>; readonly reposition: readonly number[] }
}
