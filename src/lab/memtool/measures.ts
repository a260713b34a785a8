/**
 * Computes the measures of MemTool sessions: the paper's four as printed, how often they are undefined, and our own, such as new tokens.
 * Pure.
 */
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import type { Engine } from '../../runtime/engine/engine.js'
import { bootstrap, type Interval } from '../attention/statistics.js'
import { fitted } from '../agent.js'
import type { TurnRecord } from '../log.js'
import type { DoneStep } from '../recorder.js'

/** The measures of one or more sessions. A measure is null if it is undefined, e.g. a share of zero calls. */
export interface MemToolMeasures {
  readonly turns: number
  /** Number of removed tools divided by the number of added tools, over the session (MemTool, eq. 1). */
  readonly removalRatio: number | null
  /**
   * Removed divided by added tools in each window of three turns, at most 1, averaged over windows (eq. 2 to 4). Windows without additions
   * are left out.
   */
  readonly avgRemovalRatio3T: number | null
  /** `avgRemovalRatio3T` without the limit of 1 on each ratio, as the paper prints it. */
  readonly avgRemovalRatio3TUnclipped: number | null
  /** Number of windows without additions, which have no ratio. */
  readonly windowsLeftOut: number
  /** Mean number of tools in the three turns after a peak (eq. 5). A peak is a turn with more tools than the turns before and after it. */
  readonly avgResidual: number | null
  readonly peaks: number
  /**
   * Share of the model's calls that go to an expected tool; in `callCorrectness` the arguments must be right too. Calls of tools that were
   * not loaded count as wrong. Calls of the search and removal tools do not count.
   */
  readonly toolCorrectness: number | null
  readonly callCorrectness: number | null
  /** Share of the expected calls that the model made with the right arguments. */
  readonly callRecall: number | null
  /** Mean share of the requested values that the answer contains. Values are compared exactly, without a judge. */
  readonly taskCompletion: number
  /** Of the tools added in a turn, the share that is unloaded one turn later, two turns later, and three turns later. */
  readonly gone: readonly (number | null)[]
  /** `meanTools`: mean number of tools loaded at the end of a turn. `mostTools`: the largest number. */
  readonly meanTools: number
  readonly mostTools: number
  readonly meanToolTokens: number
  /** Mean number of loaded tools without a successful call in the last two turns. */
  readonly useless: number
  /** Of the tools that a turn needs, the share that is loaded at its end. */
  readonly recall: number | null
  readonly refusedSearches: number
  /** Number of calls to tools that were not loaded. */
  readonly ghosts: number
  /** Number of turns that did not fit into the model's context. They count as wrong. */
  readonly overflowed: number
}

const FIRST_THREE = 3

/** Computes the measures over all turns of the sessions. Windows and peaks never span two sessions. */
export function measuresOf(...sessions: readonly (readonly TurnRecord[])[]): MemToolMeasures {
  const turns = sessions.flat()
  const detail = (name: string) => valuesOf(turns, name)
  const scored = (name: string) => turns.map(({ score }) => score.details[name] ?? 0)
  const [added, removed, tools] = [detail('added'), detail('removed'), detail('tools')]
  const windows = sessions.flatMap(windowsOf)
  const usable = windows.filter((window) => window.added > 0)
  const residuals = sessions.flatMap(residualsOf)
  // `called` has only the calls that were carried out.
  const calls = sum(scored('called')) + sum(detail('ghosts'))
  return {
    turns: turns.length,
    removalRatio: share(sum(removed), sum(added)),
    avgRemovalRatio3T: mean(usable.map((window) => Math.min(1, window.removed / window.added))),
    avgRemovalRatio3TUnclipped: mean(usable.map((window) => window.removed / window.added)),
    windowsLeftOut: windows.length - usable.length,
    avgResidual: mean(residuals),
    peaks: residuals.length,
    toolCorrectness: share(sum(scored('namesRight')), calls),
    callCorrectness: share(sum(scored('callsRight')), calls),
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

/** The measures that the report gives with an interval. */
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

/** Returns the 95 % bootstrap intervals of these measures, resampled by whole sessions. Null for fewer than two sessions. */
export const intervalsOf = (sessions: readonly (readonly TurnRecord[])[]): MemToolIntervals =>
  Object.fromEntries(
    TOLD.map((one) => [one, bootstrap(sessions, (drawn) => measuresOf(...drawn)[one])]),
  ) as unknown as MemToolIntervals

/** Returns the numbers of tools added and removed in each window of three consecutive turns. */
const windowsOf = (turns: readonly TurnRecord[]): { readonly added: number; readonly removed: number }[] =>
  turns.slice(FIRST_THREE - 1).map((_, at) => {
    const three = turns.slice(at, at + FIRST_THREE)
    return { added: sum(valuesOf(three, 'added')), removed: sum(valuesOf(three, 'removed')) }
  })

/**
 * Returns the mean number of tools in the three turns after each peak. A peak has more tools than the turns before and after it, and at
 * least three turns behind it.
 */
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

/** Numbers of tokens, summed over all steps of the sessions, including asides. */
export interface MemToolTokens {
  readonly shown: number
  readonly reused: number
  readonly computed: number
  /** Number of shown tokens whose cells differ from those of a fresh prefill, summed over the steps (see `MessageCost`). */
  readonly approximate: number
  /** Tokens of text that no earlier prompt contained. */
  readonly new: number
  /**
   * Tokens in the context at the end of the last turn that fitted into it; null if no turn fitted. For several sessions, the largest of
   * their numbers.
   */
  readonly last: number | null
}

export function tokensOf(sessions: readonly (readonly TurnRecord[])[]): MemToolTokens {
  const turns = sessions.flat()
  const last = sessions.flatMap((session) => session.findLast(fitted)?.tokens.after ?? [])
  const sum = (key: 'shown' | 'reused' | 'submitted' | 'approximate') => turns.reduce((total, { work }) => total + work[key], 0)
  return {
    shown: sum('shown'),
    reused: sum('reused'),
    computed: sum('submitted'),
    approximate: sum('approximate'),
    new: turns.reduce((total, { details }) => total + (details['newTokens'] ?? 0), 0),
    last: last.length === 0 ? null : Math.max(...last),
  }
}

// Below: counts a session's new tokens, those of text that no earlier prompt contained. What the cache holds does not matter.

/**
 * Counts one session's new tokens. A message counts once, when a prompt first contains it, with its tokens in the ledger. Each replacement
 * text of an edit, each tool definition in the prompt's list, and each generated token also count once.
 */
export class NewTokenCounter {
  readonly #messages = new Set<string>()
  readonly #texts = new Set<string>()
  readonly #tools = new Set<string>()
  #tokens = 0

  constructor(private readonly engine: Pick<Engine, 'count'>) {}

  /** Marks text that the session's prompts contained before it was resumed, so that it does not count again. */
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

  /** Adds the new tokens of one step. The recorder calls it after each step. */
  readonly count = ({ request: { messages, edits, tools }, reply: { message, ledger, timing } }: DoneStep): void => {
    const first = this.#messages.size === 0
    const costs = new Map(ledger.messages.map(({ index, shown }) => [index, shown]))
    for (const [index, one] of messages.entries())
      if (isNew(this.#messages, keyOf(one, index))) this.#tokens += costs.get(index) ?? 0
    if (timing.generatedTokens > 0) {
      this.#tokens += timing.generatedTokens
      this.#messages.add(keyOf(message, messages.length))
    }
    for (const edit of edits) if (isNew(this.#texts, placeOf(edit))) this.#tokens += this.#alone(edit.replacement)
    // The ledger counts the first prompt's tool definitions as part of its first message.
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

/** Returns a key that identifies a message by its index and content. A resumed session has new objects for the same messages. */
const keyOf = ({ role, content, toolCalls = [] }: ChatMessage, index: number): string =>
  JSON.stringify([index, role, content, toolCalls.map(({ name, arguments: given }) => [name, given])])

const placeOf = ({ message, span: { start }, replacement }: Edit): string => `${message} ${start} ${replacement}`

function isNew(known: Set<string>, key: string): boolean {
  if (known.has(key)) return false
  known.add(key)
  return true
}
