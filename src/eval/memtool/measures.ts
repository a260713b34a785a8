/** Owns the numbers of a MemTool session: the paper's four as they are printed, what breaks them, and the ones that mean something, tokens that are really new among them. Pure. */
import type { ChatMessage, Edit, ToolDefinition } from '../../chat/message.js'
import { EngineAround, type EngineReply, type EngineRequest, type Generation, generationOf } from '../../engine/engine.js'
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
}

const FIRST_THREE = 3

export function measuresOf(turns: readonly TurnRecord[]): MemToolMeasures {
  const detail = (name: string) => turns.map(({ details }) => details[name] ?? 0)
  const scored = (name: string) => turns.map(({ score }) => score.details[name] ?? 0)
  const [added, removed, tools] = [detail('added'), detail('removed'), detail('tools')]
  const windows = turns.slice(FIRST_THREE - 1).map((_, at) => ({
    added: sum(added.slice(at, at + FIRST_THREE)),
    removed: sum(removed.slice(at, at + FIRST_THREE)),
  }))
  const usable = windows.filter((window) => window.added > 0)
  const peaks = peaksOf(tools)
  return {
    turns: turns.length,
    removalRatio: share(sum(removed), sum(added)),
    avgRemovalRatio3T: mean(usable.map((window) => Math.min(1, window.removed / window.added))),
    avgRemovalRatio3TUnclipped: mean(usable.map((window) => window.removed / window.added)),
    windowsLeftOut: windows.length - usable.length,
    avgResidual: mean(peaks.map((peak) => sum(tools.slice(peak + 1, peak + 1 + FIRST_THREE)) / FIRST_THREE)),
    peaks: peaks.length,
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
  }
}

/** Turns with strictly more tools than both beside them, three turns before the end at least. */
function peaksOf(tools: readonly number[]): number[] {
  return tools.flatMap((count, turn) => {
    const before = tools[turn - 1] ?? 0
    const isPeak = turn + FIRST_THREE < tools.length && count > before && count > tools[turn + 1]!
    return isPeak ? [turn] : []
  })
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0)
const share = (part: number, whole: number): number | null => (whole === 0 ? null : part / whole)
const mean = (numbers: readonly number[]): number | null => share(sum(numbers), numbers.length)

// Counting what is really new in a session: tokens of text that none of its prompts had shown before, whatever was done to the cache.

/**
 * Every message counts once, when it is first shown, by the ledger; every text that stands in place of another once; every definition in the list at
 * the top once; what was generated once. One session each.
 */
export class Novelty extends EngineAround {
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
