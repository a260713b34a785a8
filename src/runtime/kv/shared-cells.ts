/**
 * Shares cells between engines: publishes blocks of a conversation's exact cells, and fetches published blocks for a step. A block is found
 * by its hash, whichever engine computed it.
 */
import { steady } from '../core/clock.js'
import { FORGOTTEN } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import { length, type Span, span } from '../core/span.js'
import { type CellHashes, sameHash, WORDS } from './cell-hash.js'
import { OffloadedSequence, type ReadStates } from './offload.js'
import { computedIn, type Plan } from './plan/plan.js'
import { BLOCK, type OffloadRecord, type SharedCounts, type SharedTier, type WantedBlock } from './ports.js'
import { type Prompt, sourceIdsOf, uneditedOf } from './prompt.js'
import type { Conversations, SequenceTable } from './sequence-table.js'
import type { Sequence } from './sequence.js'

export interface SharedOptions {
  readonly tier: SharedTier
  /** Returns the most bytes of memory for blocks that are being fetched. Default: no limit. */
  readonly mostBytes?: () => number
}

/** A block that is about to be published. */
interface Outgoing {
  readonly key: string
  readonly record: OffloadRecord
  readonly state: Uint8Array
  readonly isWanted: () => boolean
}

/** Number of blocks read at the same time. */
const AHEAD = 4
/** The most keys of published blocks that are remembered. */
const MOST_KNOWN = 100_000
/** Milliseconds after which a published block is checked again, because it may have been evicted. */
const KNOWN_FOR = 600_000

export class SharedCells {
  /** Keys of blocks that the shared tier should have, each with the time when it was last seen there. */
  readonly #known = new Map<string, number>()
  /** How often text of each conversation was forgotten. A block that was copied out before the latest time is not published. */
  readonly #epochs = new Map<ConversationId, number>()
  /** By conversation: the last unedited prompt whose forgotten text was deleted from the shared tier. */
  readonly #forgotten = new Map<ConversationId, Int32Array>()

  constructor(
    private readonly table: SequenceTable,
    private readonly conversations: Conversations,
    private readonly options: SharedOptions,
  ) {}

  get counts(): SharedCounts {
    return this.options.tier.counts
  }

  /**
   * Reads from the shared tier the blocks that the step would have to compute otherwise. Resolves to them and to the states that `below`
   * reads from other tiers. Returns `below` when there are no blocks to read.
   */
  fetch(own: Sequence, plan: Plan, below: Promise<ReadStates> | null): Promise<ReadStates> | null {
    const { tokens } = plan.prompt
    const first = plan.parts.find(({ kind }) => kind === 'compute')?.span.start ?? tokens.length
    const from = first - (first % BLOCK)
    if (plan.recomputeFrom !== undefined || computedIn(plan) < BLOCK || tokens.length - from < BLOCK) return below
    return Promise.all([below ?? new Map(), this.#read(own, plan.prompt, from)]).then(
      ([states, [stored, pieces]]) => new Map(pieces.length === 0 ? states : [...states, [stored, pieces] as const]),
    )
  }

  /** Reads blocks of the prompt from the shared tier, beginning at token `from`. Stops at the first block that is not there. */
  async #read(own: Sequence, prompt: Prompt, from: number): Promise<readonly [OffloadedSequence, readonly Uint8Array[]]> {
    const { tier, mostBytes } = this.options
    const { tokens } = prompt
    const { hashes } = own.freshText(tokens)
    const most = mostBytes?.() ?? Infinity
    const reading: Promise<Uint8Array | null>[] = []
    const pieces: Uint8Array[] = []
    let [next, bytes] = [from, 0]
    for (;;) {
      for (; reading.length < AHEAD && next + BLOCK <= tokens.length; next += BLOCK)
        reading.push(tier.take(blockOf(tokens, hashes, span(next, next + BLOCK))))
      const state = await reading.shift()
      if (state === null) this.#known.delete(keyOf(hashes, from + BLOCK * pieces.length))
      if (state == null || (bytes += state.byteLength) > most) break
      pieces.push(state)
    }
    const of = span(from, from + BLOCK * pieces.length)
    const { conversation } = own
    const sourceIds = sourceIdsOf(prompt).slice(of.start, of.end)
    const record = { conversation, unedited: uneditedOf(prompt), sourceIds, ...blockOf(tokens, hashes, of) }
    for (const { start } of pieces.map((_, at) => span(from + BLOCK * at, from + BLOCK * (at + 1))))
      this.#note(keyOf(hashes, start))
    return [new OffloadedSequence(record, { tier: 'shared' }, bytes), pieces]
  }

  /**
   * Publishes the conversation's blocks that the shared tier may lack, one at a time. First it asks the tier for blocks that it last saw
   * there more than KNOWN_FOR ago, which also keeps them from being evicted.
   * @param between runs its argument when no decode is in progress
   */
  async publish(conversation: ConversationId, between: <T>(errand: () => T) => Promise<T>): Promise<void> {
    const epoch = this.#epoch(conversation)
    for (const [key, wanted] of await between(() => this.#unseen(conversation))) {
      const isThere = await this.options.tier.renew(wanted)
      if (epoch !== this.#epoch(conversation)) break
      if (isThere) this.#note(key)
      else this.#known.delete(key)
    }
    for (;;) {
      const block = await between(() => this.#outgoing(conversation))
      if (block === null || !(await this.options.tier.put(block.record, block.state, block.isWanted))) return
      this.#note(block.key)
    }
  }

  /** Stops the publication of blocks that were copied out of the conversation but are not published yet. */
  recall(conversation: ConversationId): void {
    this.#epochs.set(conversation, this.#epoch(conversation) + 1)
  }

  /** Deletes all blocks of the conversation. */
  async forget(conversation: ConversationId): Promise<void> {
    this.recall(conversation)
    this.#forgotten.delete(conversation)
    this.#known.clear()
    await this.options.tier.forget(conversation)
  }

  /** Deletes the conversation's blocks that hold text which `prompt` marks as FORGOTTEN, or that have read it. */
  async forgetHidden(conversation: ConversationId, prompt: Prompt): Promise<void> {
    const base = uneditedOf(prompt)
    // Restored text may be published again, and then forgotten again.
    if (!base.includes(FORGOTTEN)) this.#forgotten.delete(conversation)
    if (this.hasForgotten(conversation, prompt)) return
    this.recall(conversation)
    this.#known.clear()
    const fresh = this.conversations.live(conversation)?.freshText(prompt.tokens).hashes
    await this.options.tier.forget(conversation, ({ positions, hashes }) => {
      const place = positions.at(-1)!
      return fresh !== undefined && place < prompt.tokens.length && sameHash(hashes, positions.length - 1, fresh, place)
    })
    // A running step may still hold such text, and publish it, until the next step forgets it.
    if (this.conversations.live(conversation)?.running !== true) this.#forgotten.set(conversation, base)
  }

  /** Whether the shared tier has no text left that `prompt` marks as FORGOTTEN. */
  hasForgotten(conversation: ConversationId, prompt: Prompt): boolean {
    const base = uneditedOf(prompt)
    const done = this.#forgotten.get(conversation)
    return !base.includes(FORGOTTEN) || (done !== undefined && sameForgotten(done, base))
  }

  /** Returns the conversation's published blocks that were last seen in the shared tier more than KNOWN_FOR ago. */
  #unseen(conversation: ConversationId): readonly (readonly [string, WantedBlock])[] {
    const own = this.conversations.live(conversation)
    const unseen: (readonly [string, WantedBlock])[] = []
    if (own === null) return unseen
    const tokens = own.tokens.slice(0, own.exact)
    const { hashes } = own.freshText(tokens)
    for (let place = 0; place + BLOCK <= tokens.length; place += BLOCK) {
      const key = keyOf(hashes, place)
      const seen = this.#known.get(key)
      if (seen === undefined || steady.now() - seen < KNOWN_FOR) continue
      unseen.push([key, blockOf(tokens, hashes, span(place, place + BLOCK))])
    }
    return unseen
  }

  /**
   * Copies the conversation's next block that the shared tier may lack out of the cache. Returns null if there is none, or no sequence id
   * is free for the copy.
   */
  #outgoing(conversation: ConversationId): Outgoing | null {
    const own = this.conversations.live(conversation)
    if (own === null || !own.settled) return null
    const tokens = own.tokens.slice(0, own.exact)
    if (tokens.length < BLOCK) return null
    const { hashes } = own.freshText(tokens)
    for (let place = 0; place + BLOCK <= tokens.length; place += BLOCK) {
      const key = keyOf(hashes, place)
      if (this.#known.has(key)) continue
      const block = blockOf(tokens, hashes, span(place, place + BLOCK))
      const { positions: sourceIds } = block
      const record = { conversation, unedited: new Int32Array(), sourceIds, ...block }
      const state = this.#copy(own, span(place, place + BLOCK))
      const epoch = this.#epoch(conversation)
      return state === null ? null : { key, record, state, isWanted: () => epoch === this.#epoch(conversation) }
    }
    return null
  }

  #copy({ seq }: Sequence, of: Span): Uint8Array | null {
    const { memory, sequences } = this.table
    const scratch = sequences.take()
    if (scratch === null) return null
    memory.tag(seq, scratch, of)
    try {
      return memory.saveSequence(scratch)
    } finally {
      memory.untag(scratch, of)
      sequences.give(scratch)
    }
  }

  #epoch(conversation: ConversationId): number {
    return this.#epochs.get(conversation) ?? 0
  }

  #note(key: string): void {
    if (this.#known.size >= MOST_KNOWN) this.#known.clear()
    this.#known.set(key, steady.now())
  }
}

/** Returns the tokens, positions and hashes of this token span of a text: one block or several. */
function blockOf(tokens: Int32Array, hashes: CellHashes, of: Span) {
  const { start, end } = of
  const positions = Int32Array.from({ length: length(of) }, (_, at) => start + at)
  return { tokens: tokens.slice(start, end), positions, hashes: hashes.slice(WORDS * start, WORDS * end) }
}

/** Returns the key of the block that begins at token `place`: its last cell's hash, which depends on all text up to the block's end. */
const keyOf = (hashes: CellHashes, place: number): string =>
  hashes.subarray(WORDS * (place + BLOCK - 1), WORDS * (place + BLOCK)).join()

/** Whether both prompts have FORGOTTEN at the same places. */
function sameForgotten(a: Int32Array, b: Int32Array): boolean {
  const places = (of: Int32Array) => of.reduce<number[]>((all, token, at) => (token === FORGOTTEN ? [...all, at] : all), [])
  return places(a).join() === places(b).join()
}
