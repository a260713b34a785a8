/** Owns which thread a request goes on with: the one whose messages it repeats, or the nearest of those that it repeats in part. */
import type { ChatMessage } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import { alignRequest, isBetter, isRelated, keysBeside, keysOf, type Related, type ThreadRequest } from './client-edits.js'
import type { Beginning } from './beginnings.js'
import { type Chain, chainOf, common, messageKey } from './message-match.js'
import { FEW, type ThreadEntry, type ThreadIndex } from './thread-table.js'
import type { Thread } from './thread.js'

export class ThreadFinder {
  constructor(private readonly index: ThreadIndex) {}

  /**
   * The thread that goes on as it is; one that the request has other messages of, with how it lies against it; null: it begins a new one.
   * @param isFree whether a thread may be gone on with now
   * @throws KvfoldError for a thread that it names: server/no-thread; engine/bad-request, of another model; store/damaged, store/failed
   */
  find(wanted: ThreadRequest, isFree: (entry: ThreadEntry) => boolean): Thread | Related | null {
    const { tenant, model, messages, thread: id } = wanted
    const near = id === undefined ? this.#near(wanted) : null
    if (near !== null) return near
    const chain = chainOf(messages)
    const named = id === undefined ? null : this.index.entryFor(tenant, id, model)
    const best = named === null ? this.#begun(wanted, chain, isFree) : shared(named, chain)
    if (best !== null && best.common === best.candidate.chain.length && isFree(best.candidate)) {
      const thread = this.#loaded(best.candidate, id)
      if (thread !== null && goesOnFromCut(thread, wanted)) return thread
    }
    // Nothing but a system message in common is no conversation in common: the thread is not even read.
    const isBegun = messages.slice(0, best?.common).some(({ role }) => role !== 'system')
    return this.#related(wanted, named !== null ? [named] : best !== null && isBegun ? [best.candidate] : [])
  }

  /** One that ends with the request's last answer goes on, though another that went on elsewhere may have more in common. */
  #begun(
    { tenant, model, messages }: ThreadRequest,
    chain: Chain,
    isFree: (entry: ThreadEntry) => boolean,
  ): Beginning<ThreadEntry> | null {
    const beginnings = this.index.beginnings(tenant, model)
    const end = messages.findLastIndex(({ role }) => role === 'assistant') + 1
    const ending = end === 0 ? null : (beginnings?.ending(chain, end, isFree) ?? null)
    return ending === null ? (beginnings?.best(chain) ?? null) : { candidate: ending, common: end }
  }

  /**
   * The thread that has the request's last answer among its last messages and most of what came before it: looks at no other. Null: none has, or
   * more threads were answered so ("Done.") than are looked at, and the request's own may be one of the others.
   */
  #near({ tenant, model, messages }: ThreadRequest): Related | null {
    const last = messages.findLastIndex(({ role }) => role === 'assistant')
    if (last < 0) return null
    const having = this.index.having(tenant, model, [messageKey(messages[last]!)])
    if (having.length === FEW) return null
    const found = this.#closest(having, messages, undefined)
    const matches = found?.alignment.matches.filter(({ b }) => b <= last) ?? []
    return matches.at(-1)?.b === last && matches.length > (last + 1) / 2 ? found : null
  }

  /** Of threads that it goes on behind the end of, else of all found, the one with the most of its messages, then the one used last. Null: none. */
  #related({ tenant, model, messages, thread: id }: ThreadRequest, first: readonly ThreadEntry[]): Related | null {
    const keys = keysOf(messages)
    // A system message is many threads': none is read for it.
    const own = keys.filter((_, at) => messages[at]!.role !== 'system')
    return this.#closest(
      new Set([...first, ...(id === undefined ? this.index.having(tenant, model, own) : [])]),
      messages,
      id,
      keys,
    )
  }

  /** @param keys of the messages, where they are known */
  #closest(
    entries: Iterable<ThreadEntry>,
    messages: readonly ChatMessage[],
    id: string | undefined,
    keys?: readonly string[],
  ): Related | null {
    let given = keys
    let best: (Related & { readonly entry: ThreadEntry }) | null = null
    for (const entry of entries) {
      const thread = this.#loaded(entry, id)
      if (thread === null) continue
      given ??= keysBeside(thread, messages)
      const alignment = alignRequest(thread, messages, given, id !== undefined)
      const counts = id !== undefined || isRelated(thread.view, alignment)
      if (counts && (best === null || isBetter({ thread, alignment }, best))) best = { thread, alignment, entry }
    }
    // It was put away where another one was read after it.
    const thread = best && this.#loaded(best.entry, id)
    return best && thread && { ...best, thread }
  }

  /** Null: the thread was found damaged now; a request that did not name it goes on without it. */
  #loaded(entry: ThreadEntry, named: string | undefined): Thread | null {
    try {
      return this.index.load(entry)
    } catch (error) {
      if (named === undefined && error instanceof KvfoldError && error.code === 'store/damaged-thread') return null
      throw error
    }
  }
}

/**
 * Whether the request has the beginning of the cut answer that the thread ends with, as a message or as the beginning of the answer to come. True if
 * the thread ends otherwise. A request without it asks the same again: another thread answers that, so that this one keeps what was said.
 */
function goesOnFromCut({ cut, chain }: Thread, wanted: Pick<ThreadRequest, 'messages' | 'beginning'>): boolean {
  if (cut === null) return true
  const next = wanted.messages[chain.length]
  const known = next?.role === 'assistant' && next.toolCalls === undefined ? next.content : undefined
  const text = next === undefined ? wanted.beginning : known
  return text !== undefined && cut.content.trim().startsWith(text.trim())
}

function shared(candidate: ThreadEntry, chain: Chain): Beginning<ThreadEntry> | null {
  const most = common(candidate.chain, chain)
  return most === 0 ? null : { candidate, common: most }
}
