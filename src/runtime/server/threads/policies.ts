/** Owns folding that the server does by itself: tool results that are old or large, when the context fills up or overflows, and folds by helpers. */
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import type { Conversation } from '../../context/conversation.js'
import { editOf, type Fragment } from '../../context/fragment.js'
import { noted } from '../../context/size-note.js'
import { type ContractChoice, contractOfStep } from '../../core/contract.js'
import { PromptTooLong } from '../../core/errors.js'
import { fragmentId } from '../../core/ids.js'
import { span } from '../../core/span.js'
import { writeJson } from '../../core/written-json.js'
import type { Engine } from '../../engine/engine.js'
import type { Thread } from './thread.js'
import { UFold, type UFoldOptions, type UFoldSetting, type UFoldState } from '../../agents/u-fold/u-fold.js'
import type { LedgerEntry } from '../../kv/ledger.js'

/** What a policy did: fragments folded, tokens that are shown less, as the engine counts them. */
export interface Folded {
  readonly fragments: readonly Fragment[]
  readonly saves: number
}

export interface PolicyContext {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly tools: readonly ToolDefinition[]
  /** Ids of calls whose results stay. Default: none. */
  readonly pinned?: ReadonlySet<string>
}

const DEFAULTS = { threshold: 0.75, olderThanTurns: 3, largerThanTokens: 2000, clearAtLeast: 0 } satisfies FoldPolicy
/** Of the threshold: where folding stops, so that the next one is many turns away. */
const TARGET = 2 / 3
/** Share of the context from which on nobody asks whether folding pays: it would be full soon. */
const CROWDED = 7 / 8
/** What a token that is shown and cached costs in a turn, as a share of one that is computed. */
const CACHED_PRICE = 0.1
/** Shorter contents are not worth a marker, which has about 20 tokens. */
const SHORTEST = 40
/** Characters a token from which on counting takes longer than being refused by the engine. */
const HOPELESS = 64

/** What is known of the cache when a policy decides. */
export interface FoldPrice {
  /** Index of the first message that is computed in any case: new, or behind a change of the client's. */
  readonly cached: number
  /** Share of the cached text behind a fold that the contract in force computes again. */
  readonly again: number
  /** Turns that the thread is expected to go on for. */
  readonly turns: number
}

/** Nothing is cached: folding costs nothing. */
const FREE: FoldPrice = { cached: 0, again: 0, turns: 1 }

/**
 * Folds the oldest tool results that the policy lets go until what is shown is down to its target and `clearAtLeast` is reached, or all of them; null when
 * the threshold is not passed, nothing qualifies, or the tokens not shown in the turns to come do not pay for what is computed again.
 */
export function foldByPolicy(context: PolicyContext, policy: FoldPolicy = {}, price = FREE): Folded | null {
  const { olderThanTurns, largerThanTokens, clearAtLeast, threshold, target = TARGET * threshold } = { ...DEFAULTS, ...policy }
  const room = context.engine.info.context
  if (isHopeless(context)) return null
  const before = shownBy(context)
  if (before <= threshold * room) return null
  const qualifies = ({ age, tokens }: ToolResult) => age > olderThanTurns || tokens >= largerThanTokens
  const chosen = resultsOf(context).filter(qualifies)
  const worth = (folded: readonly Pick<ToolResult, 'message'>[]) =>
    Math.max(clearAtLeast, before > CROWDED * room ? 0 : leastWorth(computedFor(context, folded, price), price))
  return foldUntil(context, chosen, before, (shown) => shown <= target * room && before - shown >= clearAtLeast, worth)
}

/** Tokens that have to be hidden from every turn to come so that computing so many again pays; without a turn to come nothing does. */
const leastWorth = (computed: number, { turns }: FoldPrice): number =>
  turns === 0 ? Infinity : computed / (CACHED_PRICE * turns)

/** Tokens that folding these has computed again, about: cached text behind the first of them that stays shown. */
function computedFor(
  { engine, conversation }: PolicyContext,
  folded: readonly Pick<ToolResult, 'message'>[],
  price: FoldPrice,
): number {
  const { cached, again } = price
  const from = folded[0]?.message ?? cached
  if (again === 0 || from >= cached) return 0
  const hidden = new Set([...folded, ...conversation.edits()].map(({ message }) => message))
  const behind = conversation.messages.slice(0, cached).filter((_, at) => at > from && !hidden.has(at))
  const text = behind.map(({ content, toolCalls }) => content + (toolCalls === undefined ? '' : writeJson(toolCalls)))
  return again * engine.count([{ role: 'user', content: text.join('\n') }], [])
}

/**
 * What the thread's ledger and the request say about the next fold.
 * @param left where the request left what is cached
 * @param expected turns that the client says will come; default: as many as there were
 */
export function foldPrice(
  { ledger, events, conversation }: Thread,
  asked: ContractChoice | null,
  left: number | null,
  expected?: number,
): FoldPrice {
  const last = ledger.at(-1)
  const folded = events.findLast(({ kind }) => kind === 'policy')
  /** The contract may not be what was kept to: the step after the last fold says. */
  const isExact = ledger[folded?.after ?? ledger.length]?.fallback != null
  const contract = isExact ? 'exact' : contractOfStep(asked ?? last?.contract ?? 'exact')
  const turns = conversation.messages.filter(({ role }) => role === 'assistant').length
  return {
    cached: left ?? last?.messages.length ?? 0,
    again: { exact: 1, blend: 0.2, splice: 0 }[contract],
    turns: expected ?? Math.max(1, turns),
  }
}

/**
 * Folds the oldest tool results until what is shown leaves room for an answer, and with `fold-oldest` then the oldest other messages, too; null when
 * there is room as it is.
 * @throws KvfoldError context/full when folding all of them is not enough; nothing is folded then
 */
export function foldToFit(context: PolicyContext, overflow: Exclude<Overflow, 'refuse'>, answer = 1): Folded | null {
  if (isHopeless(context)) return null
  const room = context.engine.info.context - answer
  const before = shownBy(context)
  if (before <= room) return null
  const chosen = [...resultsOf(context), ...(overflow === 'fold-oldest' ? spokenOf(context) : [])]
  const folded = foldUntil(
    context,
    chosen,
    before,
    (shown) => shown <= room,
    () => before - room,
  )
  if (folded !== null) return folded
  throw new PromptTooLong(
    { tokens: before, atLeast: false, context: context.engine.info.context },
    `The conversation takes ${before} tokens, ${before - room} more than there is room for, and folding its ${overflow === 'fold-oldest' ? 'older messages' : 'tool results'} is not enough; ` +
      'fold or leave out other parts, or load the model with a larger context.',
  )
}

/** Ids of calls whose results were hidden before, by a policy or the thread's client, and are shown again: somebody wanted them, and would again. */
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
  /** Answers of the model after it. */
  readonly age: number
  readonly tokens: number
}

/** Tool results that the model has answered and that are shown whole, oldest first. */
export function resultsOf({ engine, conversation, pinned }: PolicyContext): readonly ToolResult[] {
  const { messages, fragments } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'assistant')
  const touched = new Set(fragments.filter(({ state }) => state.kind !== 'open').map(({ message }) => message))
  const alone = (content: string) => engine.count([{ role: 'user', content }], [])
  const nothing = alone('')
  const ageOf = (message: number) => messages.filter(({ role }, at) => role === 'assistant' && at > message).length
  return messages.flatMap(({ role, content, toolCallId = '' }, message): ToolResult[] => {
    if (role !== 'tool' || message >= last || touched.has(message) || content.length < 2 * SHORTEST) return []
    if (pinned?.has(toolCallId) === true) return []
    const tokens = alone(content) - nothing
    return tokens < SHORTEST ? [] : [{ message, age: ageOf(message), tokens }]
  })
}

/** What people and the model said before the last thing that a person said, shown whole and long enough, oldest first. */
function spokenOf({ conversation }: PolicyContext): readonly Pick<ToolResult, 'message'>[] {
  const { messages, fragments } = conversation
  const last = messages.findLastIndex(({ role }) => role === 'user')
  const touched = new Set(fragments.filter(({ state }) => state.kind !== 'open').map(({ message }) => message))
  return messages.flatMap(({ role, content }, message) => {
    const isSpoken = role === 'user' || role === 'assistant'
    // About the characters of a marker.
    return isSpoken && message < last && !touched.has(message) && content.length >= 4 * SHORTEST ? [{ message }] : []
  })
}

/** Folds the fewest from the front that reach the goal, else all of them, if they save at least what they are `worth`. Null: nothing was folded. */
export function foldUntil(
  context: PolicyContext,
  results: readonly Pick<ToolResult, 'message'>[],
  before: number,
  reached: (shown: number) => boolean,
  worth: (folded: readonly Pick<ToolResult, 'message'>[]) => number,
): Folded | null {
  if (results.length === 0) return null
  // By halves: the fewest that do are found with a handful of counts.
  let [few, many] = [1, results.length]
  while (few < many) {
    const middle = (few + many) >> 1
    if (reached(shownBy(context, results.slice(0, middle)))) many = middle
    else few = middle + 1
  }
  const chosen = results.slice(0, many)
  const expected = before - shownBy(context, chosen)
  if (expected < Math.max(1, worth(chosen))) return null
  const fragments = chosen.flatMap(({ message }) => foldWhole(context.conversation, message))
  return fragments.length === 0 ? null : { fragments, saves: before - shownBy(context) }
}

/** Tokens shown, with these results folded, too. */
export function shownBy(
  { engine, conversation, tools }: PolicyContext,
  folded: readonly Pick<ToolResult, 'message'>[] = [],
): number {
  const { messages } = conversation
  const hidden = folded.map(({ message }) => {
    const content = messages[message]?.content ?? ''
    return editOf({ id: fragmentId('f00000'), message, span: span(0, content.length), state: { kind: 'folded' } })!
  })
  const edits = [...conversation.edits(), ...hidden].sort((a, b) => a.message - b.message || a.span.start - b.span.start)
  return engine.count(noted(messages, tools), tools, edits)
}

/** Folds all of a message: as one fragment, or the fragments it was cut into. */
function foldWhole(conversation: Conversation, message: number): readonly Fragment[] {
  const there = conversation.fragments.filter((fragment) => fragment.message === message)
  const content = conversation.messages[message]?.content ?? ''
  const cut = there.length > 0 ? null : conversation.cut([{ message, span: span(0, content.length) }], 1)
  const fragments = cut === null ? there : cut.ok ? cut.fragments : []
  return fragments.flatMap(({ id }) => {
    const folded = conversation.fold(id)
    return folded.ok ? [folded.fragment] : []
  })
}

/** So long that the engine says at once that it does not fit, whereas counting takes minutes. */
export function isHopeless({ engine, conversation }: PolicyContext): boolean {
  const fits = (messages: readonly ChatMessage[]) =>
    messages.reduce((sum, { content }) => sum + content.length, 0) <= HOPELESS * engine.info.context
  return !fits(conversation.messages)
}

// What a client or the server may set about folding without a model's decision.

/** When `auto-policy` folds tool results, oldest first; all of it is reversible. */
export interface FoldPolicy {
  /** Share of the model's context that must be shown before anything is folded, 0 to 1. Default 0.75. */
  readonly threshold?: number
  /** Share of the model's context that is left shown where that many results may go. Default: two thirds of the threshold. */
  readonly target?: number
  /** Answers of the model after which a tool result counts as old. Default 3. Results that it has not answered yet are never folded. */
  readonly olderThanTurns?: number
  /** Tokens from which a tool result counts as large, whatever its age. Default 2000. */
  readonly largerThanTokens?: number
  /** Tokens that must be saved; less is not worth losing the cache for. Default 0. */
  readonly clearAtLeast?: number
}

/**
 * What a conversation that does not fit is answered: an error that says by how much, or tool results folded until it fits (an error if that is not
 * enough), or these and then the oldest messages.
 */
export const overflows = ['refuse', 'fold-tool-results', 'fold-oldest'] as const
export type Overflow = (typeof overflows)[number]

/** `off`: the model answers in one step. `tools`: it has the six context tools besides the client's. `auto-policy`: the server folds by its policy. `u-fold`, `resum`: the model writes notes, and of what is over they stay in sight with chosen lines, or alone. `memtool`: the client's tools are a catalogue that the model searches. */
export const acms = ['off', 'tools', 'auto-policy', 'u-fold', 'resum', 'memtool'] as const
export type Acm = (typeof acms)[number]

// Folding by helpers in a thread (`u-fold`, `resum`): when they look, what of a thread was theirs, and what their notes are.

type HelperAcm = 'u-fold' | 'resum'

/** Notes and choices since the server was started; what is hidden is in the thread itself. */
const states = new WeakMap<Thread, UFoldState>()

/** Of ReSum's code: the share of the window at which it summarises. */
const FULL = 0.9

interface HelperFold {
  readonly folded: Folded | null
  readonly ledger: readonly LedgerEntry[]
  /** For people: what happened, and the notes with the to-do list. */
  readonly reason: string
}

/**
 * Looks at a thread whose last messages wait for an answer: `u-fold` where the user has just spoken, `resum` at any step, when the window is nearly full.
 * Null when there was nothing to look at. @throws KvfoldError what the engine throws
 */
export async function foldByHelpers(
  acm: HelperAcm,
  thread: Thread,
  setting: Pick<UFoldSetting, 'engine' | 'tools' | 'generation' | 'pinned'>,
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
    state: states.get(thread) ?? { memory: null, blocks: [], upTo: 0, folds: 0, refused: 0, own: ownOf(thread) },
  })
  const { kind, why, before, after, ledger, refused } = await folding.fold(messages[user]!.content, signal, upTo)
  states.set(thread, folding.state)
  if (kind === 'small' || kind === 'same') return { folded: null, ledger, reason: '' }
  const ours = new Set(folding.state.own)
  const fragments = kind === 'folded' ? conversation.fragments.filter(({ id }) => ours.has(id)) : []
  const lines = folding.selected.map(({ first, last }) => `${first}-${last}`).join(', ')
  const wrong = refused.length === 0 ? '' : ` Ranges that are no lines: ${refused.join(', ')}.`
  const reason =
    kind === 'kept'
      ? `${acm}: the last view stays. ${why ?? ''}`
      : `${acm}: ${folding.notes ?? ''}\nLines in sight: ${lines || 'none'}.`
  return { folded: { fragments, saves: before - after }, ledger, reason: reason + wrong }
}

const optionsOf = (acm: HelperAcm, { engine }: Pick<UFoldSetting, 'engine'>): UFoldOptions =>
  acm === 'u-fold' ? {} : { foldFrom: FULL * engine.info.context, when: 'every-turn', results: 'none', rebuildEvery: 1 }

/** Fragments that helpers of an earlier process made: their events say so. */
const ownOf = ({ events, conversation }: Thread): UFoldState['own'] => {
  const made = new Set(events.filter(({ reason }) => /^(u-fold|resum): /.test(reason)).flatMap(({ folded }) => folded))
  return conversation.fragments.filter(({ id }) => made.has(id)).map(({ id }) => id)
}
