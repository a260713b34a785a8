/** Finds the thread that a request continues or changes, by the client's session and by the messages of the request. */
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
   * Returns the thread that the request continues unchanged; else the most similar thread, with its alignment; else null, and a new thread
   * begins.
   * @param isFree whether a request may continue the thread now
   * @throws KvfoldError about a thread that the request names: server/no-thread; engine/bad-request for another model or salt;
   * store/damaged-thread, store/lost-thread, store/failed
   */
  find(wanted: ThreadRequest, isFree: (entry: ThreadEntry) => boolean): Thread | Related | null {
    const { messages, thread: id } = wanted
    const ofSession = id === undefined ? this.#ofSession(wanted, isFree) : null
    if (ofSession !== null) return ofSession
    const chain = chainOf(messages)
    const named = id === undefined ? null : this.index.entryFor(wanted, id)
    const best = named === null ? this.#begun(wanted, chain, isFree) : shared(named, chain)
    const continued = () => (best !== null && isFree(best.candidate) ? this.#continued(wanted, best) : null)
    // If the request continues a cut answer by `beginning`, look for that thread first: `#near` would take the cut answer for a removed
    // message.
    const begun = wanted.beginning === undefined ? null : continued()
    const found = begun ?? (id === undefined ? this.#near(wanted) : null) ?? continued()
    if (found !== null) return found
    // Conversations that share only a system message are not related, so their threads are not read.
    const isBegun = messages.slice(0, best?.common).some(({ role }) => role !== 'system')
    return this.#related(wanted, named !== null ? [named] : best !== null && isBegun ? [best.candidate] : [])
  }

  /** Returns the thread if the request begins with all its messages and, if it ends with a cut answer, continues that answer; else null. */
  #continued(wanted: ThreadRequest, { candidate, common: most }: Beginning<ThreadEntry>): Thread | null {
    const thread = most === candidate.chain.length ? this.#loaded(candidate, wanted.thread) : null
    return thread !== null && goesOnFromCut(thread, wanted) ? thread : null
  }

  /**
   * Returns the thread of the client's session that the request continues or changes, or a thread of the parent session to fork. Within a
   * session all differences before the last common message are edits, even if no answer is in common. Returns null when no thread is
   * related, as when an agent asks for a title.
   */
  #ofSession(wanted: ThreadRequest, isFree: (entry: ThreadEntry) => boolean): Thread | Related | null {
    const { messages, session } = wanted
    if (session === undefined) return null
    const own = this.index.ofSession(wanted, session.name)
    const chain = chainOf(messages)
    const continued = own
      .filter((entry) => isFree(entry) && common(entry.chain, chain) === entry.chain.length)
      .sort((a, b) => b.chain.length - a.chain.length)
    for (const entry of continued) {
      const thread = this.#loaded(entry, undefined)
      if (thread !== null && goesOnFromCut(thread, wanted)) return thread
    }
    const changed = this.#closest(own, messages, IN_SESSION)
    if (changed !== null || session.parent === undefined) return changed
    const forked = this.#closest(this.index.ofSession(wanted, session.parent), messages, IN_SESSION)
    return forked && { ...forked, alignment: { ...forked.alignment, goesOn: false } }
  }

  /**
   * Returns the thread with the longest common beginning. Prefers a thread that ends exactly at the request's last answer over one that
   * shares more messages but went on differently.
   */
  #begun(wanted: ThreadRequest, chain: Chain, isFree: (entry: ThreadEntry) => boolean): Beginning<ThreadEntry> | null {
    const { messages } = wanted
    const beginnings = this.index.beginnings(wanted)
    const end = messages.findLastIndex(({ role }) => role === 'assistant') + 1
    const ending = end === 0 ? null : (beginnings?.ending(chain, end, isFree) ?? null)
    return ending === null ? (beginnings?.best(chain) ?? null) : { candidate: ending, common: end }
  }

  /**
   * Returns the thread that has the request's last answer among its last messages, and shares most messages before it; else null. Reads
   * only threads with that answer. Returns null when `FEW` or more threads have it, as with "Done.": the index lists only `FEW`, and the
   * right one may be missing.
   */
  #near(wanted: ThreadRequest): Related | null {
    const { messages } = wanted
    const last = messages.findLastIndex(({ role }) => role === 'assistant')
    if (last < 0) return null
    const having = this.index.having(wanted, [messageKey(messages[last]!)])
    if (having.length === FEW) return null
    const found = this.#closest(having, messages, {})
    const matches = found?.alignment.matches.filter(({ b }) => b <= last) ?? []
    return matches.at(-1)?.b === last && matches.length > (last + 1) / 2 ? found : null
  }

  /**
   * Returns the best thread (`isBetter`) among `first` and, if the request names no thread, threads whose last messages include one of the
   * request's. Null when none is related.
   */
  #related(wanted: ThreadRequest, first: readonly ThreadEntry[]): Related | null {
    const { messages, thread: id } = wanted
    const keys = keysOf(messages)
    // Many threads share a system message, so it does not serve to find threads.
    const own = keys.filter((_, at) => messages[at]!.role !== 'system')
    return this.#closest(new Set([...first, ...(id === undefined ? this.index.having(wanted, own) : [])]), messages, {
      id,
      keys,
    })
  }

  #closest(
    entries: Iterable<ThreadEntry>,
    messages: readonly ChatMessage[],
    { id, isOwn = id !== undefined, keys }: Known,
  ): Related | null {
    const last = messages.findLastIndex(({ role }) => role === 'assistant')
    let given = keys
    let best: (Related & { readonly entry: ThreadEntry }) | null = null
    for (const entry of entries) {
      const thread = this.#loaded(entry, id)
      if (thread === null) continue
      given ??= keysBeside(thread, messages)
      const alignment = alignRequest(thread, messages, given, isOwn)
      const counts = id !== undefined || isRelated(thread.view, alignment)
      if (counts && (best === null || isBetter({ thread, alignment }, best, last))) best = { thread, alignment, entry }
    }
    // Loading later candidates may have unloaded this thread.
    const thread = best && this.#loaded(best.entry, id)
    return best && thread && { ...best, thread }
  }

  /** Loads the thread. Returns null if it is damaged or deleted and the request did not name it. */
  #loaded(entry: ThreadEntry, named: string | undefined): Thread | null {
    try {
      return this.index.load(entry)
    } catch (error) {
      if (named === undefined && error instanceof KvfoldError && NOT_THERE.has(error.code)) return null
      throw error
    }
  }
}

/** Errors of a thread that cannot be loaded; another server may have deleted it just now. */
const NOT_THERE: ReadonlySet<string> = new Set(['store/damaged-thread', 'server/no-thread'])

/** What is known before a request is compared with threads. */
interface Known {
  /** The id of the thread that the request names. */
  readonly id?: string | undefined
  /** True: the request belongs to the conversation even if no answer is in common. Default: true for a request that names a thread. */
  readonly isOwn?: boolean
  /** Keys of the request's messages, if already computed. */
  readonly keys?: readonly string[]
}
const IN_SESSION: Known = { isOwn: true }

/**
 * Returns whether the request continues the cut answer at the thread's end: it has the beginning of that answer, as a message or in
 * `beginning`. True for threads without a cut answer. A request without it asks the same again and gets another thread, so that this one
 * keeps the cut text.
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
