/**
 * Owns the port between the engine and a cache: how steps are led through it, and what it says of itself. KvCache implements it for attention, with a
 * window or without; CheckpointCache for recurrent and hybrid models. `test/runtime/kv/step-cache.contract.ts` is the suite of both.
 */
import type { ConversationId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import type { Reservation } from './eviction.js'
import type { LedgerEntry, StepKind } from './ledger.js'
import type { ReadStates } from './offload.js'
import type { Terms } from './plan/parts.js'
import type { Plan } from './plan/plan.js'
import type { Prompt } from './prompt.js'
import type { CacheTotals, Residency } from './residency.js'
import type { LiveSequence } from './sequence.js'
import type { Chunk, Seat, Step, StepPart } from './step.js'
import type { CacheSalt } from './tenant-salts.js'

/** `full`: every sequence id belongs to a running live sequence, and nothing was changed. */
export type OpenedSequence =
  { readonly kind: 'live'; readonly sequence: LiveSequence } | { readonly kind: 'full'; readonly reason: string }

/**
 * How the engine leads a step: open, plan (which `prepare` does), begin, then `next`, reserve, decode, commit (or settle) until the answer ends, then
 * finish. The cache computes nothing: the engine decodes, then reports. All calls fall between decodes. Steps of different conversations may overlap, those
 * of one conversation may not.
 */
export interface CacheSteps {
  /**
   * Returns the live sequence of a conversation, whose tenant's cell hashes have this salt. A new, empty one takes a free sequence id or evicts for one.
   * A live sequence that was returned before may have been evicted meanwhile.
   */
  open(conversation: ConversationId, salt?: CacheSalt): OpenedSequence
  /** How the live sequence would come to hold `prompt`, which must not be empty. Changes nothing; what it borrows may be in any tier. */
  plan(sequence: LiveSequence, prompt: Prompt, terms?: Terms): Plan
  /**
   * Reads what `prepare` would have to read from disk, and what other engines have of the rest. Decodes and steps of others may go on meanwhile. Null:
   * there is nothing to read. Changes nothing on the device.
   */
  fetch(sequence: LiveSequence, prompt: Prompt, terms?: Terms): Promise<ReadStates> | null
  /**
   * Returns the plan for `prompt`, with all that it borrows brought onto the device, if need be in the place of what the live sequence no longer shows. What
   * cannot be had is computed, and the plan says why.
   * @param fetched states that were read before; the rest is read now
   */
  prepare(sequence: LiveSequence, prompt: Prompt, terms?: Terms, fetched?: ReadStates): Promise<Plan>
  /**
   * Carries the plan out. Afterwards the live sequence is running and holds all that is not to be computed. The plan must be this sequence's, made
   * since the cache last changed, and borrow from the device only (`prepare`): one that would reuse other tokens than it shows is refused.
   * @param alone No other step is running, so the cache moves off the device what would be a burden to this one.
   */
  begin(sequence: LiveSequence, plan: Plan, kind: StepKind, alone?: boolean): Step
  /** The prompt tokens that come next, `limit` at most, and where they go; null when the prompt is in. */
  next(step: Step, limit: number): Chunk | null
  /** Where the next generated token goes. */
  seat(step: Step): Seat
  /**
   * Makes sure that `count` cells are free. `full`: evicting all but the running live sequences would not do, and nothing was evicted. `evicted`: cells
   * that were freed, their tokens moved to another tier or lost; they go on the account of the step that commits or begins next.
   */
  reserve(count: number): Reservation
  /**
   * `tokens` were decoded where `next` or `seat` said; prompt tokens must be the next shown ones.
   * @param milliseconds the step's share of the decode's wall time
   */
  commit(step: Step, tokens: Int32Array, what: StepPart, milliseconds: number): void
  /**
   * A decode was aborted or failed. Reads from llama.cpp how many of the `attempted` tokens entered and takes those into the books. Returns how many; the
   * step may go on from there.
   */
  settle(step: Step, attempted: Int32Array, what: StepPart): number
  /**
   * Ends the step and enters it in the ledger; the live sequence is idle again. `done` needs the whole prompt committed. `cancelled`: all that was
   * submitted counts as side work; the cells stay with the live sequence, and the next step reuses them.
   * @param pending tokens that were sampled and not submitted
   * @param last no later step of the conversation is expected: its cells are the first to be evicted
   */
  finish(step: Step, outcome: 'done' | 'cancelled', pending: number, last?: boolean): LedgerEntry
}

/** What a cache says of itself; these change nothing. */
export interface CacheBooks {
  /** The conversation's live sequence; null when it has none. */
  live(conversation: ConversationId): LiveSequence | null
  /** What the conversation's last finished step showed, generated tokens included, without the edits' contracts; null before the first. */
  prompt(conversation: ConversationId): Prompt | null
  /** The conversation's steps, oldest first; empty for an unknown one. */
  ledger(conversation: ConversationId): readonly LedgerEntry[]
  /** Where the conversation's own cells of these tokens of its unedited prompt are. */
  residency(conversation: ConversationId, base: Int32Array, stretches: readonly Span[]): readonly Residency[]
  /** Looks at every held cell: not for inner loops. */
  readonly totals: CacheTotals
  /**
   * `books`: our accounts agree with themselves. `positions`: also the positions of every sequence, read back from llama.cpp
   * (cheap enough after every step). `full`: also every cell's position and tags (copies the cache: for tests).
   * @throws KvfoldError internal/invariant naming what differs
   */
  check(level: 'books' | 'positions' | 'full'): void
}

/** What only some memories can do; a cache without such a member has no use for it. */
interface CacheAbilities {
  /** Cells that running steps can take without `reserve`. */
  readonly spare?: number
  /** A new conversation is a branch of another one, whose cells may serve it under that one's terms (Conversations). */
  inherit?(conversation: ConversationId, salt: CacheSalt, from: ConversationId): void
  /**
   * Moves something parked off the device: what is a burden to its conversation's decodes (tier-policy.ts), and while more than `share` of the cells are
   * in use what is longest unused. One sequence a call, for times when nothing runs. False: there was nothing to do.
   */
  tidy?(share?: number): boolean
  /**
   * Closes the gaps that splices left in an idle conversation's positions, by turning its keys: an approximation, which the ledger counts from the next
   * step on. Returns by how many positions it became shorter: 0 where it is running, shares cells (a shift moves them for all), or cannot be shifted.
   */
  closeGaps?(conversation: ConversationId): number
  /** Puts the conversation's cells where other engines find them (SharedCells). `between` runs its argument between two decodes. */
  publish?(conversation: ConversationId, between: <T>(errand: () => T) => Promise<T>): Promise<void>
  /**
   * Called after a decode of several sequences failed, with every running step. Present where that may have spoilt sequences that were not in
   * the batch: all running steps can then only be cancelled.
   */
  distrust?(): void
}

export interface StepCache extends CacheSteps, CacheBooks, CacheAbilities {
  /** Drops a conversation: its sequences in every tier and its ledger. An unknown one is ignored; a running one is the caller's mistake. */
  forget(conversation: ConversationId): void
  /** As `forget`, also where other engines find it: resolves when no file is left. */
  erase(conversation: ConversationId): Promise<void>
  /** Drops what holds text that `prompt` asks to be forgotten, or has read it, from every tier (`Edit.forget`). */
  forgetHidden(conversation: ConversationId, prompt: Prompt): Promise<void>
  /**
   * Rewrites an idle conversation's cells next to each other, from the lowest free ones on, so that attention need not run over freed cells between
   * them (docs/kv-cache.md). Values and positions stay, and so do cells that others share. Returns how many were rewritten.
   */
  compact(conversation: ConversationId): number
  /** Moves all off the device while no step runs, the longest unused first, for the next start of the program. */
  leave(): Promise<void>
}
