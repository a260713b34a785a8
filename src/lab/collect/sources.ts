/**
 * The sources of trajectories: samples of a task and chats (one turn each), MemTool sessions and dialogues at the order desk (many turns).
 */
import { createHash } from 'node:crypto'
import Type from 'typebox'
import { plain, sculptor, type SculptorOptions, type SystemPrompt } from '../../runtime/agents/sculptor.js'
import { MAX_CALLS, Session } from '../../runtime/agents/session.js'
import { type TakenCall, trajectoryOf, type TrajectoryStep } from '../agents/snapshots.js'
import type { AgentEvent } from '../../runtime/agents/tool-loop.js'
import type { ChatMessage } from '../../runtime/chat/message.js'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { isContextFull, KvfoldError } from '../../runtime/core/errors.js'
import { definedFields } from '../../runtime/core/json.js'
import { conversationId } from '../../runtime/core/ids.js'
import { type Engine, EngineAround, type EngineRequest, type Generation, type Sampling } from '../../runtime/engine/engine.js'
import type { playEpisode, PlayOptions } from '../episode/episode.js'
import { Recorder, type RecorderOptions } from '../recorder.js'
import { type ScriptedReply, TaughtEngine, type TaughtModel } from '../taught-engine.js'
import { Catalogue } from '../../runtime/tools/catalogue.js'
import type { TurnRecord } from '../log.js'
import { World } from '../memtool/companies.js'
import { memToolSession, type MemToolRun } from '../memtool/session.js'
import type { Scenario } from '../service/dialogue.js'
import type { FrameworkName } from '../service/frameworks.js'
import { playScenario } from '../service/run.js'
import { openRows, type SourceOptions } from '../data/rows.js'
import type { Score, Task } from '../task.js'
import { readFields, RowMessage } from '../tasks/samples.js'
import { teacherOf } from './lessons.js'
import {
  type CallOutcome,
  type CollectedTask,
  outcomesOf,
  partsOfTurns,
  type RewardParts,
  rewardParts,
  type TaughtAgent,
} from './trajectory.js'

/**
 * The teacher that acts in a trajectory: our script, written in the chat format of `model`, or the model of `engine`. If that model is
 * loaded in this process, it is also in `model`.
 */
export type Acting =
  | { readonly teacher: 'script'; readonly model: TaughtModel }
  | { readonly teacher: 'model'; readonly engine: Engine; readonly sampling: Sampling; readonly model?: TaughtModel }

/** The fields that all rows of one prompt share. */
export interface PromptFacts {
  readonly id: string
  readonly cell: Record<string, number | string>
  /** A hash that all tries at the same prompt share. It also covers the agent, and whether the trajectory begins with a stumble. */
  readonly group: string
}

/** The result of one try at a prompt. */
export interface Played {
  readonly steps: readonly TrajectoryStep[]
  /** For each step, the outcomes of its calls. */
  readonly outcomes: readonly (readonly CallOutcome[])[]
  readonly score: Pick<Score, 'points'>
  readonly parts: RewardParts
  /** Tokens in the context at the end of the last step. */
  readonly context: number
  readonly truth: unknown
}

export interface TrajectorySource {
  readonly task: CollectedTask
  readonly agent: string
  /** Number of prompts. */
  readonly size: number
  /** Returns the facts of the prompt with this index. */
  about(index: number): Promise<PromptFacts>
  /**
   * Runs one try at a prompt.
   * @param name the try's name, which no other conversation of the engine has
   * @throws KvfoldError any error of teacher and engine; engine/cancelled
   */
  play(index: number, acting: Acting, name: string, signal?: AbortSignal): Promise<Played>
}

const hashed = (of: unknown): string => createHash('sha256').update(JSON.stringify(of)).digest('hex').slice(0, 16)
export const cancelled = () => new KvfoldError('engine/cancelled', 'Collecting was interrupted.')

// Below: the source whose prompts are a task's samples. Each sample is one turn.

/** A system prompt of the agent `sculptor`. `none`: no system message, as with a server whose clients send none. */
export type TaughtPrompt = SystemPrompt | 'none'

const withContextTools = (options: Omit<SculptorOptions, 'prompt'>, prompt: TaughtPrompt): Session =>
  prompt === 'none' ? new Session({ ...options, contextTools: true }) : sculptor({ ...options, prompt })

export interface TaskSourceOptions {
  readonly task: Task
  readonly agent: TaughtAgent
  /** The system prompt of the agent `sculptor`. Default: the task's. */
  readonly prompt?: TaughtPrompt
  /** The most tokens that a step may generate. Default: the task's. */
  readonly maxTokens?: number
  /** The most tool calls in a turn. Default: 20. */
  readonly maxCalls?: number
  /**
   * Whether every trajectory begins with a stumble: a failed call in the model's name, to the task's first tool without arguments. Default:
   * false.
   */
  readonly stumble?: boolean
}

export function taskSource(options: TaskSourceOptions): TrajectorySource {
  const { task, agent, prompt = task.prompt, stumble = false, maxTokens = task.maxTokens, maxCalls = MAX_CALLS } = options
  return {
    task: task.spec.task,
    agent,
    size: task.size,
    about: async (index) => {
      const { id, cell, messages } = await task.sample(index)
      return { id, cell: { ...cell }, group: hashed([prompt, agent, stumble, messages]) }
    },
    play: async (index, acting, name, signal) => {
      const sample = await task.sample(index)
      const tape = new Recorder(
        acting.teacher === 'model' ? acting.engine : new TaughtEngine(acting.model, teacherOf(task.spec.task, agent, sample)),
        { asks: asksOf(acting) },
      )
      const engine = stumble
        ? new StumblingEngine(tape, loaded(acting, NO_STUMBLE), STUMBLES[prompt === 'none' ? task.prompt : prompt])
        : tape
      const common = { engine, id: conversationId(name), generation: { maxTokens } }
      const session = agent === 'plain' ? plain(common) : withContextTools({ ...common, maxCalls }, prompt)
      try {
        for (const message of sample.messages) session.conversation.add(message)
        const taken = new TakenCalls()
        const outcome = await session.resume({ onEvent: taken.onEvent, ...definedFields({ signal }) }).catch((error: unknown) => {
          // A model that overflows the context after its first step has failed the sample. Throwing would end the whole collection here.
          if (acting.teacher === 'script' || tape.done.length === 0 || !isContextFull(error)) throw error
          return { ...taken.overflowed, contextAfter: tape.cost().tokens.after }
        })
        if (outcome.end === 'cancelled') throw cancelled()
        const own = stumble ? outcome.steps.slice(1) : outcome.steps
        const score = task.score(sample, tape.saidIn(outcome.answer))
        const before = stumble ? outcome.steps[0] : undefined
        const parts = rewardParts(score, { ...outcome, steps: own }, { maxCalls, ...definedFields({ before }) })
        const steps = trajectoryOf(
          tape.done,
          own.map(({ calls }) => calls),
        )
        return { steps, outcomes: outcomesOf(steps), score, parts, context: outcome.contextAfter, truth: sample.truth }
      } finally {
        session.forget()
      }
    },
  }
}

/** Collects a turn's calls from its events, so that they are known even if the turn ends with an error. */
class TakenCalls {
  readonly #steps: TakenCall[][] = []
  #refused = 0

  readonly onEvent = (event: AgentEvent): void => {
    if (event.type === 'step') this.#steps.push([])
    if (event.type !== 'result') return
    this.#steps.at(-1)!.push(event)
    if (event.refused) this.#refused++
  }

  /** The outcome of a turn whose prompt no longer fitted into the context: the steps so far, without an answer. */
  get overflowed() {
    const steps = this.#steps.map((calls) => ({ calls, finish: 'tool-calls' as const }))
    return { answer: '', end: 'length' as const, steps, refusedCalls: this.#refused }
  }
}

/** Returns the sampling and the log-probabilities to request from a model that acts; nothing for a script. */
const asksOf = (acting: Acting): NonNullable<RecorderOptions['asks']> =>
  acting.teacher === 'script' ? {} : { sampling: acting.sampling, logprobs: 0 }

/** Returns an engine that gives the same reply to every request and computes nothing. */
const saying = (model: TaughtModel, said: ScriptedReply): Engine => new TaughtEngine(model, () => said)

const NO_STUMBLE = '--stumble makes a call in place of a model that is loaded here; leave it out.'
/** For each system prompt, the tool that a stumble calls. Without arguments, the call fails. */
const STUMBLES = {
  general: 'search_context',
  'pi-llm': 'fragment_context',
  needles: 'search_context',
  similar: 'search_context',
} as const satisfies Record<SystemPrompt, string>

/** Returns the model that is loaded in this process. @throws KvfoldError eval/bad-data with the message `otherwise` if there is none */
function loaded({ model }: Acting, otherwise: string): TaughtModel {
  if (model === undefined) throw new KvfoldError('eval/bad-data', otherwise)
  return model
}

/** An engine that stumbles once: it answers the first request with a call without arguments, and passes later requests to the model. */
class StumblingEngine extends EngineAround {
  #stumbled = false

  constructor(
    engine: Engine,
    private readonly model: TaughtModel,
    private readonly tool: string,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    if (this.#stumbled) return this.engine.respond(request)
    this.#stumbled = true
    return saying(this.model, { calls: [{ name: this.tool }] }).respond(request)
  }
}

// Below: the source whose prompts are chats that need no context tools. A model trained on them learns to leave the tools alone.

const Chat = Type.Object({ messages: Type.Array(RowMessage, { minItems: 1 }) })

export interface ChatSourceOptions {
  /** The data file, as `openRows` takes it. The field `messages` of a row is a chat. */
  readonly data: string
  readonly agent: TaughtAgent
  /** The system prompt of the agent `sculptor`. Default: `general`. */
  readonly prompt?: TaughtPrompt
  /** The most tokens of a model's answer. A longer answer is cut there, and its row has no end of turn. */
  readonly maxTokens: number
  /** Use only this many rows from the start of the file. */
  readonly limit?: number
}

/**
 * Opens a source of chats. A trajectory is a chat with the context tools in its prompt, and an answer without a call. A script takes the
 * answer from the row's last message. A model writes the answer itself, without seeing the tools.
 * @throws KvfoldError eval/bad-data when the file cannot be read
 */
export async function openChatSource(
  { data, limit, ...options }: ChatSourceOptions,
  opening: SourceOptions,
): Promise<TrajectorySource> {
  const { agent, prompt = 'general', maxTokens } = options
  const rows = await openRows(data, opening)
  const chat = async (index: number) => readFields(Chat, await rows.row(index), rows.where(index)).messages
  const unusable = (index: number, why: string) => new KvfoldError('eval/bad-data', `${rows.where(index)}: ${why}`)
  const answerTo = async (
    index: number,
    messages: readonly ChatMessage[],
    { engine, sampling }: Extract<Acting, { readonly teacher: 'model' }>,
    signal?: AbortSignal,
  ): Promise<ScriptedReply> => {
    const conversation = conversationId(`chat-${index}`)
    const stop = signal === undefined ? {} : { signal }
    try {
      const { message, finish } = await engine.respond({ conversation, messages, sampling, maxTokens, ...stop }).reply
      if (finish === 'cancelled') throw cancelled()
      return { content: message.content, finish }
    } finally {
      engine.forget(conversation)
    }
  }
  return {
    task: 'chat',
    agent,
    size: Math.min(rows.size, limit ?? rows.size),
    about: async (index) => ({ id: `chat-${index}`, cell: {}, group: hashed([prompt, agent, await chat(index)]) }),
    play: async (index, acting, name, signal) => {
      const messages = await chat(index)
      const [first, last] = [messages[0], messages.at(-1)]
      const model = loaded(acting, 'chat shows the answer in the tokens of a model that is loaded here; leave out --engine.')
      const written = last?.role === 'assistant' ? last : null
      const asked = written === null ? messages : messages.slice(0, -1)
      const answer = acting.teacher === 'model' ? await answerTo(index, asked, acting, signal) : written
      if (answer === null)
        throw unusable(
          index,
          'The last message is not an answer of the assistant; add one, or let a model answer (--teacher model).',
        )
      const tape = new Recorder(saying(model, answer))
      const system = first?.role === 'system' ? first.content : undefined
      const common = { engine: tape, id: conversationId(name), generation: { maxTokens }, ...definedFields({ system }) }
      const session = agent === 'plain' ? plain(common) : withContextTools({ ...common, firstStep: 'auto' }, prompt)
      for (const message of asked.slice(system === undefined ? 0 : 1)) session.conversation.add(message)
      const outcome = await session.resume(signal === undefined ? {} : { signal })
      return {
        steps: trajectoryOf(tape.done, []),
        outcomes: [[]],
        score: { points: 1 },
        parts: rewardParts({ outcome: 'right' }, outcome),
        context: outcome.contextAfter,
        truth: null,
      }
    },
  }
}

// Below: the sources whose prompts are sessions of many turns. A session is one trajectory, and its points are the mean of its turns'
// points.

export interface MemToolSourceOptions {
  readonly world: World
  readonly catalogue: Catalogue
  readonly way: MemToolRun['way']
  readonly turns: number
  readonly relation: MemToolRun['relation']
  /** Number of sessions. Their seeds count up from `seed`. */
  readonly samples: number
  readonly seed: number
  /** The contract of the sessions' folds. Default: exact. */
  readonly contract?: ContractChoice
}

export function memToolSource(options: MemToolSourceOptions): TrajectorySource {
  const { world, catalogue, way, turns, relation, samples, seed, contract = 'exact' } = options
  return {
    task: 'memtool',
    agent: way,
    size: samples,
    about: (index) => {
      const cell = { turns, relation, tools: world.tools.length }
      const id = `memtool-${turns}-${relation}-${seed + index}`
      return Promise.resolve({ id, cell, group: hashed(['memtool', way, cell, world.options, seed + index]) })
    },
    play: (index, acting, _, signal) =>
      session(acting, async (taping) => {
        const run: MemToolRun = {
          ...{ way, turns, relation, seed: seed + index, contract },
          agent: acting.teacher === 'script' ? 'taught' : 'model',
        }
        const stop = signal === undefined ? {} : { signal }
        const { sessions, recorder } = await memToolSession(run, { world, catalogue, ...taping, ...stop })
        return { turns: sessions.flat(), recorder }
      }),
  }
}

/** Options of a MemTool source that makes its own world and catalogue. `tools`: the number of tools in the catalogue. */
export interface OwnMemToolOptions extends Omit<MemToolSourceOptions, 'world' | 'catalogue'> {
  readonly tools: number
}

/**
 * Makes a MemTool source with its own world and catalogue. `close` closes the catalogue.
 * @throws KvfoldError any error of the catalogue; engine/cancelled
 */
export async function openMemToolSource(
  { tools, ...played }: OwnMemToolOptions,
  signal?: AbortSignal,
): Promise<TrajectorySource & { readonly close: () => void }> {
  const world = new World({ seed: played.seed, tools, arguments: true })
  const catalogue = await Catalogue.of(world.tools, signal === undefined ? {} : { signal })
  const close = () => {
    catalogue.close()
  }
  return { ...memToolSource({ world, catalogue, ...played }), close }
}

export interface DeskSourceOptions {
  /** The dialogues. In each, the scenario's own teacher decides whether a script or the model speaks. */
  readonly scenarios: readonly Scenario[]
  readonly framework: FrameworkName
  readonly maxTokens: number
  /** The contract of the frameworks' folds. Default: exact. */
  readonly contract?: ContractChoice
}

export function deskSource({ scenarios, framework, maxTokens, contract = 'exact' }: DeskSourceOptions): TrajectorySource {
  return {
    task: 'service',
    agent: framework,
    size: scenarios.length,
    about: (index) => {
      const { turns, fields, seed, about } = scenarios[index]!
      const cell = { turns, fields }
      const group = hashed(['service', framework, cell, seed, { ...about, agent: null }])
      return Promise.resolve({ id: `service-${turns}-${fields}-${seed}`, cell, group })
    },
    play: (index, acting, name, signal = new AbortController().signal) =>
      session(acting, (taping) => {
        const window = Number.MAX_SAFE_INTEGER
        const terms = { window, contract, temperature: 0, maxTokens, fold: {}, signal } as const
        return playScenario(framework, scenarios[index]!, { name, ...terms, ...taping })
      }),
  }
}

/** A session's engine, and the sampling and log-probabilities of its requests. For a script, the engine computes nothing. */
type Taping = Pick<PlayOptions, 'engine' | 'asks'>

/** Runs a session, and returns its record as one try. */
async function session(acting: Acting, play: (taping: Taping) => ReturnType<typeof playEpisode>): Promise<Played> {
  const engine = acting.teacher === 'script' ? saying(acting.model, { content: '' }) : acting.engine
  const { turns, recorder } = await play({ engine, asks: asksOf(acting) })
  if (recorder.done.length === 0)
    throw new KvfoldError('context/full', 'No prompt of the session fits into the context; give the model a larger one.')
  let steps = 0
  const taken = turns.map(({ calls, work }) => {
    const answers = recorder.done.slice(steps, (steps += work.steps)).filter(({ request }) => request.kind === 'answer')
    const made = matched(
      answers.map(({ reply }) => reply.message.toolCalls ?? []),
      calls,
    )
    return made.map((own, at) => ({ calls: own, finish: answers[at]!.reply.finish }))
  })
  const parts = partsOfTurns(
    turns.map(({ score, refusedCalls, end }, turn) => rewardParts(score, { refusedCalls, end, steps: taken[turn]! })),
  )
  // A failed call counts as recovered only through a later call of the same turn.
  const outcomes = taken.flatMap(outcomesOf)
  let answers = 0
  return {
    steps: trajectoryOf(
      recorder.done,
      taken.flat().map(({ calls }) => calls),
    ),
    outcomes: recorder.done.map(({ request }) => (request.kind === 'answer' ? (outcomes[answers++] ?? []) : [])),
    score: { points: turns.reduce((sum, { score }) => sum + score.points, 0) / Math.max(1, turns.length) },
    parts,
    context: turns.at(-1)?.tokens.after ?? 0,
    truth: null,
  }
}

/**
 * Divides a turn's recorded calls, with their outcomes, among the turn's answers in order. `said`: the calls of each answer. An answer
 * whose calls were not carried out gets an empty list.
 */
function matched(said: readonly (readonly TakenCall['call'][])[], listed: TurnRecord['calls']): TakenCall[][] {
  let at = 0
  return said.map((calls) => {
    const own = listed.slice(at, at + calls.length)
    if (!calls.every(({ name }, index) => own[index]?.name === name)) return []
    at += calls.length
    return calls.map((call, index) => ({ call, failed: own[index]!.failed, modifies: own[index]!.modifies }))
  })
}
