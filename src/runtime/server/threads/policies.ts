/**
 * Folds text without a call by the model: tool results when the context fills up (`auto-policy`) or overflows, and folds for `u-fold` and
 * `resum`.
 */
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

/** The result of a fold: the folded fragments and omitted parts, and by how many tokens the prompt became shorter. */
export interface Folded {
  readonly fragments: readonly Pick<Fragment, 'id'>[]
  readonly saves: number
}

export interface PolicyContext {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly tools: readonly ToolDefinition[]
  readonly scope?: RequestScope
  /** Ids of tool calls whose results must not be folded. Default: none. */
  readonly pinned?: ReadonlySet<string>
  /** Indexes of tool results that clients do not know. The client's own rules for clearing and dropping ignore them. Default: none. */
  readonly unknown?: ReadonlySet<number>
}

/** Defaults of `FoldPolicy`. */
export const FOLD_DEFAULTS = { threshold: 0.75, olderThanTurns: 3, largerThanTokens: 2000, clearAtLeast: 0 } satisfies FoldPolicy
/** Default of `target`, as a share of the threshold. It is well below 1, so that many turns pass before the next fold. */
const TARGET = 2 / 3
/** Above this share of the context a fold happens even if it costs more than it saves, because the context would soon be full. */
const CROWDED = 7 / 8
/** What a cached token costs in each later turn that shows it, as a share of the cost of computing a token. */
const CACHED_PRICE = 0.1
/** Fewest tokens of a span worth folding: a marker alone has about 20 tokens. */
const SHORTEST = 40
/**
 * A conversation with more characters per context token than this counts as too long without counting its tokens, which would take minutes.
 */
const HOPELESS = 64

/** What `foldByPolicy` knows of the cache when it weighs the cost of a fold. */
export interface FoldPrice {
  /** Index of the first message without reusable cells: it is new, or follows a change by the client. */
  readonly cached: number
  /** Share of the cached text behind a fold that must be computed again: 1 under `exact`, 0 under `splice`. */
  readonly again: number
  /** How many more turns the thread is expected to have. */
  readonly turns: number
}

/** The price of a fold when nothing is cached. */
const FREE: FoldPrice = { cached: 0, again: 0, turns: 1 }

/**
 * Folds the oldest tool results that the policy allows, until the prompt is down to the target and `clearAtLeast` tokens are saved. Folds
 * all of them if that is not enough. Returns null when the prompt is below the threshold or no result qualifies. It also returns null when
 * a fold costs more than the coming turns save.
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

/** Returns how many tokens a fold must hide to pay for computing `computed` tokens again; infinite when no further turn is expected. */
const leastWorth = (computed: number, { turns }: FoldPrice): number =>
  turns === 0 ? Infinity : computed / (CACHED_PRICE * turns)

/** Estimates how many tokens must be computed again when these results are folded: the cached text behind the first of them. */
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
 * Estimates what a fold would cost now, from the thread's ledger and the request.
 * @param asked the contract that the request or the thread sets; null when neither does
 * @param left index of the first message that differs from the cached conversation; null when none does
 * @param expected further turns that the client expects; default: as many as the conversation has answers
 */
export function foldPrice(
  { ledger, events, conversation }: Pick<Thread, 'ledger' | 'events' | 'conversation'>,
  asked: ContractChoice | null,
  left: number | null,
  expected?: number,
): FoldPrice {
  const last = ledger.at(-1)
  const folded = events.findLast(({ kind }) => kind === 'policy')
  /** A ledger entry with a `fallback` did not keep the requested contract: the step after the last fold was then exact. */
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
 * Folds the oldest tool results until the prompt leaves room for `answer` tokens; `fold-oldest` then also folds the oldest other messages.
 * It aims at the trained context length where that is shorter. Returns null when there is room already.
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
 * Returns the ids of calls whose results a policy or the client once hid and that are shown again. Such results were needed after hiding,
 * so policies leave them shown.
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
  /** How many assistant messages follow this result. */
  readonly age: number
  /** Tokens of the result that the prompt shows. */
  readonly tokens: number
}

/**
 * Returns the tool results, oldest first, that the model has answered and that are not completely hidden. Leaves out pinned results and
 * results whose shown spans have too few tokens to be worth a fold (`SHORTEST`).
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

/**
 * Returns the messages of user and model before the last user message, oldest first, whose shown spans are long enough to be worth a fold.
 */
function spokenOf({ conversation }: PolicyContext): readonly Pick<ToolResult, 'message'>[] {
  const { messages, omitted } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'user')
  return messages.flatMap(({ role }, message) => {
    const isSpoken = role === 'user' || role === 'assistant'
    if (!isSpoken || message >= last || omitted.has(message)) return []
    const parts = shownPartsOf(conversation, message)
    // About four characters make a token, so no tokens are counted here.
    return parts.length > 0 && sizeOf(parts) >= 4 * SHORTEST * parts.length ? [{ message }] : []
  })
}

const sizeOf = (parts: readonly Span[]): number => parts.reduce((sum, part) => sum + length(part), 0)

/**
 * Folds the fewest results, oldest first, with which the prompt's token count satisfies `reached`; all of them if none suffices. Does
 * nothing and returns null when that would save fewer than `worth` tokens.
 * @param before the prompt's tokens now
 * @param reached null: all results are to be folded
 * @param beside returns further message parts to omit together with these results
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
  // Counting a prompt's tokens is slow, so a binary search finds the fewest results.
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
  // All folds happen without a yield. A request that forks the thread meanwhile copies either all of them or none.
  const fragments = parts.flatMap((id) => {
    const folded = context.conversation.fold(id, { priced: false })
    return folded.ok ? [folded.fragment] : []
  })
  if (fragments.length === 0) return null
  const omitted = context.conversation.omit(beside(chosen))
  return { fragments: [...fragments, ...omitted], saves: before - shownBy(context) }
}

/** A part of a message, such as its reasoning, that can be left out of the prompt. */
export type Omissible = Pick<Omission, 'message' | 'omits'>

/** Counts the prompt's tokens as if these results were folded and these parts omitted; nothing changes. */
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

/** Returns the open fragments of a message, after making fragments of its shown text that has none. */
function cutShown(conversation: Conversation, message: number): readonly FragmentId[] {
  return shownPartsOf(conversation, message).flatMap((part) => {
    const there = conversation.fragments.find((one) => one.message === message && one.span.start === part.start)
    if (there !== undefined) return [there.id]
    const cut = conversation.cut([{ message, span: part }], 1)
    return cut.ok ? cut.fragments.map(({ id }) => id) : []
  })
}

/** Returns the spans of a message that the prompt shows, in order: its open fragments and the text outside all fragments. */
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
 * Returns whether the conversation is certainly too long for the context, judged by its characters: counting its tokens could take minutes.
 * Messages with an edit are left out, as in the engine's own check.
 */
export function isHopeless({ engine, conversation }: PolicyContext): boolean {
  const edited = new Set(conversation.edits().map(({ message }) => message))
  const size = conversation.messages.reduce((sum, { content }, at) => sum + (edited.has(at) ? 0 : content.length), 0)
  return size > HOPELESS * engine.info.context
}

// Settings of folds that the server decides without the model.

/** Which tool results `auto-policy` folds, and when. All its folds can be restored. */
export interface FoldPolicy {
  /** Share of the model's context, 0 to 1. Nothing is folded until the prompt exceeds it. Default 0.75. */
  readonly threshold?: number
  /** Share of the model's context down to which results are folded, if enough qualify. Default: two thirds of the threshold. */
  readonly target?: number
  /** A tool result qualifies when more assistant messages than this follow it. Default 3. Results not answered yet never qualify. */
  readonly olderThanTurns?: number
  /** A tool result with this many tokens or more qualifies at any age. Default 2000. */
  readonly largerThanTokens?: number
  /** If a fold would save fewer tokens than this, it is not made: it is not worth the lost cells. Default 0. */
  readonly clearAtLeast?: number
}

/**
 * What happens when a conversation does not fit into the context. `refuse`: the request fails with the number of excess tokens.
 * `fold-tool-results`: tool results are folded until it fits; the request fails if that is not enough. `fold-oldest`: the same, then also
 * the oldest messages.
 */
export const overflows = ['refuse', 'fold-tool-results', 'fold-oldest'] as const
export type Overflow = (typeof overflows)[number]

/**
 * How a thread's context is managed. `off`: not at all. `tools`: the model gets the six context tools besides the client's tools.
 * `auto-policy`: the server folds by `FoldPolicy`. `u-fold`: the model writes notes; of earlier messages only the notes and chosen lines
 * stay shown. `resum`: the same, but only the notes stay shown. `memtool`: the model searches the client's tools in a catalogue.
 */
export const acms = ['off', 'tools', 'auto-policy', 'u-fold', 'resum', 'memtool'] as const
export type Acm = (typeof acms)[number]

// Folds of `u-fold` and `resum`: when the helper runs, which fragments are its own, and its notes.

type HelperAcm = 'u-fold' | 'resum'

/** Share of the context above which `resum` summarises, as in ReSum's published code. */
const FULL = 0.9

interface HelperFold {
  readonly folded: Folded | null
  /** Shown to people: the result, with the notes and the to-do list. */
  readonly reason: string
}

/**
 * Lets the helper choose what to fold in a thread whose last messages wait for an answer. `u-fold` runs only after a user message, `resum`
 * at every request once the context is nearly full. Returns null when the helper does not run.
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

/**
 * Returns the ids of fragments that helpers folded, read from the thread's events. Used when this process has no helper state of the
 * thread.
 */
const ownOf = ({ events, conversation }: Thread): UFoldState['own'] => {
  const made = new Set(events.filter(({ reason }) => /^(u-fold|resum): /.test(reason)).flatMap(({ folded }) => folded))
  return conversation.fragments.filter(({ id }) => made.has(id)).map(({ id }) => id)
}
