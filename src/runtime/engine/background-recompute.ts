/** Owns turning a spliced conversation exact, in slices between which other requests run. */
import { KvfoldError } from '../core/errors.js'
import { conversationId, type ConversationId } from '../core/ids.js'
import type { StepCache } from '../kv/step-cache.js'
import type { CacheTotals } from '../kv/residency.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { EXACT } from '../kv/plan/parts.js'
import { computedIn } from '../kv/plan/plan.js'
import type { Prompt } from '../kv/prompt.js'
import type { JobRequest } from './job.js'

export interface RefreshOptions {
  /** `idle`: a slice begins only when nothing else runs. Default `now`. */
  readonly when?: 'now' | 'idle'
  /** Ends it between two slices; what is done stays for the next refresh. */
  readonly signal?: AbortSignal
}

export interface RefreshResult {
  /** False: interrupted, or the cache holds nothing of the conversation. */
  readonly exact: boolean
  /** What it cost, oldest first. */
  readonly ledger: readonly LedgerEntry[]
}

/** Ubatches in a slice: another request waits for one of them at most. */
const SLICE_UBATCHES = 2

/** What a refresh needs of its engine. */
export interface RefreshPorts {
  readonly cache: StepCache
  /** Tokens that are computed at once. */
  readonly ubatch: number
  /** Waits until nothing runs. */
  idle(): Promise<void>
  /** @throws KvfoldError engine/cancelled when interrupted before it began */
  submit(request: JobRequest): Promise<{ readonly ledger: LedgerEntry }>
  forget(conversation: ConversationId): void
}

/** Where a conversation is made exact. */
export const shadowOf = (conversation: ConversationId): ConversationId => conversationId(`${conversation} (refresh)`)

/**
 * The exact cells are made in a shadow of the conversation, which goes on as it is meanwhile; at the end they are lent to it. So an interruption
 * costs the conversation nothing, and a later refresh goes on where this one ended. It takes as many cells as are computed, for its time.
 */
export async function refresh(
  conversation: ConversationId,
  ports: RefreshPorts,
  { when = 'now', signal }: RefreshOptions,
): Promise<RefreshResult> {
  const { cache } = ports
  const slice = SLICE_UBATCHES * ports.ubatch
  const shadow = shadowOf(conversation)
  const ledger: LedgerEntry[] = []
  /** False when it was interrupted while it waited for its turn. */
  const show = async (of: ConversationId, prompt: Prompt): Promise<boolean> => {
    try {
      const salt = cache.live(conversation)?.salt
      const request = { conversation: of, prompt, sampler: {}, maxTokens: 0, kind: 'refresh' } as const
      const more = { ...(salt === undefined ? {} : { salt }), ...(signal === undefined ? {} : { signal }) }
      ledger.push((await ports.submit({ ...request, ...more })).ledger)
      return true
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'engine/cancelled') return false
      throw error
    }
  }
  for (;;) {
    if (when === 'idle') await ports.idle()
    const prompt = cache.prompt(conversation)
    const sequence = cache.live(conversation)
    if (prompt === null || sequence === null || signal?.aborted === true) return { exact: false, ledger }
    if (sequence.exact === sequence.held) return { exact: true, ledger }
    const missing = computedIn(cache.plan(sequence, prompt, EXACT))
    if (missing <= slice) {
      if (!(await show(conversation, prompt))) return { exact: false, ledger }
      ports.forget(shadow)
      continue
    }
    const tokens = prompt.tokens.slice(0, prompt.tokens.length - missing + slice)
    const part = { tokens, messages: [{ index: 0, role: 'refresh', span: { start: 0, end: tokens.length } }] }
    if (!(await show(shadow, part))) return { exact: false, ledger }
  }
}

// What `auto` promises of spliced conversations: they are made exact when nothing else runs.

/** What it needs of the engine. */
export interface RecomputePorts {
  /** Waits until nothing runs, and between its slices. */
  readonly refresh: (conversation: ConversationId, signal: AbortSignal) => Promise<RefreshResult>
  readonly compact: (conversation: ConversationId) => Promise<unknown>
  readonly totals: () => Pick<CacheTotals, 'reach' | 'used'>
}

/** Attention runs over this many times the cells in use before they are moved together. */
const COMPACT_FROM = 1.5

export class BackgroundRecompute {
  readonly #running = new Set<ConversationId>()
  readonly #ending = new AbortController()

  constructor(private readonly ports: RecomputePorts) {}

  /** Makes the conversation exact as soon as nothing runs, and moves its cells together if attention runs over many free ones. */
  later(conversation: ConversationId): void {
    if (this.#running.has(conversation)) return
    this.#running.add(conversation)
    // What comes in between (a full context, the end of the engine) leaves the conversation as it was.
    void this.#recompute(conversation)
      .catch(() => undefined)
      .finally(() => this.#running.delete(conversation))
  }

  /** Interrupts what runs; the engine ends. */
  end(): void {
    this.#ending.abort()
  }

  async #recompute(conversation: ConversationId): Promise<void> {
    const { refresh, compact, totals } = this.ports
    const { exact } = await refresh(conversation, this.#ending.signal)
    const { reach, used } = totals()
    if (exact && reach > COMPACT_FROM * used) await compact(conversation)
  }
}
