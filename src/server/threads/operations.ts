/** Owns what programs and people do to threads: the desk, over the book and the models. */
import type { ChatMessage } from '../../chat/message.js'
import type { Fragment } from '../../context/fragment.js'
import type { Result } from '../../context/refusal.js'
import { sizeNote } from '../../context/size-note.js'
import { KvfoldError } from '../../core/errors.js'
import type { ThreadBook } from './book.js'
import type { ThreadDesk, ThreadMessage, ThreadSummary, ThreadView } from './desk.js'
import { exported } from './exported.js'
import { Looking } from './looking.js'
import type { Models, ServedEngine } from './models.js'
import type { Tenant } from './tenant.js'
import type { Thread } from './thread.js'

export class Operations implements ThreadDesk {
  readonly #looking: Looking

  constructor(
    private readonly book: ThreadBook,
    private readonly models: Models,
  ) {
    this.#looking = new Looking(models)
  }

  list(tenant: Tenant): readonly ThreadSummary[] {
    return this.book.of(tenant).map(summaryOf)
  }

  get(tenant: Tenant, id: string): ThreadView {
    return viewOf(this.book.get(tenant, id))
  }

  view(tenant: Tenant, id: string): readonly ChatMessage[] {
    return this.book.get(tenant, id).view
  }

  fragment(...[tenant, id, options]: Parameters<ThreadDesk['fragment']>): Promise<readonly Fragment[]> {
    return this.#edit(tenant, id, (thread) => granted(thread.conversation.fragment(options)).fragments)
  }

  fold(...[tenant, id, fragment, contract]: Parameters<ThreadDesk['fold']>): Promise<Fragment> {
    return this.#edit(tenant, id, (thread) => granted(thread.conversation.fold(fragment, contract)).fragment)
  }

  restore(tenant: Tenant, id: string, fragment: string): Promise<Fragment> {
    return this.#edit(tenant, id, (thread) => granted(thread.conversation.restore(fragment)).fragment)
  }

  summarize(...[tenant, id, fragment, focus, signal]: Parameters<ThreadDesk['summarize']>): ReturnType<ThreadDesk['summarize']> {
    return this.#edit(tenant, id, async (thread) => {
      const result = await thread.conversation.summarize(fragment, focus, signal)
      thread.account(result.ledger ?? [])
      return granted(result)
    })
  }

  search(...[tenant, id, options]: Parameters<ThreadDesk['search']>): ReturnType<ThreadDesk['search']> {
    return this.#edit(tenant, id, ({ conversation }) => {
      const { hits, total, ignoringCase, elsewhere } = granted(conversation.search(options))
      return { hits, total, ignoringCase, elsewhere }
    })
  }

  detail(...[tenant, id, hit, extendedContext]: Parameters<ThreadDesk['detail']>): ReturnType<ThreadDesk['detail']> {
    return this.#edit(tenant, id, ({ conversation }) => {
      const { hit: found } = granted(conversation.detail(hit, extendedContext))
      const { start, end } = found.excerpt
      return { hit: found, text: conversation.messages[found.message]?.content.slice(start, end) ?? '' }
    })
  }

  contract(...[tenant, id, contract]: Parameters<ThreadDesk['contract']>): Promise<void> {
    const thread = this.book.get(tenant, id)
    return this.book.quietly(thread, 'contract', () => {
      thread.contract = contract
    })
  }

  refresh(...[tenant, id, signal]: Parameters<ThreadDesk['refresh']>): ReturnType<ThreadDesk['refresh']> {
    const thread = this.book.get(tenant, id)
    return this.#with(thread, (engine) =>
      this.book.quietly(thread, 'ledger', async () => {
        // Engines without contracts have nothing that is not exact.
        if (engine.refresh === undefined) return { exact: true, ledger: [] }
        const result = await engine.refresh(thread.conversation.id, signal === undefined ? {} : { signal })
        thread.account(result.ledger)
        return result
      }),
    )
  }

  async attention(...[tenant, id, options]: Parameters<ThreadDesk['attention']>): ReturnType<ThreadDesk['attention']> {
    return this.#looking.look(this.book.get(tenant, id), options)
  }

  export(tenant: Tenant, id: string): ReturnType<ThreadDesk['export']> {
    return exported(this.book.get(tenant, id).record)
  }

  delete(tenant: Tenant, id: string): Promise<void> {
    return this.book.delete(this.book.get(tenant, id))
  }

  watch(...[tenant, listener]: Parameters<ThreadDesk['watch']>): () => void {
    return this.book.watch(tenant, listener)
  }

  #edit<T>(tenant: Tenant, id: string, work: (thread: Thread) => T | Promise<T>): Promise<T> {
    const thread = this.book.get(tenant, id)
    return this.#with(thread, () => this.book.quietly(thread, 'fragments', () => work(thread)))
  }

  /** Cuts and summaries need the thread's model. */
  async #with<T>(thread: Thread, work: (engine: ServedEngine) => Promise<T>): Promise<T> {
    const lease = await this.models.lease(this.models.pick(thread.model))
    try {
      return await work(lease.engine)
    } finally {
      lease.release()
    }
  }
}

/** @throws KvfoldError the refusal */
function granted<T extends object>(result: Result<T>): T {
  if (result.ok) return result
  const { code, message } = result
  throw new KvfoldError(code, message)
}

/** Characters of a title. */
const TITLE = 80

function summaryOf(thread: Thread): ThreadSummary {
  const { conversation, id, model, created, used, parent, contract, asked } = thread
  const first = conversation.messages.find(({ role }) => role === 'user')?.content ?? ''
  const kinds = conversation.fragments.map(({ state }) => state.kind)
  const count = (kind: Fragment['state']['kind']) => kinds.filter((each) => each === kind).length
  const last = thread.ledger.findLast(({ kind }) => kind === 'answer')
  return {
    id,
    model,
    title: first.replace(/\s+/gu, ' ').trim().slice(0, TITLE),
    created,
    used,
    messages: conversation.messages.length,
    fragments: { open: count('open'), folded: count('folded'), summarised: count('summarised') },
    last: last === undefined ? null : { shown: last.shown, reused: last.reused },
    parent,
    running: asked,
    contract,
  }
}

function viewOf(thread: Thread): ThreadView {
  const { conversation, ledger, seen, tools, definitions } = thread
  const costs = ledger.findLast(({ kind }) => kind === 'answer')?.messages ?? []
  const all = conversation.messages.map((message, index): ThreadMessage => ({
    index,
    message,
    visible: seen[index] !== 'nothing' && seen[index] !== undefined,
    shown: conversation.shown(index) + sizeNote(message, definitions),
    fragments: conversation.fragments.filter((fragment) => fragment.message === index),
    cost: costs.find((cost) => cost.index === index) ?? null,
  }))
  return { ...summaryOf(thread), all, ledger, tools: tools.map(({ name }) => name) }
}
