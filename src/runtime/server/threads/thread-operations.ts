/** Carries out the operations of programs and people on threads, with the thread manager and the models. */
import type { ChatMessage } from '../../chat/message.js'
import { byMessage, type Fragment } from '../../context/fragment.js'
import { settled } from '../../context/ports.js'
import type { Result } from '../../context/refusal.js'
import { noted, sizeNote } from '../../context/size-note.js'
import { KvfoldError } from '../../core/errors.js'
import type { Tenant } from '../../core/ids.js'
import { definedFields } from '../../core/json.js'
import { span } from '../../core/span.js'
import { inTurns } from '../../core/turns.js'
import type { Engine } from '../../engine/engine.js'
import type { Residency } from '../../kv/residency.js'
import type { Damage } from '../../store/damage.js'
import type { ThreadEvent } from '../../store/port.js'
import { toolsFoundIn } from '../../tools/management.js'
import { AttentionReplay } from './attention-replay.js'
import type { Models, ServedEngine } from './models.js'
import { placesIn, wordsOf } from './find-threads.js'
import {
  exported,
  type ThreadApi,
  type ThreadFound,
  type ThreadMessage,
  type ThreadsFound,
  type ThreadSummary,
  type ThreadView,
} from './thread-api.js'
import type { ThreadManager } from './thread-manager.js'
import { saltDigest } from './cache-salt.js'
import type { KnownThread } from './thread-table.js'
import type { Thread } from './thread.js'

export class Operations implements ThreadApi {
  readonly #looking: AttentionReplay

  constructor(
    private readonly book: ThreadManager,
    private readonly models: Models,
  ) {
    this.#looking = new AttentionReplay(models)
  }

  reading<T>(work: () => T): Promise<T> {
    return this.book.reading(work)
  }

  list(tenant: Tenant): readonly ThreadSummary[] {
    return this.book.of(tenant).map(summaryOf)
  }

  damage(tenant: Tenant): readonly Damage[] {
    return this.book.damage(tenant)
  }

  get(tenant: Tenant, id: string): ThreadView {
    const thread = this.book.get(tenant, id)
    return viewOf(thread, cellsOf(thread, this.models))
  }

  view(tenant: Tenant, id: string): readonly ChatMessage[] {
    return this.book.get(tenant, id).view
  }

  hasSalt(tenant: Tenant, id: string, cacheSalt: string | undefined): boolean {
    return this.book.get(tenant, id).salt === saltDigest(tenant, cacheSalt)
  }

  fragment(...[tenant, id, options, signal]: Parameters<ThreadApi['fragment']>): Promise<readonly Fragment[]> {
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

  fold(...[tenant, id, fragment, how, costly, signal]: Parameters<ThreadApi['fold']>): Promise<Fragment> {
    return this.#with({ tenant, id, signal }, (thread, engine) =>
      this.book.quietly(thread, 'fragments', async () => {
        const { conversation } = thread
        if (how?.forget === true && engine.forgetHidden === undefined) throw new KvfoldError('tool/refused', ELSEWHERE)
        const before = thread.record
        const folded = granted(conversation.fold(fragment, how, costly)).fragment
        edited(thread, 'folded', [folded], savedBy(folded))
        if (how?.forget !== true) return folded
        try {
          // Engines forget at once. If the template refuses the prompt, because results of calls are missing, they forget with the next step.
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

  unforgotten(...[tenant, id]: Parameters<ThreadApi['unforgotten']>): ReturnType<ThreadApi['unforgotten']> {
    return this.book.unforgotten({ tenant, id })
  }

  restore(...[tenant, id, fragment, signal]: Parameters<ThreadApi['restore']>): Promise<Fragment> {
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
    ...[tenant, id, fragment, focus, { signal, onSpent } = {}, costly]: Parameters<ThreadApi['summarize']>
  ): ReturnType<ThreadApi['summarize']> {
    return this.#edit({ tenant, id, signal }, async (thread) => {
      const result = await thread.conversation.summarize(fragment, focus, signal, costly)
      thread.account(result.ledger ?? [])
      onSpent?.(result.ledger ?? [])
      const summarised = granted(result)
      edited(thread, 'summarised', [summarised.fragment], savedBy(summarised.fragment))
      return summarised
    })
  }

  search(...[tenant, id, options, signal]: Parameters<ThreadApi['search']>): ReturnType<ThreadApi['search']> {
    return this.#edit({ tenant, id, signal }, ({ conversation }) => {
      const { hits, total, ignoringCase, elsewhere } = granted(conversation.search(options))
      return { hits, total, ignoringCase, elsewhere }
    })
  }

  detail(...[tenant, id, hit, extendedContext, signal]: Parameters<ThreadApi['detail']>): ReturnType<ThreadApi['detail']> {
    return this.#edit({ tenant, id, signal }, ({ conversation }) => {
      const { hit: found } = granted(conversation.detail(hit, extendedContext))
      const { start, end } = found.excerpt
      return { hit: found, text: conversation.messages[found.message]?.content.slice(start, end) ?? '' }
    })
  }

  async find(...[tenant, { query, maxThreads = THREADS }, signal]: Parameters<ThreadApi['find']>): Promise<ThreadsFound> {
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

  contract(...[tenant, id, contract]: Parameters<ThreadApi['contract']>): Promise<void> {
    return this.book.owned(tenant, id, (thread) =>
      this.book.quietly(thread, 'contract', () => {
        thread.contract = contract
      }),
    )
  }

  rename(...[tenant, id, title]: Parameters<ThreadApi['rename']>): Promise<void> {
    const name = title === null || title.trim() === '' ? null : title.trim()
    const reason = `named ${name === null ? 'as its first message begins' : JSON.stringify(name)} by a person or a program`
    return this.book.owned(tenant, id, (thread) =>
      this.book.quietly(thread, 'title', () => {
        thread.happened({ kind: 'edit', what: 'named', name, folded: [], saves: 0, reason })
      }),
    )
  }

  refresh(...[tenant, id, { signal, onSpent } = {}]: Parameters<ThreadApi['refresh']>): ReturnType<ThreadApi['refresh']> {
    return this.#with({ tenant, id, signal }, (thread, engine) =>
      this.book.quietly(thread, 'ledger', async () => {
        // Engines without contracts have only exact cells.
        if (engine.refresh === undefined) return { exact: true, ledger: [] }
        const result = await engine.refresh(thread.conversation.id, signal === undefined ? {} : { signal })
        thread.account(result.ledger)
        onSpent?.(result.ledger)
        return result
      }),
    )
  }

  async attention(...[tenant, id, options]: Parameters<ThreadApi['attention']>): ReturnType<ThreadApi['attention']> {
    // The thread stays loaded while the look waits for its turn: an unloaded one has lost the tools and variables of its prompt.
    const { done } = await this.reading(() => {
      const thread = this.book.get(tenant, id)
      return { done: thread.held(() => this.#looking.look(thread, options)) }
    })
    return done
  }

  export(tenant: Tenant, id: string): ReturnType<ThreadApi['export']> {
    return exported(this.book.get(tenant, id).record)
  }

  delete(tenant: Tenant, id: string, unusedSince?: number): Promise<boolean> {
    return this.book.delete(tenant, id, unusedSince)
  }

  watch(...[tenant, listener]: Parameters<ThreadApi['watch']>): () => void {
    return this.book.watch(tenant, listener)
  }

  /** Returns the title and messages of a thread; null when it is damaged, or was deleted meanwhile. */
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

  /** Runs `work` with the thread's model loaded. Dividing text into fragments and summaries need the model. */
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

/** The thread that an operation is for, and the signal that ends the operation's wait for the model. */
interface Operated {
  readonly tenant: Tenant
  readonly id: string
  readonly signal: AbortSignal | undefined
}

/** How many threads a search over threads returns when the caller does not say. */
const THREADS = 20
const UNREADABLE: ReadonlySet<string> = new Set(['server/no-thread', 'store/damaged-thread', 'store/lost-thread'])

const ELSEWHERE =
  'Another server computes this model and keeps its own cache, which cannot be told to forget. Fold without forget.'

/** Records an edit as an event of the thread. */
function edited(thread: Thread, what: NonNullable<ThreadEvent['what']>, fragments: readonly Fragment[], saves: number): void {
  const folded = fragments.map(({ id }) => id)
  thread.happened({ kind: 'edit', what, folded, saves, reason: `${folded.join(', ')} ${what} by a person or a program` })
}

/** Returns the tokens that hiding the fragment saves; 0 when they were not counted. */
const savedBy = (fragment: Fragment | undefined): number => (fragment?.price?.open ?? 0) - (fragment?.price?.hidden ?? 0)

/** Ignores errors of the template, because many templates refuse calls without all their results. Rethrows all other errors. */
function unlessTemplate(error: unknown): void {
  if (!(error instanceof KvfoldError && error.code.startsWith('chat/'))) throw error
}

/** Returns the result if it is a success. @throws KvfoldError with the code and message of a refusal */
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

/** Returns what the model is shown of the thread, as arguments of an engine's methods. */
const shownBy = ({ conversation, prompted }: Thread): Parameters<Engine['count']> => [
  noted(conversation.messages, prompted.tools),
  prompted.tools,
  conversation.edits(),
  prompted.variables,
]

/** Returns where the cells of the thread's hidden fragments are, by fragment id; empty when that is unknown. */
function cellsOf(thread: Thread, models: Models): ReadonlyMap<string, Residency> {
  const { conversation, model } = thread
  const hidden = conversation.fragments.filter(({ state }) => state.kind !== 'open')
  const engine = models.all.find(({ name }) => name === model)?.engine
  // The engine numbers the holes of a prompt. With omitted parts the numbers no longer tell which hole is which fragment.
  if (hidden.length === 0 || conversation.omissions.length > 0 || engine?.residency === undefined) return new Map()
  try {
    const found = engine.residency(conversation.id, ...shownBy(thread))
    return new Map(found?.map((where, index) => [hidden[index]!.id, where]))
  } catch (error) {
    unlessTemplate(error)
    return new Map()
  }
}
