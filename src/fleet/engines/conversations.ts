/** The conversations of a remote engine: each has a ledger and a queue that runs its steps one after another. */
import { KvfoldError } from '../../runtime/core/errors.js'
import type { ConversationId } from '../../runtime/core/ids.js'
import { joined } from '../../runtime/core/signals.js'
import { RemoteLedger } from './remote-ledger.js'
import { DroppedMessages } from './drops.js'
import { Deferral, type DeferralOptions } from './deferral.js'

export interface RemoteConversation {
  readonly books: RemoteLedger
  readonly deferral: Deferral | null
  readonly dropped: DroppedMessages
}

interface KeptConversation extends RemoteConversation {
  readonly running: Set<AbortController>
  /** Settles when the last step in the conversation's queue is over. */
  tail: Promise<unknown>
}

export class RemoteConversations {
  readonly #conversations = new Map<ConversationId, KeptConversation>()
  #closed = false

  /** @param deferEdits null: every edit is sent at once */
  constructor(private readonly deferEdits: DeferralOptions | null) {}

  /** Returns the conversation's state; null before its first step, and after `forget`. */
  of(conversation: ConversationId): RemoteConversation | null {
    return this.#conversations.get(conversation) ?? null
  }

  /**
   * Runs `step` after the conversation's earlier steps have ended.
   * @throws KvfoldError engine/disposed; engine/cancelled if the step was cancelled before it began; whatever `step` throws
   */
  async run<T>(
    conversation: ConversationId,
    signal: AbortSignal | undefined,
    step: (state: RemoteConversation, signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    if (this.#closed) throw new KvfoldError('engine/disposed', 'The engine was disposed; create a new one.')
    const state = this.#stateOf(conversation)
    const own = new AbortController()
    state.running.add(own)
    const { signal: either, release } = joined([own.signal, signal])
    const before = state.tail
    const running = (async () => {
      await before
      if (either.aborted) throw new KvfoldError('engine/cancelled', 'The step was cancelled before it began.')
      return step(state, either)
    })().finally(() => {
      release()
      state.running.delete(own)
    })
    state.tail = running.catch(() => undefined)
    return running
  }

  /** Aborts the conversation's running and waiting steps, and forgets its ledger. */
  forget(conversation: ConversationId): void {
    const state = this.#conversations.get(conversation)
    this.#conversations.delete(conversation)
    for (const running of state?.running ?? []) running.abort()
  }

  /** Forgets all conversations. Resolves when all their steps have ended. */
  async close(): Promise<void> {
    this.#closed = true
    const all = [...this.#conversations.values()]
    for (const conversation of [...this.#conversations.keys()]) this.forget(conversation)
    await Promise.allSettled(all.map(({ tail }) => tail))
  }

  #stateOf(conversation: ConversationId): KeptConversation {
    const known = this.#conversations.get(conversation)
    if (known !== undefined) return known
    const deferral = this.deferEdits === null ? null : new Deferral(this.deferEdits)
    const own = { books: new RemoteLedger(), deferral, dropped: new DroppedMessages() }
    const state: KeptConversation = { ...own, running: new Set(), tail: Promise.resolve() }
    this.#conversations.set(conversation, state)
    return state
  }
}
