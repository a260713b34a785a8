/** Owns what is known of every conversation, whatever happens to its lane. */
import type { ConversationId } from '../core/ids.js'
import type { Sequence } from './holding.js'
import type { LedgerEntry } from './ledger.js'
import { uneditedOf, type Prompt } from './shown.js'

/** What outlives a lane that was dropped for room. */
export interface ConversationRecord {
  sequence: Sequence | null
  readonly ledger: LedgerEntry[]
  /** What the last step that was done showed. */
  before: Prompt | null
  /** Cells of it that were moved to a lower tier while no step ran, and are on no step's account yet. */
  moved: number
}

export class Conversations {
  readonly #records = new Map<ConversationId, ConversationRecord>()

  get(conversation: ConversationId): ConversationRecord | undefined {
    return this.#records.get(conversation)
  }

  /** Null for a conversation that has none, known or not. */
  lane(conversation: ConversationId): Sequence | null {
    return this.#records.get(conversation)?.sequence ?? null
  }

  /** The unedited prompt that the last step that was done was made from, its answer included; null when there is none. */
  before(conversation: ConversationId): Int32Array | null {
    const before = this.#records.get(conversation)?.before ?? null
    return before === null ? null : uneditedOf(before)
  }

  /** The conversation, known or not, has this lane from now on. */
  seat(conversation: ConversationId, sequence: Sequence): void {
    const known = this.#records.get(conversation)
    if (known === undefined) this.#records.set(conversation, { sequence: sequence, ledger: [], before: null, moved: 0 })
    else known.sequence = sequence
  }

  /** A sequence was dropped; if it was its conversation's lane, that has none now. */
  unseat(dropped: Sequence): void {
    const record = this.#records.get(dropped.conversation)
    if (record?.sequence === dropped) record.sequence = null
  }

  delete(conversation: ConversationId): void {
    this.#records.delete(conversation)
  }
}
