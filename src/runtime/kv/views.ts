/** Remembers what conversations showed before their edits, and by which cells, so that a restore can show the same cells again. */
import type { ConversationId } from '../core/ids.js'
import type { Contract } from '../core/contract.js'
import { lowerBound } from '../core/span.js'
import { commonPrefix, markerSource, type Prompt, uneditedOf } from './prompt.js'
import type { HeldSequence, Sequence } from './sequence.js'

/**
 * The tokens that a conversation showed at the end of a step, and their cells. The live sequence is the view of the last step; `Views`
 * keeps earlier ones. A view keeps no cell alive: it has only one word of each cell's hash.
 */
export type View = Pick<HeldSequence, 'held' | 'tokens' | 'sourceIds' | 'unedited' | 'cellWord'>

/** Returns how many of the prompt's first tokens the view showed, too, with the same source in the unedited prompt. */
export function agreement({ tokens, sourceIds, unedited }: View, prompt: Prompt, keys: Int32Array): number {
  const same = Math.min(commonPrefix(tokens, prompt.tokens), commonPrefix(sourceIds, keys))
  const last = markerSource(commonPrefix(unedited, uneditedOf(prompt)))
  return lowerBound(same, (at) => keys[at]! <= last)
}

/** A view, and how many of the prompt's first tokens it showed in the same way (`agreement`). */
export interface LatestView {
  readonly view: View
  readonly places: number
}

/** Returns the view that showed the longest beginning of the prompt; of equal ones, the first. Null if none showed any of it. */
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

/** The fields of a plan that decide whether the live sequence's view is kept. */
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

/** Earlier views of all conversations. When memory is short, the oldest are dropped first. */
export class Views {
  /** Oldest first. */
  readonly #all = new Set<PastView>()
  /** The views of each conversation, oldest first. A conversation is missing if it asked only for `exact` and has no approximate cells. */
  readonly #own = new Map<ConversationId, Set<PastView>>()
  #bytes = 0

  /** @param room bytes, approximately. Default 64 MiB */
  constructor(private readonly room = ROOM) {}

  /** Returns the conversation's views, latest first. */
  of(conversation: ConversationId): readonly View[] {
    return [...(this.#own.get(conversation) ?? [])].reverse()
  }

  /**
   * Keeps the view of a live sequence, in place of the conversation's views that are a beginning of it. A view of exact cells is kept only
   * if the conversation has asked for another contract before. The cells of a view may be gone at a restore; then the ledger counts the
   * cells that are shown instead (LedgerEntry.replaced).
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
