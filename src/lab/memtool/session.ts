/** Owns one session of the MemTool study: the ways that are compared as options of the one agent, its turns, measures and tokens, and the agent that is put to it. */
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
import type { Engine, EngineRequest, Sampling } from '../../runtime/engine/engine.js'
import { type ScriptedReply, SpokenEngine, type Teacher } from '../taught-engine.js'
import type { Catalogue } from '../../runtime/tools/catalogue.js'
import { REMOVE_TOOLS, SEARCH_TOOLS } from '../../runtime/tools/management.js'
import type { ToolLimits } from '../../runtime/tools/tool-memory.js'
import { type Answered, type CalledTool, OVERFLOWED } from '../agent.js'
import { type Actor, type TurnAsk, type Checkpoint, runEpisode, type TurnRecord } from '../episode/episode.js'
import { Recorder } from '../recorder.js'
import { IsolatedEngine } from '../run/trial.js'
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

// The ways of the MemTool study: the paper's three modes and what they are compared with, each as options of the one agent.

export interface MemToolArm {
  readonly mode: MemToolMode
  readonly removal: RemovalRule
  /** What its definitions stand in where nothing else is asked for. */
  readonly placement: Placement
  readonly limits: ToolLimits
  /** `needed`: every turn begins with its tools and no others. `always`: as many as the limit takes, the session's own first, and they stay. */
  readonly given: 'nothing' | 'needed' | 'always'
  /** What people read. */
  readonly about: string
}

const byModel = { removal: { by: 'model' }, placement: 'late', limits: {}, given: 'nothing' } as const

export const ways = {
  autonomous: { ...byModel, mode: 'autonomous', about: 'MemTool: the model searches and removes by tools' },
  workflow: {
    ...byModel,
    mode: 'workflow',
    about: 'MemTool: asked aside before each turn what to remove and what to search for',
  },
  hybrid: { ...byModel, mode: 'hybrid', about: 'MemTool: asked aside what to remove, searches by a tool' },
  'search-only': { ...byModel, mode: 'hybrid', removal: { by: 'nobody' }, about: 'searches, removes nothing, within the limit' },
  deferred: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'nobody' },
    limits: { tools: Number.MAX_SAFE_INTEGER },
    about: 'searches, appends, removes nothing, no limit',
  },
  unused: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'unused', turns: 2 },
    about: 'searches; what two turns did not use is removed',
  },
  lru: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'lru', tokens: 2048 },
    about: 'searches; the least used beyond 2,048 tokens are removed',
  },
  oracle: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'nobody' },
    placement: 'list',
    given: 'needed',
    about: 'has what it needs, and nothing else',
  },
  always: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'nobody' },
    placement: 'list',
    given: 'always',
    about: 'the same 128 tools from the first turn to the last',
  },
} as const satisfies Record<string, MemToolArm>

export type WayName = keyof typeof ways
export const wayNames = Object.keys(ways) as WayName[]

export interface MemToolRun extends ToolSessionOptions {
  /** `taught`: a script says what the model is to say, on the real engine; `model`: the model itself. */
  readonly agent: 'taught' | 'model'
  readonly way: WayName
  /** Default: the way's. */
  readonly placement?: Placement
  readonly contract: ContractChoice
  readonly limits?: ToolLimits
  readonly history?: HistoryLimit
  readonly sampling?: Sampling
}

export interface MemToolSetting {
  readonly engine: Engine
  readonly world: World
  readonly catalogue: Catalogue
  /** Where an earlier run of the same session stood, and its turns. */
  readonly from?: { readonly turns: readonly TurnRecord[]; readonly checkpoint: Checkpoint | null }
  readonly onTurn?: (turn: TurnRecord, checkpoint: Checkpoint) => Promise<void> | void
  /** What stands between whoever speaks and the session; default: nothing. */
  readonly around?: (engine: Engine) => Engine
  readonly signal?: AbortSignal
}

/** What a session came to, or several together. Tokens are summed over all steps, asides included. */
export interface MemToolResult {
  readonly way: WayName
  readonly placement: Placement
  readonly contract: ContractChoice
  readonly sessions: readonly (readonly TurnRecord[])[]
  readonly measures: MemToolMeasures
  readonly intervals: MemToolIntervals
  readonly tokens: MemToolTokens
}

/** @throws KvfoldError what the engine throws; engine/cancelled */
export async function memToolSession(run: MemToolRun, setting: MemToolSetting): Promise<MemToolResult> {
  const { world, catalogue, from, onTurn, around = (inner: Engine) => inner, signal } = setting
  const name = `memtool-${randomUUID().slice(0, 8)}`
  const environment = new Companies(world, run, from?.checkpoint?.environment as { turn: number } | undefined)
  const alone = new IsolatedEngine(setting.engine, name)
  // The script has to be there before the session that it speaks for.
  let actor: MemToolActor | null = null
  const { agent, way, contract, limits, history, sampling, placement = ways[way].placement } = run
  const engine =
    agent === 'model'
      ? alone
      : new SpokenEngine(
          alone,
          teacherOf(
            environment,
            (tool) => actor?.session.memory.has(tool) ?? false,
            () => actor?.session.memory.names ?? [],
          ),
        )
  const novelty = new NewTokenCounter(around(engine))
  const recorder = new Recorder(novelty)
  const state = from?.checkpoint?.actor as MemToolActorState | undefined
  actor = new MemToolActor({
    ...{ engine: recorder, id: conversationId(`${name}/session`), catalogue, environment, way, placement, speaker: agent },
    needed: requestsOf(world, run).flatMap(({ figures }) => figures.map((figure) => world.callOf(figure).name)),
    generation: { contract, maxTokens: MOST, ...(sampling === undefined ? {} : { sampling }) },
    ...(limits === undefined ? {} : { limits }),
    ...(history === undefined ? {} : { history }),
    ...(state === undefined ? {} : { state }),
  })
  if (state !== undefined) {
    const { conversation } = actor.session
    // The last answer was said, and no prompt has shown it yet.
    const messages = conversation.messages.slice(0, agent === 'taught' ? -1 : undefined)
    novelty.knows({ messages, edits: conversation.edits(), tools: [SEARCH_TOOLS, REMOVE_TOOLS, ...state.cohorts.flat()] })
  }
  try {
    const turns = await runEpisode({
      environment,
      actor: counting(actor, novelty),
      recorder,
      before: from?.turns ?? [],
      ...(onTurn === undefined ? {} : { onTurn }),
      ...(signal === undefined ? {} : { signal }),
    })
    return resultOf({ way, placement, contract }, [turns])
  } finally {
    actor.session.forget()
  }
}

/** Tokens of a step of a model's own. */
const MOST = 1024

/** What was new in every turn is among its details. */
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

/** Sessions of the same way, placement and contract as one. */
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

// The agent of the MemTool task: a session put to the requests, what its tools came to in every turn, and the script that may speak for the model.

const PURPOSE =
  'You answer questions about companies. There is a tool for each company and each of its figures, such as the revenue of one company.'

export interface MemToolActorOptions extends Pick<
  MemToolOptions,
  'engine' | 'id' | 'catalogue' | 'generation' | 'history' | 'limits'
> {
  readonly environment: Companies
  /** Where the context is too small for a script it is thrown; what a model made too long is its own mistake. */
  readonly speaker: MemToolRun['agent']
  readonly way: WayName
  /** Default: the way's. */
  readonly placement?: Placement
  /** All that the session will need, for a way that is given its tools at the start. */
  readonly needed: readonly string[]
  readonly state?: MemToolActorState
}

export interface MemToolActorState {
  readonly session: MemToolState
  readonly cohorts: readonly (readonly string[])[]
  /** The last turn, from 0, in which a tool was called. */
  readonly called: Readonly<Record<string, number>>
}

export class MemToolActor implements Actor {
  readonly session: MemToolSession
  /** Names added in each turn. */
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

  /** Of the tools added one, two and three turns ago, how many there were and how many are gone. */
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

/** The session's own tools first, then those that stand first in the catalogue. */
function alwaysOf({ needed, environment }: MemToolActorOptions, limit: number): readonly string[] {
  return [...new Set([...needed, ...environment.world.tools.map(({ name }) => name)])].slice(0, limit)
}

/**
 * Acts as the paper has a model act that makes no mistake: removes what the request does not need, searches a keyword a tool that is missing, calls what is
 * loaded, and answers with what the calls returned. It knows the requests, never what a search will find.
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

/** What a question aside asks for; null where it is none. */
function propertyOf({ schema }: EngineRequest): string | null {
  if (typeof schema !== 'object' || schema === null || !('properties' in schema)) return null
  return Object.keys(schema.properties as object)[0] ?? null
}
