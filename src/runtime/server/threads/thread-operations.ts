/** Operations on threads for programs and people: list, fragment, fold, restore, summarise, search, export, delete. */
import type { ChatMessage } from '../../chat/message.js'
import type { FragmentOptions } from '../../context/conversation.js'
import { byMessage, type CostlyFolds, type FoldOptions, type Fragment } from '../../context/fragment.js'
import { settled } from '../../context/ports.js'
import type { Result } from '../../context/refusal.js'
import type { Hit, SearchOptions, SearchResult } from '../../context/search.js'
import { noted, sizeNote } from '../../context/size-note.js'
import type { ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'
import { definedFields } from '../../core/json.js'
import { span } from '../../core/span.js'
import { inTurns } from '../../core/turns.js'
import type { RefreshResult } from '../../engine/background-recompute.js'
import type { Engine } from '../../engine/engine.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { Residency } from '../../kv/residency.js'
import type { Damage } from '../../store/damage.js'
import type { ThreadEvent, Unforgotten } from '../../store/port.js'
import { toolsFoundIn } from '../../tools/management.js'
import { AttentionReplay } from './attention-replay.js'
import type { Models, ServedEngine } from './models.js'
import { placesIn, wordsOf } from './find-threads.js'
import {
  exported,
  type ExportedThread,
  type LookOptions,
  type OperationRun,
  type ThreadAttention,
  type ThreadChange,
  type ThreadFound,
  type ThreadMessage,
  type ThreadSearch,
  type ThreadsFound,
  type ThreadSummary,
  type ThreadView,
} from './thread-api.js'
import type { ThreadManager } from './thread-manager.js'
import { saltDigest } from './cache-salt.js'
import type { KnownThread } from './thread-table.js'
import type { Thread } from './thread.js'

/**
 * Operations on one tenant's threads; the id of another tenant's thread is unknown here. An operation that fails changes nothing. Edits
 * wait until no request runs on the thread, and take effect at the next step. An aborted `signal` ends the wait for a model with
 * engine/cancelled; summaries, refreshes, searches over threads and attention replays also stop while they run.
 * @throws KvfoldError server/no-thread; tool/unknown-id, tool/refused, tool/costs-more and tool/bad-arguments from the conversation; what
 * the engine throws
 */
export class Operations {
  readonly #looking: AttentionReplay

  constructor(
    private readonly book: ThreadManager,
    private readonly models: Models,
  ) {
    this.#looking = new AttentionReplay(models)
  }

  /**
   * Runs `work`, which may call `list`, `damage`, `get`, `view`, `hasSalt` and `export`. They then see all changes that other servers made
   * before. With a store that servers share, call these six only inside `reading`. `work` may run more than once.
   * @throws the errors of `work`; KvfoldError store/unreachable
   */
  reading<T>(work: () => T): Promise<T> {
    return this.book.reading(work)
  }

  /** The tenant's threads, most recently used first. */
  list(tenant: Tenant): readonly ThreadSummary[] {
    return this.book.of(tenant).map(summaryOf)
  }

  /** The tenant's threads that the store cannot read as they were written. On such a thread only `delete` works. */
  damage(tenant: Tenant): readonly Damage[] {
    return this.book.damage(tenant)
  }

  get(tenant: Tenant, id: string): ThreadView {
    const thread = this.book.get(tenant, id)
    return viewOf(thread, cellsOf(thread, this.models))
  }

  /** Returns the messages as clients know them, oldest first. */
  view(tenant: Tenant, id: string): readonly ChatMessage[] {
    return this.book.get(tenant, id).view
  }

  /** Whether requests with this salt (`Ask.cacheSalt`) may continue the thread. @throws KvfoldError as `view` */
  hasSalt(tenant: Tenant, id: string, cacheSalt: string | undefined): boolean {
    return this.book.get(tenant, id).salt === saltDigest(tenant, cacheSalt)
  }

  fragment(tenant: Tenant, id: string, options: FragmentOptions, signal?: AbortSignal): Promise<readonly Fragment[]> {
    return this.#with({ tenant, id, signal }, (thread, engine) =>
      this.book.quietly(thread, 'fragments', async () => {
        const { conversation, prompted } = thread
        const shown = noted(settled(conversation.messages), prompted.tools)
        await engine.prepare?.(shown, prompted.tools, [], prompted.variables, true).catch(unlessTemplate)
        const { fragments } = granted(await inTurns(conversation.fragmenting(options)))
        edited(thread, 'cut', fragments, 0)
        return fragments
      }),
    )
  }

  fold(
    tenant: Tenant,
    id: string,
    fragment: string,
    how?: FoldOptions,
    costly?: CostlyFolds,
    signal?: AbortSignal,
  ): Promise<Fragment> {
    return this.#with({ tenant, id, signal }, (thread, engine) =>
      this.book.quietly(thread, 'fragments', async () => {
        const { conversation } = thread
        if (how?.forget === true && engine.forgetHidden === undefined) throw new KvfoldError('tool/refused', ELSEWHERE)
        const before = thread.record
        const folded = granted(conversation.fold(fragment, how, costly)).fragment
        edited(thread, 'folded', [folded], savedBy(folded))
        if (how?.forget !== true) return folded
        try {
          // The engine forgets now. If the template refuses the prompt because a call has no result yet, the engine forgets at the next
          // step.
          await engine.forgetHidden?.(conversation.id, ...shownBy(thread)).catch(unlessTemplate)
        } catch (error) {
          thread.revert(before)
          throw error
        }
        thread.noteForget()
        return folded
      }),
    )
  }

  /**
   * Returns the servers that may still hold the text hidden by the thread's last fold with `forget`, after waiting a few seconds for them.
   * Each of them forgets it before it serves again.
   */
  unforgotten(tenant: Tenant, id: string): Promise<readonly Unforgotten[]> {
    return this.book.unforgotten({ tenant, id })
  }

  /** Shows a fragment, or an omitted part of a message, again. For an omitted part the result has an empty span. */
  restore(tenant: Tenant, id: string, fragment: string, signal?: AbortSignal): Promise<Fragment> {
    return this.#edit({ tenant, id, signal }, (thread) => {
      const { conversation } = thread
      const omission = conversation.omissions.find((one) => one.id === fragment)
      if (omission !== undefined) {
        const { id: restored, message } = omission
        const shown: Fragment = { id: restored, message, span: span(0, 0), state: { kind: 'open' } }
        conversation.readmit(fragment)
        edited(thread, 'restored', [shown], 0)
        return shown
      }
      const before = conversation.fragments.find((one) => one.id === fragment)
      const restored = granted(conversation.restore(fragment)).fragment
      edited(thread, 'restored', [restored], -savedBy(before))
      return restored
    })
  }

  summarize(
    tenant: Tenant,
    id: string,
    fragment: string,
    focus: string,
    { signal, onSpent }: OperationRun = {},
    costly?: CostlyFolds,
  ): Promise<{ readonly fragment: Fragment; readonly ledger: readonly LedgerEntry[] }> {
    return this.#edit({ tenant, id, signal }, async (thread) => {
      const result = await thread.conversation.summarize(fragment, focus, signal, costly)
      thread.account(result.ledger ?? [])
      onSpent?.(result.ledger ?? [])
      const summarised = granted(result)
      edited(thread, 'summarised', [summarised.fragment], savedBy(summarised.fragment))
      return summarised
    })
  }

  search(tenant: Tenant, id: string, options: SearchOptions, signal?: AbortSignal): Promise<SearchResult> {
    return this.#edit({ tenant, id, signal }, ({ conversation }) => {
      const { hits, total, ignoringCase, elsewhere } = granted(conversation.search(options))
      return { hits, total, ignoringCase, elsewhere }
    })
  }

  detail(
    tenant: Tenant,
    id: string,
    hit: string,
    extendedContext?: number,
    signal?: AbortSignal,
  ): Promise<{ readonly hit: Hit; readonly text: string }> {
    return this.#edit({ tenant, id, signal }, ({ conversation }) => {
      const { hit: found } = granted(conversation.detail(hit, extendedContext))
      const { start, end } = found.excerpt
      return { hit: found, text: conversation.messages[found.message]?.content.slice(start, end) ?? '' }
    })
  }

  /**
   * Searches the titles and original texts of the tenant's threads, most recently used first. Ignores case and differences of white space.
   * Leaves out damaged threads.
   * @throws KvfoldError engine/cancelled
   */
  async find(tenant: Tenant, { query, maxThreads = THREADS }: ThreadSearch, signal?: AbortSignal): Promise<ThreadsFound> {
    const words = wordsOf(query)
    const threads: ThreadFound[] = []
    for (const { id } of this.book.of(tenant)) {
      if (threads.length === maxThreads) return { threads, all: false }
      if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The search was cancelled.')
      const thread = await this.#readable(tenant, id)
      if (thread === null) continue
      const { title, messages } = thread
      const found = await inTurns(placesIn(messages, words))
      if (found.messages > 0 || words.test(title)) threads.push({ id, title, ...found })
    }
    return { threads, all: true }
  }

  /** Sets the contract of later steps whose request names none; null: the server's default. */
  contract(tenant: Tenant, id: string, contract: ContractChoice | null): Promise<void> {
    return this.book.owned(tenant, id, (thread) =>
      this.book.quietly(thread, 'contract', () => {
        thread.contract = contract
      }),
    )
  }

  /** Sets the title, of which lists show 80 characters; null or blank: the beginning of the first user message. */
  rename(tenant: Tenant, id: string, title: string | null): Promise<void> {
    const name = title === null || title.trim() === '' ? null : title.trim()
    const reason = `named ${name === null ? 'as its first message begins' : JSON.stringify(name)} by a person or a program`
    return this.book.owned(tenant, id, (thread) =>
      this.book.quietly(thread, 'title', () => {
        thread.happened({ kind: 'edit', what: 'named', name, folded: [], saves: 0, reason })
      }),
    )
  }

  /** Recomputes the thread's approximate cells now. If there are none, returns `exact: true` and an empty ledger. */
  refresh(tenant: Tenant, id: string, { signal, onSpent }: OperationRun = {}): Promise<RefreshResult> {
    return this.#with({ tenant, id, signal }, (thread, engine) =>
      this.book.quietly(thread, 'ledger', async () => {
        // An engine without `refresh` has only exact cells.
        if (engine.refresh === undefined) return { exact: true, ledger: [] }
        const result = await engine.refresh(thread.conversation.id, signal === undefined ? {} : { signal })
        thread.account(result.ledger)
        onSpent?.(result.ledger)
        return result
      }),
    )
  }

  /**
   * Returns how much attention the thread's last answer paid to earlier text. Replays the answer on a second context of its model, one
   * replay at a time.
   * @throws KvfoldError attention/unavailable, attention/bad-request, memory/insufficient, context/full, engine/cancelled
   */
  async attention(tenant: Tenant, id: string, options?: LookOptions): Promise<ThreadAttention> {
    // The thread must stay loaded while the replay waits for its turn: unloading loses the tools and variables of its prompt.
    const { done } = await this.reading(() => {
      const thread = this.book.get(tenant, id)
      return { done: thread.held(() => this.#looking.look(thread, options)) }
    })
    return done
  }

  /** Returns the whole thread as plain JSON. */
  export(tenant: Tenant, id: string): ExportedThread {
    return exported(this.book.get(tenant, id).record)
  }

  /**
   * Deletes the thread from every tier, the store and memory, and cancels its running step. Returns false if it was kept because of
   * `unusedSince`.
   * @param unusedSince Unix milliseconds; keeps a thread that is in use, or was used at or after this time
   */
  delete(tenant: Tenant, id: string, unusedSince?: number): Promise<boolean> {
    return this.book.delete(tenant, id, unusedSince)
  }

  /** Calls `listener` after every change, until the returned function is called. @param tenant null: threads of all tenants */
  watch(tenant: Tenant | null, listener: (change: ThreadChange) => void): () => void {
    return this.book.watch(tenant, listener)
  }

  /** Returns title and messages; null when the thread is damaged or was deleted meanwhile. */
  async #readable(tenant: Tenant, id: string): Promise<{ title: string; messages: readonly ChatMessage[] } | null> {
    try {
      return await this.reading(() => {
        const { card, conversation } = this.book.get(tenant, id)
        return { title: card.title, messages: conversation.messages }
      })
    } catch (error) {
      if (error instanceof KvfoldError && UNREADABLE.has(error.code)) return null
      throw error
    }
  }

  #edit<T>(of: Operated, work: (thread: Thread) => T | Promise<T>): Promise<T> {
    return this.#with(of, (thread) => this.book.quietly(thread, 'fragments', () => work(thread)))
  }

  /** Runs `work` while the thread's model is loaded, because cutting fragments and writing summaries need it. */
  #with<T>({ tenant, id, signal }: Operated, work: (thread: Thread, engine: ServedEngine) => Promise<T>): Promise<T> {
    return this.book.owned(tenant, id, async (thread) => {
      const lease = await this.models.lease(this.models.named(thread.model), definedFields({ signal }))
      try {
        return await work(thread, lease.engine)
      } finally {
        lease.release()
      }
    })
  }
}

/** The thread of an operation. `signal` ends the wait for its model. */
interface Operated {
  readonly tenant: Tenant
  readonly id: string
  readonly signal: AbortSignal | undefined
}

/** Default of `ThreadSearch.maxThreads`. */
const THREADS = 20
const UNREADABLE: ReadonlySet<string> = new Set(['server/no-thread', 'store/damaged-thread', 'store/lost-thread'])

const ELSEWHERE =
  'Another server computes this model and keeps its own cache, which cannot be told to forget. Fold without forget.'

/** Records an edit by a person or a program as an event of the thread. */
function edited(thread: Thread, what: NonNullable<ThreadEvent['what']>, fragments: readonly Fragment[], saves: number): void {
  const folded = fragments.map(({ id }) => id)
  thread.happened({ kind: 'edit', what, folded, saves, reason: `${folded.join(', ')} ${what} by a person or a program` })
}

/** Returns the tokens that hiding the fragment saves; 0 if they were not counted. */
const savedBy = (fragment: Fragment | undefined): number => (fragment?.price?.open ?? 0) - (fragment?.price?.hidden ?? 0)

/** Ignores errors of the chat template: many templates refuse a conversation in which a call has no result. Rethrows other errors. */
function unlessTemplate(error: unknown): void {
  if (!(error instanceof KvfoldError && error.code.startsWith('chat/'))) throw error
}

/** Returns a successful result. @throws KvfoldError with the code and message of a refusal */
function granted<T extends object>(result: Result<T>): T {
  if (result.ok) return result
  const { code, message } = result
  throw new KvfoldError(code, message)
}

function summaryOf({ id, model, created, used, parent, contract, asked, card }: KnownThread): ThreadSummary {
  const { title, messages, fragments, last } = card
  return { id, model, title, created, used, messages, fragments, last, parent, running: asked, contract }
}

function viewOf(thread: Thread, cells: ReadonlyMap<string, Residency>): ThreadView {
  const { conversation, ledger, events, seen, tools, prompted } = thread
  const costs = new Map(ledger.findLast(({ kind }) => kind === 'answer')?.messages.map((cost) => [cost.index, cost]))
  const fragments = byMessage(conversation.fragments)
  const omissions = byMessage(conversation.omissions)
  const shown = conversation.shownAll()
  const all = conversation.messages.map((message, index): ThreadMessage => ({
    index,
    message,
    visible: seen[index] !== 'nothing' && seen[index] !== undefined,
    shown: shown[index]! + sizeNote(message, prompted.tools),
    fragments: (fragments.get(index) ?? []).map((fragment) => {
      const where = cells.get(fragment.id)
      return where === undefined ? fragment : { ...fragment, cells: where }
    }),
    omitted: omissions.get(index) ?? [],
    cost: costs.get(index) ?? null,
    ...(message.sampled === undefined ? {} : { generated: message.sampled.tokens.length }),
  }))
  return {
    ...{ ...summaryOf(thread), all, ledger, events },
    tools: tools.map(({ name }) => name),
    found: toolsFoundIn(conversation),
    salted: thread.salt !== undefined,
  }
}

/** Returns the thread's prompt as arguments for the engine: messages, tools, edits, template variables. */
const shownBy = ({ conversation, prompted }: Thread): Parameters<Engine['count']> => [
  noted(conversation.messages, prompted.tools),
  prompted.tools,
  conversation.edits(),
  prompted.variables,
]

/** Returns where the cells of hidden fragments are, by fragment id; empty when unknown. */
function cellsOf(thread: Thread, models: Models): ReadonlyMap<string, Residency> {
  const { conversation, model } = thread
  const hidden = conversation.fragments.filter(({ state }) => state.kind !== 'open')
  const engine = models.all.find(({ name }) => name === model)?.engine
  // The engine reports holes in order, one per folded fragment. Omitted parts are holes too, so the order would not match the fragments.
  if (hidden.length === 0 || conversation.omissions.length > 0 || engine?.residency === undefined) return new Map()
  try {
    const found = engine.residency(conversation.id, ...shownBy(thread))
    return new Map(found?.map((where, index) => [hidden[index]!.id, where]))
  } catch (error) {
    unlessTemplate(error)
    return new Map()
  }
}
