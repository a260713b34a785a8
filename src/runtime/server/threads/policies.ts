/** Folds on the server's own decision: old or large tool results when the context fills up or overflows, and folds by helpers. */
import type { ToolDefinition } from '../../chat/message.js'
import type { Conversation } from '../../context/conversation.js'
import { editOf, type Fragment, type Omission, omissionEdit } from '../../context/fragment.js'
import { noted } from '../../context/size-note.js'
import { type ContractChoice, contractOfStep } from '../../core/contract.js'
import { PromptTooLong } from '../../core/errors.js'
import { type FragmentId, fragmentId } from '../../core/ids.js'
import { length, lowerBound, span, type Span } from '../../core/span.js'
import type { Steps } from '../../core/turns.js'
import { writeJson } from '../../core/written-json.js'
import { type Engine, goodContext, type RequestScope } from '../../engine/engine.js'
import type { Thread } from './thread.js'
import { UFold, type UFoldOptions, type UFoldSetting, type UFoldState } from '../../agents/u-fold/u-fold.js'
import { BLEND_DEFAULT } from '../../kv/plan/blend.js'

/** The result of a policy: the folded fragments and omitted parts, and how many tokens fewer the prompt shows, as the engine counts them. */
export interface Folded {
  readonly fragments: readonly Pick<Fragment, 'id'>[]
  readonly saves: number
}

export interface PolicyContext {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly tools: readonly ToolDefinition[]
  readonly scope?: RequestScope
  /** Ids of calls whose results must not be folded. Default: none. */
  readonly pinned?: ReadonlySet<string>
  /** Indexes of the results that the client's rules neither count nor hide, because clients do not know them. Default: none. */
  readonly unknown?: ReadonlySet<number>
}

/** Values for the settings that a policy leaves out. */
export const FOLD_DEFAULTS = { threshold: 0.75, olderThanTurns: 3, largerThanTokens: 2000, clearAtLeast: 0 } satisfies FoldPolicy
/** Share of the threshold at which folding stops. It is well below 1, so that the next fold is many turns away. */
const TARGET = 2 / 3
/** Share of the context beyond which a fold need not pay, because the context would soon be full. */
const CROWDED = 7 / 8
/** Price of a cached token that the prompt shows for one turn, as a share of the price of computing a token. */
const CACHED_PRICE = 0.1
/** Parts of a message with fewer tokens are not worth folding, because a marker alone has about 20. */
const SHORTEST = 40
/** If whole messages have more characters than this for each token of the context, no tokens are counted: that would take too long. */
const HOPELESS = 64

/** The state of the cache when a policy decides. */
export interface FoldPrice {
  /** Index of the first message that is computed in any case, because it is new or follows a change by the client. */
  readonly cached: number
  /** Share of the cached text after a fold that must be computed again, by the contract in force. */
  readonly again: number
  /** How many more turns the thread is expected to have. */
  readonly turns: number
}

/** Nothing is cached, so folding costs nothing. */
const FREE: FoldPrice = { cached: 0, again: 0, turns: 1 }

/**
 * Folds the oldest tool results that the policy allows, until the prompt is down to the target and `clearAtLeast` is saved. If that is not
 * reached, it folds all of them. Returns null when the threshold is not passed or no result qualifies. It also returns null when the tokens
 * saved in coming turns do not pay for those computed again.
 */
export function* foldByPolicy(context: PolicyContext, policy: FoldPolicy = {}, price = FREE): Steps<Folded | null> {
  const {
    olderThanTurns,
    largerThanTokens,
    clearAtLeast,
    threshold,
    target = TARGET * threshold,
  } = { ...FOLD_DEFAULTS, ...policy }
  const room = goodContext(context.engine.info)
  if (isHopeless(context)) return null
  const before = shownBy(context)
  if (before <= threshold * room) return null
  const qualifies = ({ age, tokens }: ToolResult) => age > olderThanTurns || tokens >= largerThanTokens
  const chosen = (yield* resultsOf(context)).filter(qualifies)
  const worth = (folded: readonly Pick<ToolResult, 'message'>[]) =>
    Math.max(clearAtLeast, before > CROWDED * room ? 0 : leastWorth(computedFor(context, folded, price), price))
  return yield* foldUntil(context, chosen, before, (shown) => shown <= target * room && before - shown >= clearAtLeast, worth)
}

/** Returns how many tokens a fold must hide per turn to pay for computing `computed` tokens again. If no turn is expected, no fold pays. */
const leastWorth = (computed: number, { turns }: FoldPrice): number =>
  turns === 0 ? Infinity : computed / (CACHED_PRICE * turns)

/** Estimates how many tokens the engine must compute again when these results are folded: the cached text after the first of them. */
function computedFor(
  { engine, conversation, scope }: PolicyContext,
  folded: readonly Pick<ToolResult, 'message'>[],
  price: FoldPrice,
): number {
  const { cached, again } = price
  const from = folded[0]?.message ?? cached
  if (again === 0 || from >= cached) return 0
  const hidden = new Set([...folded, ...conversation.edits()].map(({ message }) => message))
  const behind = conversation.messages.slice(0, cached).filter((_, at) => at > from && !hidden.has(at))
  const text = behind.map(({ content, toolCalls }) => content + (toolCalls === undefined ? '' : writeJson(toolCalls)))
  return again * engine.count([{ role: 'user', content: text.join('\n') }], [], [], scope?.variables)
}

/**
 * Returns what the next fold would cost, from the thread's ledger and the request.
 * @param asked the contract that the request or the thread sets; null when neither does
 * @param left index of the message where the request diverged from the cached messages; null when it did not
 * @param expected turns that the client expects; default: as many as there were
 */
export function foldPrice(
  { ledger, events, conversation }: Pick<Thread, 'ledger' | 'events' | 'conversation'>,
  asked: ContractChoice | null,
  left: number | null,
  expected?: number,
): FoldPrice {
  const last = ledger.at(-1)
  const folded = events.findLast(({ kind }) => kind === 'policy')
  /** The requested contract may not have been kept. If the step after the last fold reports a fallback, that step was exact. */
  const isExact = ledger[folded?.after ?? ledger.length]?.fallback != null
  const contract = isExact ? 'exact' : contractOfStep(asked ?? last?.contract ?? 'exact')
  const turns = conversation.messages.filter(({ role }) => role === 'assistant').length
  return {
    cached: left ?? last?.messages.length ?? 0,
    again: { exact: 1, blend: BLEND_DEFAULT.most, splice: 0 }[contract],
    turns: expected ?? Math.max(1, turns),
  }
}

/**
 * Folds the oldest tool results until the prompt leaves room for an answer; `fold-oldest` then also folds the oldest other messages. It
 * aims at the context that the model was trained on, where that is less. Returns null when there is room already.
 * @throws KvfoldError context/full when folding all of them is not enough; then nothing is folded
 */
export function* foldToFit(context: PolicyContext, overflow: Exclude<Overflow, 'refuse'>, answer = 1): Steps<Folded | null> {
  if (isHopeless(context)) return null
  const room = goodContext(context.engine.info) - answer
  const most = context.engine.info.context - answer
  const before = shownBy(context)
  if (before <= room) return null
  const chosen = [...(yield* resultsOf(context)), ...(overflow === 'fold-oldest' ? spokenOf(context) : [])]
  const folded = yield* foldUntil(
    context,
    chosen,
    before,
    (shown) => shown <= room,
    () => before - most,
  )
  if (folded !== null || before <= most) return folded
  throw new PromptTooLong(
    { tokens: before, atLeast: false, context: context.engine.info.context },
    `The conversation takes ${before} tokens, ${before - most} more than there is room for, and folding its ${overflow === 'fold-oldest' ? 'older messages' : 'tool results'} is not enough; ` +
      'fold or leave out other parts, or load the model with a larger context.',
  )
}

/**
 * Returns the ids of calls whose results a policy or the client once hid and that are shown again. They were needed after hiding, and may
 * be needed again.
 */
export function shownAgain({ conversation, events, hidden, keys, view }: Thread): readonly string[] {
  const folded = new Set(events.flatMap((event) => (event.kind === 'policy' ? event.folded : [])))
  const restored = conversation.fragments.filter(({ id, state }) => state.kind === 'open' && folded.has(id))
  const messages = [
    ...restored.map(({ message }) => conversation.messages[message]!),
    ...(hidden.size === 0 ? [] : view.filter((_, at) => hidden.has(keys[at]!))),
  ]
  return messages.flatMap(({ toolCallId }) => toolCallId ?? [])
}

export interface ToolResult {
  readonly message: number
  /** How many answers of the model follow this result. */
  readonly age: number
  /** The tokens of the parts that are shown. */
  readonly tokens: number
}

/**
 * Returns the tool results that the model has answered and of which text is shown, oldest first. Pinned ones are left out, and those whose
 * shown parts are short.
 */
export function* resultsOf({ engine, conversation, scope, pinned }: PolicyContext): Steps<readonly ToolResult[]> {
  const { messages } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const { omitted } = conversation
  const alone = (content: string) => engine.count([{ role: 'user', content }], [], [], scope?.variables)
  const nothing = alone('')
  let answers = messages.filter(({ role }) => role === 'assistant').length
  const results: ToolResult[] = []
  for (const [message, { role, content, toolCallId = '' }] of messages.slice(0, Math.max(0, last)).entries()) {
    if (role === 'assistant') answers--
    if (role !== 'tool' || omitted.has(message) || pinned?.has(toolCallId) === true) continue
    const parts = shownPartsOf(conversation, message)
    if (parts.length === 0 || sizeOf(parts) < 2 * SHORTEST * parts.length) continue
    yield
    const tokens = alone(parts.map(({ start, end }) => content.slice(start, end)).join('')) - nothing
    if (tokens >= SHORTEST * parts.length) results.push({ message, age: answers, tokens })
  }
  return results
}

/** Returns messages of the user and the model before the last user message, oldest first, whose shown parts are longer than markers. */
function spokenOf({ conversation }: PolicyContext): readonly Pick<ToolResult, 'message'>[] {
  const { messages, omitted } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'user')
  return messages.flatMap(({ role }, message) => {
    const isSpoken = role === 'user' || role === 'assistant'
    if (!isSpoken || message >= last || omitted.has(message)) return []
    const parts = shownPartsOf(conversation, message)
    // A text of this many characters is about as long as a marker.
    return parts.length > 0 && sizeOf(parts) >= 4 * SHORTEST * parts.length ? [{ message }] : []
  })
}

const sizeOf = (parts: readonly Span[]): number => parts.reduce((sum, part) => sum + length(part), 0)

/**
 * Folds the fewest results, oldest first, with which the prompt's tokens satisfy `reached`, or else all of them. It folds only if that
 * saves at least `worth` tokens. Returns null when nothing was folded.
 * @param before the prompt's tokens now
 * @param reached null: all results are to be folded
 * @param beside returns the parts of messages to omit together with these results
 */
export function* foldUntil(
  context: PolicyContext,
  results: readonly Pick<ToolResult, 'message'>[],
  before: number,
  reached: ((shown: number) => boolean) | null,
  worth: (folded: readonly Pick<ToolResult, 'message'>[]) => number,
  beside: (folded: readonly Pick<ToolResult, 'message'>[]) => readonly Omissible[] = () => [],
): Steps<Folded | null> {
  if (results.length === 0) return null
  // A binary search finds the fewest results, because every count of a prompt takes time.
  let [few, many] = [1, results.length]
  while (reached !== null && few < many) {
    yield
    const middle = (few + many) >> 1
    if (reached(shownBy(context, results.slice(0, middle), beside(results.slice(0, middle))))) many = middle
    else few = middle + 1
  }
  const chosen = results.slice(0, many)
  yield
  const expected = before - shownBy(context, chosen, beside(chosen))
  if (expected < Math.max(1, worth(chosen))) return null
  const parts: FragmentId[] = []
  for (const { message } of chosen) {
    yield
    parts.push(...cutShown(context.conversation, message))
  }
  // All folds happen in one step: a request that forks the thread between two steps copies all of them or none.
  const fragments = parts.flatMap((id) => {
    const folded = context.conversation.fold(id, { priced: false })
    return folded.ok ? [folded.fragment] : []
  })
  if (fragments.length === 0) return null
  const omitted = context.conversation.omit(beside(chosen))
  return { fragments: [...fragments, ...omitted], saves: before - shownBy(context) }
}

/** A part of a message that a policy may omit. */
export type Omissible = Pick<Omission, 'message' | 'omits'>

/** Counts the tokens of the prompt as if these results were folded and these parts were omitted. */
export function shownBy(
  { engine, conversation, tools, scope }: PolicyContext,
  folded: readonly Pick<ToolResult, 'message'>[] = [],
  omitted: readonly Omissible[] = [],
): number {
  const hidden = folded.flatMap(({ message }) =>
    shownPartsOf(conversation, message).map((part) =>
      editOf({ id: fragmentId('f00000'), message, span: part, state: { kind: 'folded' } })!,
    ),
  )
  const edits = [...conversation.edits(), ...hidden, ...omitted.map(omissionEdit)].sort(
    (a, b) => a.message - b.message || a.span.start - b.span.start,
  )
  return engine.count(noted(conversation.messages, tools), tools, edits, scope?.variables)
}

/** Makes fragments of all text that a message shows: those that are open, and the text around its fragments as further ones. */
function cutShown(conversation: Conversation, message: number): readonly FragmentId[] {
  return shownPartsOf(conversation, message).flatMap((part) => {
    const there = conversation.fragments.find((one) => one.message === message && one.span.start === part.start)
    if (there !== undefined) return [there.id]
    const cut = conversation.cut([{ message, span: part }], 1)
    return cut.ok ? cut.fragments.map(({ id }) => id) : []
  })
}

/** Returns the parts of a message that no fragment hides: the open fragments and the text around all fragments, in order. */
function shownPartsOf({ messages, fragments }: Conversation, message: number): readonly Span[] {
  const firstOf = (index: number) => lowerBound(fragments.length, (at) => fragments[at]!.message < index)
  const there = fragments.slice(firstOf(message), firstOf(message + 1))
  const inner = there.flatMap(({ span: { start, end } }) => [start, end])
  const borders = [...new Set([0, ...inner, messages[message]?.content.length ?? 0])]
  const hidden = new Set(there.flatMap(({ span: { start }, state }) => (state.kind === 'open' ? [] : [start])))
  return borders.flatMap((start, at) => {
    const end = borders[at + 1]
    return end === undefined || hidden.has(start) ? [] : [span(start, end)]
  })
}

/**
 * Returns whether the conversation is so long that the engine refuses it at once, while counting its tokens would take minutes. Messages
 * with an edit are left out, as the engine does.
 */
export function isHopeless({ engine, conversation }: PolicyContext): boolean {
  const edited = new Set(conversation.edits().map(({ message }) => message))
  const size = conversation.messages.reduce((sum, { content }, at) => sum + (edited.has(at) ? 0 : content.length), 0)
  return size > HOPELESS * engine.info.context
}

// Settings of the client or the server for folding without a decision of the model.

/** When `auto-policy` folds tool results, oldest first. All its folds can be restored. */
export interface FoldPolicy {
  /** Share of the model's context that the prompt must exceed before anything is folded, 0 to 1. Default 0.75. */
  readonly threshold?: number
  /** Share of the model's context at which folding stops, if enough results qualify. Default: two thirds of the threshold. */
  readonly target?: number
  /** How many later answers make a tool result old. Default 3. Results that the model has not answered yet are never folded. */
  readonly olderThanTurns?: number
  /** Tokens from which a tool result counts as large, whatever its age. Default 2000. */
  readonly largerThanTokens?: number
  /** The fewest tokens that a fold must save; less is not worth losing the cache. Default 0. */
  readonly clearAtLeast?: number
}

/**
 * What happens to a conversation that does not fit into the context. `refuse`: an error that says how many tokens are too many.
 * `fold-tool-results`: folds tool results until it fits, or fails if they are not enough. `fold-oldest`: folds tool results and then the
 * oldest messages.
 */
export const overflows = ['refuse', 'fold-tool-results', 'fold-oldest'] as const
export type Overflow = (typeof overflows)[number]

/**
 * How a thread's context is managed. `off`: the model answers in one step. `tools`: the model has the six context tools besides the
 * client's. `auto-policy`: the server folds by its policy. `u-fold`: the model writes notes; of earlier messages the notes and chosen
 * lines stay shown. `resum`: the same, but only the notes stay shown. `memtool`: the client's tools are a catalogue that the model
 * searches.
 */
export const acms = ['off', 'tools', 'auto-policy', 'u-fold', 'resum', 'memtool'] as const
export type Acm = (typeof acms)[number]

// Folding by helpers in a thread (`u-fold`, `resum`): when they run, which fragments are theirs, and their notes.

type HelperAcm = 'u-fold' | 'resum'

/** Share of the context at which ReSum's own code summarises. */
const FULL = 0.9

interface HelperFold {
  readonly folded: Folded | null
  /** For people: the outcome, and the notes with the to-do list. */
  readonly reason: string
}

/**
 * Runs the helper on a thread whose last messages wait for an answer. `u-fold` runs after a user message, `resum` at any step when the
 * context is nearly full. Returns null when the helper does not run.
 * @throws KvfoldError what the engine throws
 */
export async function foldByHelpers(
  acm: HelperAcm,
  thread: Thread,
  setting: Pick<UFoldSetting, 'engine' | 'tools' | 'generation' | 'scope' | 'pinned' | 'onSpent'>,
  signal: AbortSignal,
): Promise<HelperFold | null> {
  const { conversation } = thread
  const { messages } = conversation
  const user = messages.findLastIndex(({ role }) => role === 'user')
  const upTo = messages.at(-1)?.role === 'user' ? user : messages.findLastIndex(({ role }) => role === 'assistant')
  if (user === -1 || upTo < 1 || (acm === 'u-fold' && upTo !== user)) return null
  const folding = new UFold({
    ...setting,
    conversation,
    options: { numbered: false, ...optionsOf(acm, setting) },
    state: thread.looked ?? { memory: null, blocks: [], upTo: 0, folds: 0, refused: 0, own: ownOf(thread) },
  })
  const { kind, why, before, after, refused } = await folding.fold(
    conversation.remembered(user),
    signal,
    upTo,
    user < upTo ? user : undefined,
  )
  thread.looked = folding.state
  if (kind === 'small' || kind === 'same') return { folded: null, reason: '' }
  const ours = new Set(folding.state.own)
  const fragments = kind === 'folded' ? conversation.fragments.filter(({ id }) => ours.has(id)) : []
  const lines = folding.selected.map(({ first, last }) => `${first}-${last}`).join(', ')
  const wrong = refused.length === 0 ? '' : ` Ranges that are no lines: ${refused.join(', ')}.`
  const reason =
    kind === 'kept'
      ? `${acm}: the last view stays. ${why ?? ''}`
      : `${acm}: ${folding.notes ?? ''}\nLines in sight: ${lines || 'none'}.`
  return { folded: { fragments, saves: before - after }, reason: reason + wrong }
}

const optionsOf = (acm: HelperAcm, { engine }: Pick<UFoldSetting, 'engine'>): UFoldOptions =>
  acm === 'u-fold' ? {} : { foldFrom: FULL * goodContext(engine.info), when: 'every-turn', results: 'none', rebuildEvery: 1 }

/** Returns the fragments that helpers folded before this process started, by the thread's events. */
const ownOf = ({ events, conversation }: Thread): UFoldState['own'] => {
  const made = new Set(events.filter(({ reason }) => /^(u-fold|resum): /.test(reason)).flatMap(({ folded }) => folded))
  return conversation.fragments.filter(({ id }) => made.has(id)).map(({ id }) => id)
}
