/** Owns one session of the MemTool study, from its options to its turns, measures and tokens. */
import { randomUUID } from 'node:crypto'
import type { Placement } from '../../agents/memtool.js'
import type { HistoryLimit } from '../../agents/history.js'
import type { ContractChoice } from '../../core/contract.js'
import { conversationId } from '../../core/ids.js'
import type { Engine, Sampling } from '../../engine/engine.js'
import { SpokenEngine } from '../../engine/taught.js'
import type { Catalogue } from '../../tools/catalogue.js'
import { REMOVE_TOOLS, SEARCH_TOOLS } from '../../tools/management.js'
import type { ToolLimits } from '../../tools/tool-memory.js'
import { type Actor, type Checkpoint, runEpisode, type TurnRecord } from '../episode/episode.js'
import { Recorder } from '../recorder.js'
import { Alone } from '../run/trial.js'
import { MemToolActor, type MemToolActorState, teacherOf } from './actor.js'
import type { World } from './companies.js'
import { type MemToolMeasures, measuresOf } from './measures.js'
import { Novelty } from './novelty.js'
import { CompanyDesk, requestsOf, type SessionOptions } from './requests.js'
import { type WayName, ways } from './ways.js'

export interface MemToolRun extends SessionOptions {
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
  readonly signal?: AbortSignal
}

/** What a session came to. Tokens are summed over all steps, asides included. */
export interface MemToolResult {
  readonly way: WayName
  readonly placement: Placement
  readonly contract: ContractChoice
  readonly turns: readonly TurnRecord[]
  readonly measures: MemToolMeasures
  readonly tokens: MemToolTokens
}

export interface MemToolTokens {
  readonly shown: number
  readonly reused: number
  readonly computed: number
  /** See MessageCost: shown in the sum, not computed as a fresh prefill would. */
  readonly approximate: number
  /** Of text that no prompt had shown before. */
  readonly new: number
  /** Of the last prompt. */
  readonly last: number
}

/** @throws KvfoldError what the engine throws; engine/cancelled */
export async function memToolSession(run: MemToolRun, setting: MemToolSetting): Promise<MemToolResult> {
  const { world, catalogue, from, onTurn, signal } = setting
  const name = `memtool-${randomUUID().slice(0, 8)}`
  const desk = new CompanyDesk(world, run, from?.checkpoint?.environment as { turn: number } | undefined)
  const alone = new Alone(setting.engine, name)
  // The script has to be there before the session that it speaks for.
  let actor: MemToolActor | null = null
  const { agent, way, contract, limits, history, sampling, placement = ways[way].placement } = run
  const engine =
    agent === 'model'
      ? alone
      : new SpokenEngine(
          alone,
          teacherOf(
            desk,
            (tool) => actor?.session.memory.has(tool) ?? false,
            () => actor?.session.memory.loaded.map(({ definition }) => definition.name) ?? [],
          ),
        )
  const novelty = new Novelty(engine)
  const recorder = new Recorder(novelty)
  const state = from?.checkpoint?.actor as MemToolActorState | undefined
  actor = new MemToolActor({
    ...{ engine: recorder, id: conversationId(`${name}/session`), catalogue, desk, way, placement },
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
      environment: desk,
      actor: counting(actor, novelty),
      recorder,
      before: from?.turns ?? [],
      ...(onTurn === undefined ? {} : { onTurn }),
      ...(signal === undefined ? {} : { signal }),
    })
    return { way, placement, contract, turns, measures: measuresOf(turns), tokens: tokensOf(turns) }
  } finally {
    actor.session.forget()
  }
}

/** Tokens of a step of a model's own. */
const MOST = 1024

/** What was new in every turn is among its details. */
function counting(actor: MemToolActor, novelty: Novelty): Actor {
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

function tokensOf(turns: readonly TurnRecord[]): MemToolTokens {
  const sum = (key: 'shown' | 'reused' | 'submitted' | 'approximate') => turns.reduce((total, { work }) => total + work[key], 0)
  return {
    shown: sum('shown'),
    reused: sum('reused'),
    computed: sum('submitted'),
    approximate: sum('approximate'),
    new: turns.reduce((total, { details }) => total + (details['newTokens'] ?? 0), 0),
    last: turns.at(-1)?.tokens.after ?? 0,
  }
}
