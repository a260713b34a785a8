/**
 * Runs one session of the MemTool study. Defines the ways of managing tools that the study compares, the actor that uses them, and the
 * script that may speak for the model.
 */
import { randomUUID } from 'node:crypto'
import type { MemToolMode } from '../../runtime/agents/memtool-asides.js'
import {
  type HistoryLimit,
  type MemToolOptions,
  MemToolSession,
  type MemToolState,
  type Placement,
  type RemovalRule,
} from '../../runtime/agents/memtool.js'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { isContextFull } from '../../runtime/core/errors.js'
import { conversationId } from '../../runtime/core/ids.js'
import { definedFields } from '../../runtime/core/json.js'
import type { EngineRequest, Sampling } from '../../runtime/engine/engine.js'
import type { ScriptedReply, Teacher } from '../taught-engine.js'
import type { Catalogue } from '../../runtime/tools/catalogue.js'
import { REMOVE_TOOLS, SEARCH_TOOLS } from '../../runtime/tools/management.js'
import type { ToolLimits } from '../../runtime/tools/tool-memory.js'
import { type Answered, type CalledTool, OVERFLOWED } from '../agent.js'
import { type Actor, playEpisode, type PlayOptions, type TurnAsk } from '../episode/episode.js'
import type { TurnRecord } from '../log.js'
import type { Recorder } from '../recorder.js'
import { answerOf, Companies, keywordOf, type Request, requestsOf, type ToolSessionOptions, type World } from './companies.js'
import {
  intervalsOf,
  measuresOf,
  type MemToolIntervals,
  type MemToolMeasures,
  type MemToolTokens,
  NewTokenCounter,
  tokensOf,
} from './measures.js'

// Below: the ways of managing tools that the study compares: the paper's three modes and our baselines. All are options of the same agent.

export interface MemToolArm {
  readonly mode: MemToolMode
  readonly removal: RemovalRule
  /** The default placement of tool definitions: in the list at the top of the prompt, or in the search results (`late`). */
  readonly placement: Placement
  readonly limits: ToolLimits
  /**
   * The tools that are loaded without a search. `needed`: each turn begins with exactly the tools that it needs. `always`: from the start,
   * as many tools as the limit allows, those that the session needs first; they stay loaded.
   */
  readonly given: 'nothing' | 'needed' | 'always'
  /** A description of the way in one line, for the command's help. */
  readonly about: string
}

const byModel = { removal: { by: 'model' }, placement: 'late', limits: {}, given: 'nothing' } as const

export const ways = {
  autonomous: { ...byModel, mode: 'autonomous', about: 'MemTool: the model searches and removes by tools' },
  workflow: {
    ...byModel,
    mode: 'workflow',
    about: 'MemTool: before each turn an aside asks the model what to remove and what to search for',
  },
  hybrid: { ...byModel, mode: 'hybrid', about: 'MemTool: an aside asks the model what to remove; it searches by a tool' },
  'search-only': {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'never' },
    about: 'the model searches and removes nothing, within the limit',
  },
  deferred: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'never' },
    limits: { tools: Number.MAX_SAFE_INTEGER },
    about: 'the model searches and removes nothing, without a limit',
  },
  unused: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'unused', turns: 2 },
    about: 'the model searches; a rule removes tools that two turns did not use',
  },
  lru: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'lru', tokens: 2048 },
    about: 'the model searches; a rule removes the least recently used tools beyond 2,048 tokens',
  },
  oracle: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'never' },
    placement: 'list',
    given: 'needed',
    about: 'exactly the needed tools are loaded',
  },
  always: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'never' },
    placement: 'list',
    given: 'always',
    about: 'the same 128 tools are loaded from the first turn to the last',
  },
} as const satisfies Record<string, MemToolArm>

export type WayName = keyof typeof ways
export const wayNames = Object.keys(ways) as WayName[]

export interface MemToolRun extends ToolSessionOptions {
  /** `taught`: a script decides the replies, and the real engine computes them. `model`: the model itself answers. */
  readonly agent: 'taught' | 'model'
  readonly way: WayName
  /** Default: the way's own placement. */
  readonly placement?: Placement
  readonly contract: ContractChoice
  readonly limits?: ToolLimits
  readonly history?: HistoryLimit
  readonly sampling?: Sampling
}

export interface MemToolSetting extends Pick<PlayOptions, 'engine' | 'start' | 'asks' | 'onStep' | 'onTurn' | 'signal'> {
  readonly world: World
  readonly catalogue: Catalogue
}

/** The result of one session, or of several together. Tokens are summed over all steps, including asides. */
export interface MemToolResult {
  readonly way: WayName
  readonly placement: Placement
  readonly contract: ContractChoice
  readonly sessions: readonly (readonly TurnRecord[])[]
  readonly measures: MemToolMeasures
  readonly intervals: MemToolIntervals
  readonly tokens: MemToolTokens
}

/** Runs a session to its end. @returns its result and its recorder @throws KvfoldError any error of the engine; engine/cancelled */
export async function memToolSession(
  run: MemToolRun,
  { world, catalogue, ...setting }: MemToolSetting,
): Promise<MemToolResult & { readonly recorder: Recorder }> {
  const { engine, start } = setting
  const name = `memtool-${randomUUID().slice(0, 8)}`
  const environment = new Companies(world, run, start?.checkpoint?.environment as { turn: number } | undefined)
  const { agent, way, contract, limits, history, sampling, placement = ways[way].placement } = run
  const state = start?.checkpoint?.actor as MemToolActorState | undefined
  const novelty = new NewTokenCounter(engine)
  // The script needs the actor's session, and the session needs the engine on which the script speaks. So `actor` is assigned later.
  let actor: MemToolActor | null = null
  const script = () =>
    teacherOf(
      environment,
      (tool) => actor?.session.memory.has(tool) ?? false,
      () => actor?.session.memory.names ?? [],
    )
  const cast = (recorder: Recorder): Actor => {
    actor = new MemToolActor({
      ...{ engine: recorder, id: conversationId(`${name}/session`), catalogue, environment, way, placement, speaker: agent },
      needed: requestsOf(world, run).flatMap(({ figures }) => figures.map((figure) => world.callOf(figure).name)),
      generation: { contract, maxTokens: MOST, ...definedFields({ sampling }) },
      ...definedFields({ limits, history, state }),
    })
    if (state !== undefined) {
      const { conversation } = actor.session
      // No prompt contains a script's last answer yet, so it still counts as new.
      const messages = conversation.messages.slice(0, agent === 'taught' ? -1 : undefined)
      const loaded = state.session.memory.loaded.map(({ name }) => name)
      const tools = [SEARCH_TOOLS, REMOVE_TOOLS, ...state.cohorts.flat(), ...loaded]
      novelty.knows({ messages, edits: conversation.edits(), tools })
    }
    return counting(actor, novelty)
  }
  try {
    const { turns, recorder } = await playEpisode({
      ...setting,
      ...{ name, environment, cast },
      teacher: agent === 'model' ? null : script(),
      onStep: (step) => {
        novelty.count(step)
        setting.onStep?.(step)
      },
    })
    return { ...resultOf({ way, placement, contract }, [turns]), recorder }
  } finally {
    ;(actor as MemToolActor | null)?.session.forget()
  }
}

const MOST = 1024

/** Returns the actor, with the number of new tokens added to the details of each turn. */
function counting(actor: MemToolActor, novelty: NewTokenCounter): Actor {
  return {
    async act(ask, signal) {
      const before = novelty.tokens
      const acted = await actor.act(ask, signal)
      return { ...acted, details: { ...acted.details, newTokens: novelty.tokens - before } }
    },
    get state() {
      return actor.state
    },
  }
}

/** Merges sessions with the same way, placement and contract into one result. */
export const together = (results: readonly [MemToolResult, ...MemToolResult[]]): MemToolResult =>
  resultOf(
    results[0],
    results.flatMap(({ sessions }) => sessions),
  )

const resultOf = (
  { way, placement, contract }: Pick<MemToolResult, 'way' | 'placement' | 'contract'>,
  sessions: MemToolResult['sessions'],
): MemToolResult => ({
  ...{ way, placement, contract, sessions, measures: measuresOf(...sessions) },
  ...{ intervals: intervalsOf(sessions), tokens: tokensOf(sessions) },
})

// Below: the actor of the MemTool task. It passes the user's requests to a session, and records the session's tools after each turn.

const PURPOSE =
  'You answer questions about companies. There is a tool for each company and each of its figures, such as the revenue of one company.'

export interface MemToolActorOptions extends Pick<
  MemToolOptions,
  'engine' | 'id' | 'catalogue' | 'generation' | 'history' | 'limits'
> {
  readonly environment: Companies
  /**
   * A script or the model. If the context is full, a model's turn counts as overflowed, because the model filled it. With a script, the
   * turn throws.
   */
  readonly speaker: MemToolRun['agent']
  readonly way: WayName
  /** Default: the way's own placement. */
  readonly placement?: Placement
  /** The names of the tools that the whole session needs, for the way `always`. */
  readonly needed: readonly string[]
  readonly state?: MemToolActorState
}

export interface MemToolActorState {
  readonly session: MemToolState
  readonly cohorts: readonly (readonly string[])[]
  /** For each tool, the index (from 0) of the last turn with a successful call. */
  readonly called: Readonly<Record<string, number>>
}

export class MemToolActor implements Actor {
  readonly session: MemToolSession
  /** For each turn, the names of the tools added in it. */
  readonly #cohorts: (readonly string[])[]
  readonly #called: Record<string, number>

  constructor(private readonly options: MemToolActorOptions) {
    const { way, environment, placement, limits, state, engine, id, catalogue, generation, history } = options
    const { mode, removal, given, ...standard } = ways[way]
    this.#cohorts = [...(state?.cohorts ?? [])]
    this.#called = { ...state?.called }
    this.session = new MemToolSession({
      ...{ engine, id, catalogue, mode, removal },
      placement: placement ?? standard.placement,
      limits: { ...limits, ...standard.limits },
      purpose: PURPOSE,
      execute: (call) => environment.execute(call),
      ...(generation === undefined ? {} : { generation }),
      ...(history === undefined ? {} : { history }),
      ...(state === undefined ? {} : { state: state.session }),
    })
    if (given === 'always' && state === undefined) this.session.load(alwaysOf(options, this.session.memory.limits.tools))
  }

  get state(): MemToolActorState {
    return { session: this.session.state, cohorts: this.#cohorts, called: this.#called }
  }

  async act(ask: TurnAsk, signal?: AbortSignal): Promise<Answered> {
    const { memory } = this.session
    const turn = this.#cohorts.length
    const before = { names: this.#names, counts: memory.counts }
    if (ways[this.options.way].given === 'needed') this.#give()
    const calls: CalledTool[] = []
    const asked = this.session.ask(ask.messages.at(-1)!.content, {
      ...(signal === undefined ? {} : { signal }),
      onEvent: (event) => {
        if (event.type !== 'result') return
        const { step, call, failed, modifies } = event
        calls.push({ step, name: call.name, failed, modifies })
        if (!failed && !modifies) this.#called[call.name] = turn
      },
    })
    const outcome = await asked.catch((error: unknown) => {
      if (this.options.speaker === 'model' && isContextFull(error)) return OVERFLOWED
      throw error
    })
    const [names, counts] = [this.#names, memory.counts]
    this.#cohorts.push(names.filter((name) => !before.names.includes(name)))
    const needed = this.#needed
    return {
      answer: outcome.answer,
      end: outcome.end === 'tool-calls' ? 'stop' : outcome.end,
      calls,
      refusedCalls: outcome.refusedCalls,
      details: {
        tools: names.length,
        toolTokens: memory.tokens,
        added: counts.added - before.counts.added,
        removed: counts.removed - before.counts.removed,
        refusedSearches: counts.refused - before.counts.refused,
        ghosts: counts.calledUnloaded - before.counts.calledUnloaded,
        overflowed: outcome === OVERFLOWED ? 1 : 0,
        needed: needed.length,
        neededLoaded: needed.filter((name) => memory.has(name)).length,
        useless: names.filter((name) => (this.#called[name] ?? -Infinity) < turn - 1).length,
        ...this.#survival(turn, names),
      },
    }
  }

  /** Counts the tools added one, two and three turns ago (`cohort1` ...), and how many of these are unloaded (`gone1` ...). */
  #survival(turn: number, names: readonly string[]): Record<string, number> {
    return Object.fromEntries(
      [1, 2, 3].flatMap((lag) => {
        const cohort = this.#cohorts[turn - lag] ?? []
        return [
          [`cohort${lag}`, cohort.length],
          [`gone${lag}`, cohort.filter((name) => !names.includes(name)).length],
        ]
      }),
    )
  }

  #give(): void {
    const needed = this.#needed
    this.session.remove(this.#names.filter((name) => !needed.includes(name)))
    this.session.load(needed)
  }

  get #names(): readonly string[] {
    return this.session.memory.names
  }

  get #needed(): readonly string[] {
    const { world, request } = this.options.environment
    return toolsFor(world, request)
  }
}

const toolsFor = (world: Companies['world'], { figures }: Request): readonly string[] => [
  ...new Set(figures.map((figure) => world.callOf(figure).name)),
]

/** Returns up to `limit` tools for the way `always`: first those that the session needs, then those that come first in the catalogue. */
function alwaysOf({ needed, environment }: MemToolActorOptions, limit: number): readonly string[] {
  return [...new Set([...needed, ...environment.world.tools.map(({ name }) => name)])].slice(0, limit)
}

/**
 * Acts as a model without mistakes, as the MemTool paper describes it. It removes tools that the request does not need, and searches one
 * keyword per missing tool. Then it calls the loaded tools, and answers with their values. It knows the requests in advance, but not what a
 * search will find.
 */
export function teacherOf(environment: Companies, loaded: (name: string) => boolean, names: () => readonly string[]): Teacher {
  return (request) => {
    const needed = toolsFor(environment.world, environment.request)
    const useless = names().filter((name) => !needed.includes(name))
    const missing = environment.request.figures.filter((figure) => !loaded(environment.world.callOf(figure).name))
    const keywords = [...new Set(missing.map(keywordOf))]
    const aside = propertyOf(request)
    if (aside === 'remove') return { content: JSON.stringify({ remove: useless }) }
    if (aside === 'keywords') return { content: JSON.stringify({ keywords }) }
    const here = request.messages.slice(request.messages.findLastIndex(({ role }) => role === 'user') + 1)
    const made = new Set(here.flatMap(({ toolCalls = [] }) => toolCalls.map(({ name }) => name)))
    if (!made.has(SEARCH_TOOLS) && !made.has(REMOVE_TOOLS)) {
      const calls = managing(request, useless, keywords)
      if (calls.length > 0) return { calls }
    }
    const called = here.some(({ role, name }) => role === 'tool' && name !== SEARCH_TOOLS && name !== REMOVE_TOOLS)
    const callable = environment.request.figures.filter((figure) => loaded(environment.world.callOf(figure).name))
    if (!called && callable.length > 0) return { calls: callable.map((figure) => environment.world.callOf(figure)) }
    return { content: callable.length === 0 ? 'I have no tool for that.' : answerOf(environment.world, callable) }
  }
}

function managing(
  { tools = [] }: EngineRequest,
  useless: readonly string[],
  keywords: readonly string[],
): ScriptedReply['calls'] & object {
  const has = (name: string) => tools.some((tool) => tool.name === name)
  return [
    ...(has(REMOVE_TOOLS) && useless.length > 0 ? [{ name: REMOVE_TOOLS, arguments: { tool_names: useless } }] : []),
    ...(has(SEARCH_TOOLS) && keywords.length > 0 ? [{ name: SEARCH_TOOLS, arguments: { keywords } }] : []),
  ]
}

/** Returns the property that an aside asks for (`remove` or `keywords`); null if the request is no aside. */
function propertyOf({ schema }: EngineRequest): string | null {
  if (typeof schema !== 'object' || schema === null || !('properties' in schema)) return null
  return Object.keys(schema.properties as object)[0] ?? null
}
