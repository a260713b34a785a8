/** Makes spliced conversations exact, in slices. Other requests run between the slices. */
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
  /** `now`: each slice is submitted at once. `idle`: each slice waits until nothing else runs. Default `now`. */
  readonly when?: 'now' | 'idle'
  /** Ends the refresh between two slices. A later refresh reuses the finished slices. */
  readonly signal?: AbortSignal
}

export interface RefreshResult {
  /** Whether the conversation is exact now. False if the refresh was interrupted, or if the cache has no cells of the conversation. */
  readonly exact: boolean
  /** The ledger entries of the refresh, oldest first. */
  readonly ledger: readonly LedgerEntry[]
}

/** Number of ubatches in a slice. Another request waits for at most one slice. */
const SLICE_UBATCHES = 2

/** What a refresh needs of the engine. */
export interface RefreshPorts {
  readonly cache: StepCache
  /** The context's ubatch: how many tokens are computed at once. */
  readonly ubatch: number
  /** Waits until nothing runs. */
  idle(): Promise<void>
  /** Submits a step. @throws KvfoldError engine/cancelled when the step is interrupted before it begins */
  submit(request: JobRequest): Promise<{ readonly ledger: LedgerEntry }>
  forget(conversation: ConversationId): void
}

/** Returns the id of the conversation's shadow, in which the exact cells are computed. */
export const shadowOf = (conversation: ConversationId): ConversationId => conversationId(`${conversation} (refresh)`)

/**
 * Computes the exact cells in a shadow conversation, and lends them to the conversation at the end. So an interruption costs the
 * conversation nothing, and a later refresh continues where this one stopped. Meanwhile the shadow takes as many cells as are computed. If
 * fewer are free, `now` computes in the conversation itself, and `idle` does nothing.
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
  /**
   * Submits a step that only computes. It may have to wait for another step of the conversation, which makes `prompt` outdated; then it
   * does not begin (`outdated`). `interrupted`: it was cancelled before its turn or while it ran.
   */
  const show = async (of: ConversationId, prompt: Prompt): Promise<'shown' | 'outdated' | 'interrupted'> => {
    const at = { isOutdated: false }
    const isWanted = () => {
      at.isOutdated = of === conversation && cache.prompt(of) !== prompt
      return !at.isOutdated
    }
    try {
      const salt = cache.live(conversation)?.salt
      const asked = { conversation: of, maxTokens: 0, kind: 'refresh' as const, ...(signal === undefined ? {} : { signal }) }
      const { ledger: entry } = await ports.submit({
        ...{ asked, prompt, sampler: {}, isWanted },
        ...(salt === undefined ? {} : { salt }),
      })
      ledger.push(entry)
      return entry.kind === 'cancelled' ? 'interrupted' : 'shown'
    } catch (error) {
      if (error instanceof KvfoldError && error.code === 'engine/cancelled') return at.isOutdated ? 'outdated' : 'interrupted'
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
    const { used, cells, sequences } = cache.totals
    // Work that no request asked for evicts nothing.
    if (when === 'idle' && (missing > cells - used || sequences.used === sequences.total)) return { exact: false, ledger }
    if (missing <= slice) {
      const outcome = await show(conversation, prompt)
      if (outcome === 'interrupted') return { exact: false, ledger }
      if (outcome === 'shown') ports.forget(shadow)
      continue
    }
    if (missing > cells - used) {
      // The shadow would evict other conversations, and before them this one's parked versions.
      if ((await show(conversation, prompt)) === 'interrupted') return { exact: false, ledger }
      continue
    }
    const tokens = prompt.tokens.slice(0, prompt.tokens.length - missing + slice)
    const part = { tokens, messages: [{ index: 0, role: 'refresh', span: { start: 0, end: tokens.length } }] }
    if ((await show(shadow, part)) === 'interrupted') return { exact: false, ledger }
  }
}

// The background recompute of `auto`: makes spliced conversations exact while nothing else runs.

/** What the background recompute needs of the engine. */
export interface RecomputePorts {
  /** Refreshes the conversation; waits before each slice until nothing runs. */
  readonly refresh: (conversation: ConversationId, signal: AbortSignal) => Promise<RefreshResult>
  readonly compact: (conversation: ConversationId) => Promise<unknown>
  readonly totals: () => Pick<CacheTotals, 'reach' | 'used'>
}

/** Cells are moved together if attention runs over more than this many times the cells in use. */
const COMPACT_FROM = 1.5

export class BackgroundRecompute {
  readonly #running = new Set<ConversationId>()
  readonly #ending = new AbortController()

  constructor(private readonly ports: RecomputePorts) {}

  /** Makes the conversation exact as soon as nothing runs. Then moves its cells together if attention runs over many free cells. */
  later(conversation: ConversationId): void {
    if (this.#running.has(conversation)) return
    this.#running.add(conversation)
    // Ignore failures (a full context, the end of the engine): the conversation is then as it was.
    void this.#recompute(conversation)
      .catch(() => undefined)
      .finally(() => this.#running.delete(conversation))
  }

  /** Interrupts all refreshes, because the engine ends. */
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
