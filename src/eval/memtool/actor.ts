/** Owns the agent of the MemTool task: a session put to the requests, what its tools came to in every turn, and the script that may speak for the model. */
import { MemToolSession, type MemToolOptions, type MemToolState, type Placement } from '../../agents/memtool.js'
import type { EngineRequest } from '../../engine/engine.js'
import type { ScriptedReply, Teacher } from '../../engine/taught.js'
import { REMOVE_TOOLS, SEARCH_TOOLS } from '../../tools/management.js'
import type { Answered, CalledTool } from '../agent.js'
import type { Actor, Ask } from '../episode/episode.js'
import { answerOf, type CompanyDesk, keywordOf, type Request } from './requests.js'
import { type WayName, ways } from './ways.js'

const PURPOSE =
  'You answer questions about companies. There is a tool for each company and each of its figures, such as the revenue of one company.'

export interface MemToolActorOptions extends Pick<
  MemToolOptions,
  'engine' | 'id' | 'catalogue' | 'generation' | 'history' | 'limits'
> {
  readonly desk: CompanyDesk
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
    const { way, desk, placement, limits, state, engine, id, catalogue, generation, history } = options
    const { mode, removal, given, ...standard } = ways[way]
    this.#cohorts = [...(state?.cohorts ?? [])]
    this.#called = { ...state?.called }
    this.session = new MemToolSession({
      ...{ engine, id, catalogue, mode, removal },
      placement: placement ?? standard.placement,
      limits: { ...limits, ...standard.limits },
      purpose: PURPOSE,
      execute: (call) => desk.execute(call),
      ...(generation === undefined ? {} : { generation }),
      ...(history === undefined ? {} : { history }),
      ...(state === undefined ? {} : { state: state.session }),
    })
    if (given === 'always' && state === undefined) this.session.load(alwaysOf(options, this.session.memory.limits.tools))
  }

  get state(): MemToolActorState {
    return { session: this.session.state, cohorts: this.#cohorts, called: this.#called }
  }

  async act(ask: Ask, signal?: AbortSignal): Promise<Answered> {
    const { memory } = this.session
    const turn = this.#cohorts.length
    const before = { names: this.#names, counts: memory.counts }
    if (ways[this.options.way].given === 'needed') this.#give()
    const calls: CalledTool[] = []
    const outcome = await this.session.ask(ask.messages.at(-1)!.content, {
      ...(signal === undefined ? {} : { signal }),
      onEvent: (event) => {
        if (event.type !== 'result') return
        const { step, call, failed, modifies } = event
        calls.push({ step, name: call.name, failed, modifies })
        if (!failed && !modifies) this.#called[call.name] = turn
      },
    })
    const names = this.#names
    const counts = memory.counts
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
    return this.session.memory.loaded.map(({ definition }) => definition.name)
  }

  get #needed(): readonly string[] {
    const { world, request } = this.options.desk
    return toolsFor(world, request)
  }
}

const toolsFor = (world: CompanyDesk['world'], { figures }: Request): readonly string[] => [
  ...new Set(figures.map((figure) => world.callOf(figure).name)),
]

/** The session's own tools first, then those that stand first in the catalogue. */
function alwaysOf({ needed, desk }: MemToolActorOptions, limit: number): readonly string[] {
  return [...new Set([...needed, ...desk.world.tools.map(({ name }) => name)])].slice(0, limit)
}

/**
 * Acts as the paper has a model act that makes no mistake: removes what the request does not need, searches a keyword a tool that is missing, calls what is
 * loaded, and answers with what the calls returned. It knows the requests, never what a search will find.
 */
export function teacherOf(desk: CompanyDesk, loaded: (name: string) => boolean, names: () => readonly string[]): Teacher {
  return (request) => {
    const needed = toolsFor(desk.world, desk.request)
    const useless = names().filter((name) => !needed.includes(name))
    const missing = desk.request.figures.filter((figure) => !loaded(desk.world.callOf(figure).name))
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
    const callable = desk.request.figures.filter((figure) => loaded(desk.world.callOf(figure).name))
    if (!called && callable.length > 0) return { calls: callable.map((figure) => desk.world.callOf(figure)) }
    return { content: callable.length === 0 ? 'I have no tool for that.' : answerOf(desk.world, callable) }
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
