/** Remembers which tokens conversations showed before their edits, and by which cells, so that a restore shows those cells again. */
import type { ConversationId } from '../core/ids.js'
import type { Contract } from '../core/contract.js'
import { lowerBound } from '../core/span.js'
import { commonPrefix, markerSource, type Prompt, uneditedOf } from './prompt.js'
import type { HeldSequence, Sequence } from './sequence.js'

/**
 * The tokens that a conversation showed at the end of a step, and their cells. A live sequence is the view of its last step; `Views` keeps
 * earlier ones. A view holds no cell: it names each by one word of its hash.
 */
export type View = Pick<HeldSequence, 'held' | 'tokens' | 'sourceIds' | 'unedited' | 'cellWord'>

/**
 * Returns how many of the prompt's first tokens the view showed in the same way. These are the same tokens, from the same places of the
 * unedited prompt.
 */
export function agreement({ tokens, sourceIds, unedited }: View, prompt: Prompt, keys: Int32Array): number {
  const same = Math.min(commonPrefix(tokens, prompt.tokens), commonPrefix(sourceIds, keys))
  const last = markerSource(commonPrefix(unedited, uneditedOf(prompt)))
  return lowerBound(same, (at) => keys[at]! <= last)
}

/** A view, and how many of the prompt's first tokens it showed in the same way. */
export interface LatestView {
  readonly view: View
  readonly places: number
}

/** Returns the view that showed the longest beginning of the prompt, of equal ones the first. Null: none showed any of it. */
export function latestView(views: Iterable<View>, prompt: Prompt, keys: Int32Array): LatestView | null {
  let best: LatestView | null = null
  let most = 0
  for (const view of views) {
    const places = view.held > most ? agreement(view, prompt, keys) : 0
    if (places <= most) continue
    most = places
    best = { view, places }
  }
  return best
}

/** The fields of a step's plan that tell whether its conversation leaves a view. */
interface LeavingPlan {
  readonly prompt: Prompt
  readonly sourceIds: Int32Array
  /** The contract that was asked for. */
  readonly asked: Contract
}

/** Bytes, approximately, that all views may take. */
const ROOM = 2 ** 26

class PastView implements View {
  readonly conversation: ConversationId
  readonly tokens: Int32Array
  readonly sourceIds: Int32Array
  readonly unedited: Int32Array
  readonly #words: Int32Array

  constructor(sequence: Sequence) {
    this.conversation = sequence.conversation
    this.tokens = sequence.tokens.slice()
    this.sourceIds = sequence.sourceIds.slice()
    this.unedited = sequence.unedited
    this.#words = this.tokens.map((_, entry) => sequence.cellWord(entry))
  }

  get held(): number {
    return this.tokens.length
  }

  get bytes(): number {
    return 3 * this.tokens.byteLength + this.unedited.byteLength
  }

  cellWord(entry: number): number {
    return this.#words[entry]!
  }
}

/** The earlier views of all conversations. When room is short, the oldest are dropped first. */
export class Views {
  /** Oldest first. */
  readonly #all = new Set<PastView>()
  /**
   * The views of each conversation, oldest first. A conversation that only ever asked for `exact` is left out while it has no approximate
   * cells.
   */
  readonly #own = new Map<ConversationId, Set<PastView>>()
  #bytes = 0

  /** @param room bytes, approximately. Default 64 MiB */
  constructor(private readonly room = ROOM) {}

  /** Returns the conversation's views, latest first. */
  of(conversation: ConversationId): readonly View[] {
    return [...(this.#own.get(conversation) ?? [])].reverse()
  }

  /**
   * Keeps the view of a live sequence, and drops the conversation's views that are a beginning of it. A view of exact cells only is kept
   * only if the conversation asked for another contract before. A restore may find the cells of a kept view gone; the ledger then counts
   * the cells that are shown instead.
   */
  keep(sequence: Sequence): void {
    const own = this.#own.get(sequence.conversation) ?? new Set()
    if (sequence.exact === sequence.held && !this.#own.has(sequence.conversation)) return
    const view = new PastView(sequence)
    this.drop(view.conversation, (other) => isBeginning(other, view))
    this.#all.add(view)
    this.#own.set(view.conversation, own.add(view))
    this.#bytes += view.bytes
    for (const oldest of this.#all) {
      if (this.#bytes <= this.room) return
      this.#delete(oldest)
    }
  }

  /** Keeps the view of the live sequence if neither it nor the prompt is a beginning of the other. */
  leave(sequence: Sequence, { prompt, sourceIds, asked }: LeavingPlan): void {
    const { conversation, held } = sequence
    if (asked !== 'exact' && !this.#own.has(conversation)) this.#own.set(conversation, new Set())
    const agrees = agreement(sequence, prompt, sourceIds)
    if (agrees < held && agrees < prompt.tokens.length) this.keep(sequence)
  }

  /** Drops the conversation's views that `which` picks. */
  drop(conversation: ConversationId, which: (view: View) => boolean): void {
    for (const view of this.#own.get(conversation) ?? []) if (which(view)) this.#delete(view)
  }

  /** Drops all views of the conversation. */
  forget(conversation: ConversationId): void {
    this.drop(conversation, () => true)
    this.#own.delete(conversation)
  }

  #delete(view: PastView): void {
    if (this.#own.get(view.conversation)?.delete(view) !== true) return
    this.#all.delete(view)
    this.#bytes -= view.bytes
  }
}

const isBeginning = (of: View, whole: View): boolean =>
  commonPrefix(of.tokens, whole.tokens) === of.held && commonPrefix(of.sourceIds, whole.sourceIds) === of.held
