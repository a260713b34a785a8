/** Owns the numbers of a MemTool session: the paper's four as they are printed, what breaks them, and the ones that mean something, tokens that are really new among them. Pure. */
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import { EngineAround, type EngineReply, type EngineRequest, type Generation, generationOf } from '../../runtime/engine/engine.js'
import { bootstrap, type Interval } from '../attention/statistics.js'
import type { TurnRecord } from '../episode/episode.js'

/** Null where nothing can be said, such as a share of nothing. */
export interface MemToolMeasures {
  readonly turns: number
  /** Removed of those that were added, over the session (MemTool, eq. 1). */
  readonly removalRatio: number | null
  /** Mean over windows of three turns of removed / added, each at most 1 (eq. 2 to 4); windows without additions left out. */
  readonly avgRemovalRatio3T: number | null
  /** The same as printed, which may be more than 1. */
  readonly avgRemovalRatio3TUnclipped: number | null
  readonly windowsLeftOut: number
  /** Mean number of tools in the three turns after a peak (eq. 5); a peak is a turn with more tools than the one before and the one after it. */
  readonly avgResidual: number | null
  readonly peaks: number
  /** Correct calls of all calls made, by name and with their arguments. */
  readonly toolCorrectness: number | null
  readonly callCorrectness: number | null
  /** Calls that were expected and made, with their arguments. */
  readonly callRecall: number | null
  /** Mean share of the asked values that the answer says; exact, no judge. */
  readonly taskCompletion: number
  /** Of the tools added in a turn, the share that is gone at the end of the next, the second and the third turn after. */
  readonly gone: readonly (number | null)[]
  /** Tools at the ends of turns: mean and most. */
  readonly meanTools: number
  readonly mostTools: number
  readonly meanToolTokens: number
  /** Mean number of tools that are loaded and were not called in the last two turns. */
  readonly useless: number
  /** Needed tools that were loaded when their turn ended. */
  readonly recall: number | null
  readonly refusedSearches: number
  /** Calls of tools that were not loaded. */
  readonly ghosts: number
  /** Turns of a model that no longer fitted the context, and count as wrong. */
  readonly overflowed: number
}

const FIRST_THREE = 3

/** Of the turns of one session or of several: shares of all their turns together; no window and no peak goes from one session into the next. */
export function measuresOf(...sessions: readonly (readonly TurnRecord[])[]): MemToolMeasures {
  const turns = sessions.flat()
  const detail = (name: string) => valuesOf(turns, name)
  const scored = (name: string) => turns.map(({ score }) => score.details[name] ?? 0)
  const [added, removed, tools] = [detail('added'), detail('removed'), detail('tools')]
  const windows = sessions.flatMap(windowsOf)
  const usable = windows.filter((window) => window.added > 0)
  const residuals = sessions.flatMap(residualsOf)
  return {
    turns: turns.length,
    removalRatio: share(sum(removed), sum(added)),
    avgRemovalRatio3T: mean(usable.map((window) => Math.min(1, window.removed / window.added))),
    avgRemovalRatio3TUnclipped: mean(usable.map((window) => window.removed / window.added)),
    windowsLeftOut: windows.length - usable.length,
    avgResidual: mean(residuals),
    peaks: residuals.length,
    toolCorrectness: share(sum(scored('namesRight')), sum(scored('called'))),
    callCorrectness: share(sum(scored('callsRight')), sum(scored('called'))),
    callRecall: share(sum(scored('callsRight')), sum(scored('expected'))),
    taskCompletion: mean(turns.map(({ score }) => score.points)) ?? 0,
    gone: [1, 2, 3].map((lag) => share(sum(detail(`gone${lag}`)), sum(detail(`cohort${lag}`)))),
    meanTools: mean(tools) ?? 0,
    mostTools: Math.max(0, ...tools),
    meanToolTokens: mean(detail('toolTokens')) ?? 0,
    useless: mean(detail('useless')) ?? 0,
    recall: share(sum(detail('neededLoaded')), sum(detail('needed'))),
    refusedSearches: sum(detail('refusedSearches')),
    ghosts: sum(detail('ghosts')),
    overflowed: sum(detail('overflowed')),
  }
}

/** What is told with an interval. */
const TOLD = [
  'recall',
  'avgRemovalRatio3T',
  'avgResidual',
  'toolCorrectness',
  'callCorrectness',
  'callRecall',
  'taskCompletion',
] as const
export type MemToolIntervals = Readonly<Record<(typeof TOLD)[number], Interval | null>>

/** 95 % intervals over sessions, which are resampled whole; null for fewer than two. */
export const intervalsOf = (sessions: readonly (readonly TurnRecord[])[]): MemToolIntervals =>
  Object.fromEntries(
    TOLD.map((one) => [one, bootstrap(sessions, (drawn) => measuresOf(...drawn)[one])]),
  ) as unknown as MemToolIntervals

/** Tools added and removed in every three turns in a row. */
const windowsOf = (turns: readonly TurnRecord[]): { readonly added: number; readonly removed: number }[] =>
  turns.slice(FIRST_THREE - 1).map((_, at) => {
    const three = turns.slice(at, at + FIRST_THREE)
    return { added: sum(valuesOf(three, 'added')), removed: sum(valuesOf(three, 'removed')) }
  })

/** The mean of the three turns after each peak: a turn with strictly more tools than both beside it, three turns before the end at least. */
function residualsOf(turns: readonly TurnRecord[]): number[] {
  const tools = valuesOf(turns, 'tools')
  return tools.flatMap((count, turn) => {
    const before = tools[turn - 1] ?? 0
    const isPeak = turn + FIRST_THREE < tools.length && count > before && count > tools[turn + 1]!
    return isPeak ? [sum(tools.slice(turn + 1, turn + 1 + FIRST_THREE)) / FIRST_THREE] : []
  })
}

const valuesOf = (turns: readonly TurnRecord[], name: string): number[] => turns.map(({ details }) => details[name] ?? 0)

const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0)
const share = (part: number, whole: number): number | null => (whole === 0 ? null : part / whole)
const mean = (numbers: readonly number[]): number | null => share(sum(numbers), numbers.length)

/** Tokens of all steps, asides included. */
export interface MemToolTokens {
  readonly shown: number
  readonly reused: number
  readonly computed: number
  /** See MessageCost: shown in the sum, not computed as a fresh prefill would. */
  readonly approximate: number
  /** Of text that no prompt had shown before. */
  readonly new: number
  /** Of the last prompt, of the longest where there are several sessions. */
  readonly last: number
}

export function tokensOf(sessions: readonly (readonly TurnRecord[])[]): MemToolTokens {
  const turns = sessions.flat()
  const sum = (key: 'shown' | 'reused' | 'submitted' | 'approximate') => turns.reduce((total, { work }) => total + work[key], 0)
  return {
    shown: sum('shown'),
    reused: sum('reused'),
    computed: sum('submitted'),
    approximate: sum('approximate'),
    new: turns.reduce((total, { details }) => total + (details['newTokens'] ?? 0), 0),
    last: Math.max(0, ...sessions.map((session) => session.at(-1)?.tokens.after ?? 0)),
  }
}

// Counting what is really new in a session: tokens of text that none of its prompts had shown before, whatever was done to the cache.

/**
 * Every message counts once, when it is first shown, by the ledger; every text that stands in place of another once; every definition in the list at
 * the top once; what was generated once. One session each.
 */
export class NewTokenCounter extends EngineAround {
  readonly #messages = new Set<string>()
  readonly #texts = new Set<string>()
  readonly #tools = new Set<string>()
  #tokens = 0

  /** What prompts of the session showed before this one began. */
  knows({
    messages,
    edits,
    tools,
  }: {
    messages: readonly ChatMessage[]
    edits: readonly Edit[]
    tools: readonly string[]
  }): void {
    messages.forEach((message, index) => this.#messages.add(keyOf(message, index)))
    for (const edit of edits) this.#texts.add(placeOf(edit))
    for (const name of tools) this.#tools.add(name)
  }

  get tokens(): number {
    return this.#tokens
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const running = this.engine.respond(request)
      for await (const event of running) stream.push(event)
      const reply = await running.reply
      this.#count(request, reply)
      return reply
    })
  }

  #count({ messages, edits = [], tools = [] }: EngineRequest, { message, ledger, timing }: EngineReply): void {
    const first = this.#messages.size === 0
    const costs = new Map(ledger.messages.map(({ index, shown }) => [index, shown]))
    for (const [index, one] of messages.entries())
      if (isNew(this.#messages, keyOf(one, index))) this.#tokens += costs.get(index) ?? 0
    if (timing.generatedTokens > 0) {
      this.#tokens += timing.generatedTokens
      this.#messages.add(keyOf(message, messages.length))
    }
    for (const edit of edits) if (isNew(this.#texts, placeOf(edit))) this.#tokens += this.#alone(edit.replacement)
    // Those of the first prompt stand in its first message.
    for (const tool of tools) if (isNew(this.#tools, tool.name) && !first) this.#tokens += this.#definition(tool)
  }

  #definition(tool: ToolDefinition): number {
    const list = (tools: readonly ToolDefinition[]) => this.engine.count([{ role: 'user', content: '' }], tools)
    const spare: ToolDefinition = { name: 'spare', description: '', parameters: { type: 'object' } }
    return list([spare, tool]) - list([spare])
  }

  #alone(content: string): number {
    const count = (text: string) => this.engine.count([{ role: 'user', content: text }], [])
    return count(content) - count('')
  }
}

/** A message by its place and text: sessions that were resumed have others of the same text. */
const keyOf = ({ role, content, toolCalls = [] }: ChatMessage, index: number): string =>
  JSON.stringify([index, role, content, toolCalls.map(({ name, arguments: given }) => [name, given])])

const placeOf = ({ message, span: { start }, replacement }: Edit): string => `${message} ${start} ${replacement}`

function isNew(known: Set<string>, key: string): boolean {
  if (known.has(key)) return false
  known.add(key)
  return true
}
