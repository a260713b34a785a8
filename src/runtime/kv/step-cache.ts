/**
 * The interface between the engine and a cache: the calls by which the engine runs a step, and the cache's accounts. CheckpointCache
 * implements it for models whose sequences can only be extended, KvCache for all others. Both pass the suite
 * `test/runtime/kv/step-cache.contract.ts`.
 */
import type { ConversationId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import type { HeldTexts } from './block-events.js'
import type { Reservation } from './eviction.js'
import type { LedgerEntry, StepKind } from './ledger.js'
import type { ReadStates } from './offload.js'
import type { StepContract } from './plan/parts.js'
import type { Plan } from './plan/plan.js'
import type { Prompt } from './prompt.js'
import type { CacheTotals, Residency } from './residency.js'
import type { LiveSequence } from './sequence.js'
import type { Chunk, WritePosition, Step, StepPart } from './step.js'
import type { CacheSalt } from './tenant-salts.js'

/** The result of `open`. `live`: the live sequence. `full`: running live sequences use all sequence ids, and nothing has changed. */
export type OpenedSequence =
  { readonly kind: 'live'; readonly sequence: LiveSequence } | { readonly kind: 'full'; readonly reason: string }

/**
 * The calls by which the engine runs a step. First it calls `open`, `prepare` (which plans) and `begin`. Then, until the answer ends, it
 * repeats `next` for prompt tokens or `seat` for a generated one, `reserve`, a decode, and `commit` (or `settle`). At last it calls
 * `finish`. The cache computes nothing: the engine decodes, then reports. All calls happen between decodes. Steps of different
 * conversations may overlap; those of one conversation may not.
 */
export interface CacheSteps {
  /**
   * Returns the live sequence of a conversation; `salt` is its tenant's cache salt. A conversation without one gets a new, empty one, for
   * which another sequence may be evicted. A live sequence from an earlier call may have been evicted meanwhile.
   */
  open(conversation: ConversationId, salt?: CacheSalt): OpenedSequence
  /**
   * Plans how the live sequence gets the tokens of `prompt`, which must not be empty. Changes nothing. The plan may borrow from any tier.
   */
  plan(sequence: LiveSequence, prompt: Prompt, terms?: StepContract): Plan
  /**
   * Reads saved states ahead of `prepare`: those that it would read from disk, and, for tokens that would be computed, blocks that other
   * engines share. Decodes and steps of other conversations may run meanwhile. Returns null when there is nothing to read. Changes nothing
   * on the device.
   */
  fetch(sequence: LiveSequence, prompt: Prompt, terms?: StepContract): Promise<ReadStates> | null
  /**
   * Returns the plan for `prompt`, after bringing all cells that it borrows onto the device. If room is short, they replace cells that the
   * live sequence no longer shows. Tokens whose cells cannot be brought are computed, and the plan says why.
   * @param fetched states that `fetch` read before; the rest is read here
   */
  prepare(sequence: LiveSequence, prompt: Prompt, terms?: StepContract, fetched?: ReadStates): Promise<Plan>
  /**
   * Carries the plan out. Afterwards the live sequence is running and holds all tokens that are not to be computed. The plan must have been
   * made for this sequence, the cache must not have changed since, and it must borrow only from the device (`prepare`). A plan that would
   * reuse cells of other tokens than it shows is refused.
   * @param alone No other step is running, so the cache moves cells off the device that would slow this step.
   */
  begin(sequence: LiveSequence, plan: Plan, kind: StepKind, alone?: boolean): Step
  /** Returns the next prompt tokens, `limit` at most, and where they go; null when the whole prompt is in the cache. */
  next(step: Step, limit: number): Chunk | null
  /** Returns where the next generated token goes. */
  seat(step: Step): WritePosition
  /** Whether the new cells of a plan that has not begun fit beside the cells that it keeps and those of running steps. Changes nothing. */
  fits(sequence: LiveSequence, plan: Plan): boolean
  /**
   * Makes sure that `count` cells are free. `full`: there would not be enough even without all parked and idle sequences; nothing was
   * evicted. `evicted`: number of cells freed for it, by moving tokens to a lower tier or losing them. They count for the next step that
   * commits or begins.
   */
  reserve(count: number): Reservation
  /**
   * Reports that `tokens` were decoded where `next` or `seat` said. Prompt tokens must be the next shown ones.
   * @param milliseconds the step's share of the decode's wall time
   */
  commit(step: Step, tokens: Int32Array, what: StepPart, milliseconds: number): void
  /**
   * Reports that a decode was aborted or failed. Reads from llama.cpp how many of the `attempted` tokens entered the cache, records these
   * and returns their number. The step may continue after them.
   */
  settle(step: Step, attempted: Int32Array, what: StepPart): number
  /**
   * Ends the step and adds its ledger entry. The live sequence is idle again. `done` requires that the whole prompt was committed. After
   * `cancelled` all submitted tokens count as side work, but their cells stay, and the next step can reuse them.
   * @param pending number of tokens that were sampled and not submitted
   * @param last whether no later step of the conversation is expected, so that its cells are evicted first
   */
  finish(step: Step, outcome: 'done' | 'cancelled', pending: number, last?: boolean): LedgerEntry
}

/** The accounts of a cache. No call here changes anything. */
export interface CacheBooks {
  /** Returns the conversation's live sequence; null when it has none. */
  live(conversation: ConversationId): LiveSequence | null
  /**
   * Returns the prompt of the conversation's last step whose whole prompt was computed, with generated tokens and without the edits'
   * contracts; null before the first.
   */
  prompt(conversation: ConversationId): Prompt | null
  /** Returns the conversation's steps, oldest first; an empty list for an unknown conversation. */
  ledger(conversation: ConversationId): readonly LedgerEntry[]
  /** Counts, tier by tier, where the conversation's own cells of these tokens are. `stretches` are spans of its unedited prompt `base`. */
  residency(conversation: ConversationId, base: Int32Array, stretches: readonly Span[]): readonly Residency[]
  /** Totals of the cache. Reading them visits every held cell, so do not read them in inner loops. */
  readonly totals: CacheTotals
  /**
   * Checks kvfold's records. `books`: whether they are consistent. `positions`: also against the positions of every sequence, read back
   * from llama.cpp (cheap enough after every step). `full`: also against every cell's position and tags. That copies the cache, so it is
   * for tests.
   * @throws KvfoldError internal/invariant naming the difference
   */
  check(level: 'books' | 'positions' | 'full'): void
}

/** Optional members. A cache lacks those that it has no use for. */
interface CacheAbilities {
  /** Number of free cells. Running steps may take them without `reserve`. */
  readonly spare?: number
  /**
   * Reports what became of drafted tokens that `commit` or `settle` entered at the end of the step's live sequence. The last `rejected`
   * ones leave the cache again, and their cells are free; the `accepted` ones before them stay. Only caches that can cut the end of a
   * sequence have it.
   */
  verified?(step: Step, accepted: number, rejected: number): void
  /**
   * Notes that a new conversation is a fork of `from`. Under `splice` and `blend` the cache then lends it the cells of `from` like its own
   * (Conversations.inherit).
   */
  inherit?(conversation: ConversationId, salt: CacheSalt, from: ConversationId): void
  /** Whether sequences wait to be moved off the device between decodes (`moveOn`). */
  readonly moving?: boolean
  /**
   * Copies the next slice of a sequence that leaves the device, for about this many milliseconds. Call it between two decodes. No other
   * code may use the cache until the promise settles. The time counts for the next step that commits or begins.
   */
  moveOn?(milliseconds: number): Promise<void>
  /**
   * Call it repeatedly while nothing runs. Copies the next slice of a parked version that leaves the device, or moves the cells of a live
   * sequence together after its versions have left. First it moves versions that slow their conversation's decodes (tier-policy.ts). Then
   * it moves the longest unused ones, while more than `share` of the cells are in use. Resolves to false when there is nothing to do. No
   * other code may use the cache meanwhile.
   * @param milliseconds about how long a slice may take; default: a sequence is copied whole
   */
  tidy?(share?: number, milliseconds?: number): Promise<boolean>
  /**
   * Closes the gaps that splices left in an idle conversation's positions by shifting cells, which makes them approximate. Returns by how
   * many positions the sequence became shorter. Returns 0, and changes nothing, for a running sequence, or if cells cannot be shifted. It
   * also does so if cells behind a gap are shared, because a shift would move them for all their sequences.
   */
  closeGaps?(conversation: ConversationId): number
  /**
   * Returns the tokens of all sequences for `BlockEvents.changes`. It must be the only caller, because each call resets what counts as
   * changed. Call it while no decode runs. Only caches that find texts by their beginnings have it.
   */
  held?(): HeldTexts
  /** A counter that grows whenever sequences get or lose cells other than by decoding. */
  readonly revision?: number
  /**
   * Does what `forgetHidden` does if the tier shared with other engines may hold the forgotten text; otherwise returns null. The engine
   * calls it before `prepare`: it takes long, and other steps can run meanwhile. No step of the conversation may be running.
   */
  forgetting?(conversation: ConversationId, prompt: Prompt): Promise<void> | null
  /** Offers the conversation's exact cells to other engines (SharedCells). `between` runs its argument between two decodes. */
  publish?(conversation: ConversationId, between: <T>(errand: () => T) => Promise<T>): Promise<void>
  /**
   * Call it after a decode of several sequences failed. Only caches have it in which such a failure may also spoil sequences outside the
   * batch. Afterwards all running steps can only be cancelled.
   */
  distrust?(): void
}

export interface StepCache extends CacheSteps, CacheBooks, CacheAbilities {
  /** Drops a conversation: its sequences in every tier and its ledger. Ignores an unknown one. The conversation must not be running. */
  forget(conversation: ConversationId): void
  /** Drops a conversation like `forget`, and its cells in the tier shared with other engines. Resolves when no file is left. */
  erase(conversation: ConversationId): Promise<void>
  /** Drops the cells of text that `prompt` marks as FORGOTTEN, and the cells that have read it, from every tier (`Edit.forget`). */
  forgetHidden(conversation: ConversationId, prompt: Prompt): Promise<void>
  /**
   * Moves an idle conversation's own cells next to each other, to the lowest free ones. Attention then runs over fewer free cells between
   * them (docs/kv-cache.md). Values and positions do not change; cells shared with other sequences stay. Returns how many cells moved.
   */
  compact(conversation: ConversationId): number
  /** Moves all sequences off the device, so that the next start of the program finds them on disk. No step may be running. */
  leave(): Promise<void>
}
