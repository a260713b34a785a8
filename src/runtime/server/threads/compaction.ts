/**
 * Compacts a conversation: the model writes a summary, and the messages before it are folded away. From then on clients know the summary as
 * one message in their place.
 */
import type { ChatMessage } from '../../chat/message.js'
import { noted } from '../../context/size-note.js'
import { KvfoldError } from '../../core/errors.js'
import { type EngineRequest, type GenerationOptions, goodContext, promptLength } from '../../engine/engine.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { type Folded, isHopeless, type PolicyContext, shownBy } from './policies.js'
import type { Thread } from './thread.js'

/** When a client wants its conversation compacted, and how. */
export interface Compaction {
  /**
   * The conversation is compacted when its prompt has more tokens than this; null: always. Default: three quarters of the model's context.
   */
  readonly above?: number | null
  /** The instruction to the model. Default: `INSTRUCTIONS`. */
  readonly instructions?: string
  /** Whether the answer consists of the summary alone, so that the client decides how to continue. */
  readonly pauses: boolean
  /** True: the user's messages stay shown before the summary; only the other messages are folded. */
  readonly keepsUser: boolean
}

/** A compaction that took place. */
export interface Compacted {
  /** The summary text, which replaces the folded messages; null: the model wrote nothing, and nothing was folded. */
  readonly content: string | null
  /** How many of the client's messages the summary replaces. */
  readonly stands: number
  /** Whether the answer consists of the summary alone. */
  readonly paused: boolean
  /** Tokens of the step that wrote the summary. The usage of the answer itself does not include them, unless the answer is `paused`. */
  readonly usage: { readonly promptTokens: number; readonly cachedTokens: number; readonly completionTokens: number }
}

/** Default limit: the share of the model's context above which a conversation is compacted. */
const FULL = 0.75
/** The most tokens that a summary may have. */
const LONGEST = 2048
/** The summary quotes the user's last message in full if it has at most this many characters. */
const WORD_FOR_WORD = 2000

const INSTRUCTIONS =
  'Stop here and write a summary of this conversation for someone who goes on with it and has not seen it: what the user wants, what was ' +
  'done and found, decisions, what is still open, and the next step. Keep names, numbers and paths exactly as they are. Call no tools. ' +
  'Answer with the summary alone.'

const HEADING = 'Summary of the conversation so far, in place of its messages:\n\n'

/** Returns the message that replaces compacted ones. @param stands how many of the client's messages it replaces; 1 when unknown */
export const summaryMessage = (content: string, stands = 1): ChatMessage => ({ role: 'user', content: HEADING + content, stands })

/** Counts the client's messages. A summary counts as all the messages that it replaced. */
export const countWithCompacted = (messages: readonly ChatMessage[]): number =>
  messages.reduce((sum, { stands = 1 }) => sum + stands, 0)

type SummaryRequest = Pick<EngineRequest, 'tenant' | 'variables' | 'clientEdits' | 'known' | 'parent' | 'signal'>

/**
 * Compacts the thread's conversation if its prompt is above the limit. Returns null when the prompt is below the limit, or when the
 * conversation has no answer yet.
 * @param generation sampling and contract of the step that writes the summary
 * @param onSpent receives the ledger entry of a summary step that was cancelled
 * @throws KvfoldError what the engine throws; engine/bad-request when `above` is null and the conversation has no answer yet
 */
export async function compact(
  thread: Thread,
  context: PolicyContext,
  { above, instructions = INSTRUCTIONS, pauses, keepsUser }: Compaction,
  generation: GenerationOptions,
  request: SummaryRequest,
  onSpent: (entries: readonly LedgerEntry[]) => void,
): Promise<{ readonly compacted: Compacted; readonly folded: Folded | null; readonly entry: LedgerEntry } | null> {
  const { engine, tools } = context
  const { conversation } = thread
  const { omitted: hidden } = conversation
  const shown = conversation.messages.flatMap(({ role }, at) => (role === 'system' || hidden.has(at) ? [] : [at]))
  const isSaid = shown.some((at) => conversation.messages[at]!.role === 'assistant')
  if (above === null && !isSaid)
    throw new KvfoldError(
      'engine/bad-request',
      'There is nothing to compact: the conversation has no answer yet. Send the messages of at least one turn.',
    )
  if (!isSaid || (above !== null && isHopeless(context))) return null
  const before = shownBy(context)
  if (above !== null && before <= (above ?? FULL * goodContext(engine.info))) return null
  const edits = conversation.edits()
  const told: { plan?: { readonly shown: number; readonly reused: number } } = {}
  const running = engine.respond({
    ...generation,
    ...request,
    conversation: conversation.id,
    messages: [...noted(conversation.messages, tools), { role: 'user', content: instructions }],
    ...(edits.length === 0 ? {} : { edits }),
    // The tools stay in the prompt although calls are forbidden: without them the prompt would begin differently and reuse no cells.
    ...(tools.length === 0 ? {} : { tools, toolChoice: 'none' }),
    maxTokens: LONGEST,
    kind: 'summary',
  })
  const {
    message,
    finish,
    ledger: entry,
    timing,
  } = await running.each((event) => {
    if (event.type !== 'plan') return
    // A prompt that waited for cells has several plans.
    told.plan = { shown: event.shown, reused: Math.min(told.plan?.reused ?? Infinity, event.reused) }
  })
  if (finish === 'cancelled') {
    onSpent([entry])
    throw new KvfoldError('engine/cancelled', 'The request was cancelled while the summary was written.')
  }
  const { shown: promptTokens, reused: cachedTokens } = told.plan ?? {
    shown: promptLength({ ledger: entry, timing }),
    reused: entry.reused,
  }
  const usage = { promptTokens, cachedTokens, completionTokens: timing.generatedTokens }
  const written = message.content.trim()
  if (written === '') return { compacted: { content: null, stands: 0, paused: pauses, usage }, folded: null, entry }
  const content = keepsUser ? written : written + lastOf(conversation)
  const places = shown.filter((at) => !keepsUser || !isUsers(conversation.messages[at]!))
  const stands = countWithCompacted(places.flatMap((at) => (thread.seen[at] === 'nothing' ? [] : [conversation.messages[at]!])))
  const omitted = conversation.omit(places.map((at) => ({ message: at, omits: { part: 'message' } })))
  thread.compact(new Set(places), summaryMessage(content, stands))
  const saves = before - shownBy({ ...context, conversation: thread.conversation })
  return { compacted: { content, stands, paused: pauses, usage }, folded: { fragments: omitted, saves }, entry }
}

const isUsers = ({ role, stands }: ChatMessage): boolean => role === 'user' && stands === undefined

/** Returns the user's last message as text for the end of the summary. Empty if it is not the last message of all, or if it is too long. */
function lastOf(conversation: Pick<Thread['conversation'], 'messages' | 'shown'>): string {
  const last = conversation.messages.at(-1)
  if (last === undefined || !isUsers(last) || last.content.length > WORD_FOR_WORD) return ''
  return `\n\nThe user's last message, word for word:\n${conversation.shown(conversation.messages.length - 1)}`
}
