/** The fields that a collected trajectory has in every format, and the reward (after Sculptor, appendix F). */
import Type, { type Static } from 'typebox'
import type { TakenCall } from '../agents/snapshots.js'
import type { TurnOutcome } from '../../runtime/agents/tool-loop.js'
import type { Finish } from '../../runtime/engine/engine.js'
import { type Score, taskNames } from '../task.js'

const RewardParts = Type.Object({
  /** Whether the answer is completely right. In a session, the answers of all turns must be. */
  right: Type.Boolean(),
  /** Number of failed calls, for any reason, without those that were refused. */
  failed: Type.Number(),
  /** Number of failed calls whose arguments were not a JSON object. */
  malformed: Type.Number(),
  /** Number of failed calls after which, in a later step, a call of the same tool succeeded. */
  recovered: Type.Number(),
  /**
   * Number of calls beyond the limit of the turn. They were refused, or they are failed calls of one step, of which the turn itself counts
   * only the first.
   */
  refused: Type.Number(),
  /** Whether the answer, or a step before it, reached its limit of tokens. */
  cutOff: Type.Boolean(),
  /**
   * Present when the trajectory began with a failed call made in the model's place: whether the model later called that tool with success.
   */
  stumbled: Type.Optional(Type.Boolean()),
})
export type RewardParts = Static<typeof RewardParts>

export type Reward = 1 | 0 | -1

/** The part of a turn that the reward depends on: the calls of each step and their outcomes. */
export interface RewardedTurn extends Pick<TurnOutcome, 'refusedCalls' | 'end'> {
  readonly steps: readonly (CallsOfStep & { readonly finish: Finish })[]
}

interface CallsOfStep {
  readonly calls: readonly TakenCall[]
}

/**
 * Computes the parts of the reward of one turn. Pure.
 * @param before a first step that the collector made in the model's place, if any
 * @param maxCalls the most calls of the turn, failed ones included; default: as many as the turn carried out
 */
export function rewardParts(
  { outcome }: Pick<Score, 'outcome'>,
  { steps, refusedCalls, end }: RewardedTurn,
  { before, maxCalls = Infinity }: { readonly before?: CallsOfStep; readonly maxCalls?: number } = {},
): RewardParts {
  const calls = steps.flatMap((step, at) => step.calls.map((report) => ({ ...report, at })))
  // Refused calls are also reported as failed; `refused` counts them, so `failed` leaves them out.
  const failed = calls.filter((report) => report.failed)
  const stumbles = before?.calls.filter((report) => report.failed) ?? []
  return {
    right: outcome === 'right',
    failed: Math.max(0, failed.length - refusedCalls),
    malformed: failed.filter(({ call }) => call.malformed !== undefined).length,
    recovered: failed.filter(({ call, at }) => isRecovered(call.name, at, steps)).length,
    refused: Math.max(refusedCalls, calls.length - maxCalls),
    cutOff: end === 'length' || steps.some(({ finish }) => finish === 'length'),
    ...(stumbles.length === 0 ? {} : { stumbled: stumbles.every(({ call }) => isRecovered(call.name, -1, steps)) }),
  }
}

/** Returns whether a call of the tool succeeds in a step after step `at`. */
const isRecovered = (tool: string, at: number, steps: readonly CallsOfStep[]): boolean =>
  steps.slice(at + 1).some(({ calls }) => calls.some(({ call, failed }) => !failed && call.name === tool))

/** Combines the parts of a session's turns and sums their counts. `right` when all turns are right, `cutOff` when one is cut off. Pure. */
export function partsOfTurns(turns: readonly RewardParts[]): RewardParts {
  const sum = (key: 'failed' | 'malformed' | 'recovered' | 'refused') => turns.reduce((all, parts) => all + parts[key], 0)
  return {
    right: turns.length > 0 && turns.every(({ right }) => right),
    ...{ failed: sum('failed'), malformed: sum('malformed'), recovered: sum('recovered'), refused: sum('refused') },
    cutOff: turns.some(({ cutOff }) => cutOff),
  }
}

/**
 * Returns the outcome of each call of a turn, step by step. A call whose arguments were not a JSON object
 * is `malformed`; any other failed call is `failed`. `recovered` marks a failed call whose tool a later step called with success. Pure.
 */
export const outcomesOf = (steps: readonly CallsOfStep[]): readonly (readonly CallOutcome[])[] =>
  steps.map(({ calls }, at) =>
    calls.map(({ call, failed }): CallOutcome => {
      const outcome = !failed ? 'done' : call.malformed === undefined ? 'failed' : 'malformed'
      return { name: call.name, outcome, ...(failed && isRecovered(call.name, at, steps) ? { recovered: true } : {}) }
    }),
  )

/**
 * Returns the reward: -1 for a failed call that no later call made good, for too many calls, or for a
 * cut-off answer. Otherwise 1 for a right answer and 0 for any other. Formula 4 of Sculptor's appendix F has -1 for
 * a format error, too many calls and too long a trajectory. That any failed call needs a later success is our own rule. Pure.
 */
export function rewardOf({ right, failed, recovered, refused, cutOff }: RewardParts): Reward {
  if (failed > recovered || refused > 0 || cutOff) return -1
  return right ? 1 : 0
}

const CallOutcome = Type.Object({
  name: Type.String(),
  /** `failed`: the call returned an error or was refused. `malformed`: its arguments were not a JSON object. */
  outcome: Type.Enum(['done', 'failed', 'malformed']),
  /** Present when a call of the same tool succeeded in a later step of the turn. */
  recovered: Type.Optional(Type.Literal(true)),
})
export type CallOutcome = Static<typeof CallOutcome>

/** The agents that a teacher can speak for: `sculptor` with the context tools, `plain` without tools. */
export const taughtAgents = ['sculptor', 'plain'] as const
export type TaughtAgent = (typeof taughtAgents)[number]

// A row of a collected file is one snapshot of a trajectory. These fields are the same in every format; formats.ts has the others.

/** The version of a row. Increase it with every change that an older reader would misread. */
export const TRAJECTORY_VERSION = 2

export const collectedTasks = [...taskNames, 'chat', 'memtool', 'service'] as const
export type CollectedTask = (typeof collectedTasks)[number]

export const TrajectoryFacts = Type.Object({
  version: Type.Literal(TRAJECTORY_VERSION),
  task: Type.Enum([...collectedTasks]),
  /** The sample's id in the task; together with `rollout` it identifies the trajectory. */
  id: Type.String(),
  cell: Type.Record(Type.String(), Type.Union([Type.Number(), Type.String()])),
  /** The teacher may try a sample several times; this is the number of the try, from 0. */
  rollout: Type.Number(),
  /** An id of the prompt: the same for all tries at it, in every file. */
  group: Type.String(),
  /** The agent: `sculptor` has the context tools, `plain` has none. In memtool, its way to manage tools; in service, the framework. */
  agent: Type.String({ default: 'sculptor' }),
  /** The teacher that acted: our script, or a model. */
  teacher: Type.Enum(['script', 'model']),
  /**
   * How the model sampled; absent when a script acted. Filters that were not set have
   * llama.cpp's neutral values (top-k 0, top-p 1, min-p 0), so they change nothing.
   */
  sampling: Type.Optional(
    Type.Object({
      temperature: Type.Number(),
      topK: Type.Number(),
      topP: Type.Number(),
      minP: Type.Number(),
      seed: Type.Number(),
    }),
  ),
  /**
   * The model that the row's tokens belong to. For a GGUF file: its name and hash. For an endpoint: the
   * endpoint's name of the model, and a hash of that name and the endpoint's release. `settings`: what else changes the trajectory and is
   * not the default, such as a contract, a limit of tokens, or the endpoint whose text stands in the tokens of another model.
   */
  model: Type.Object({
    name: Type.String(),
    fingerprint: Type.String(),
    settings: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  }),
  /** The index of this snapshot in its trajectory, from 0. `snapshots`: the number of snapshots in the trajectory. */
  snapshot: Type.Number(),
  snapshots: Type.Number(),
  /** The score of the whole trajectory, the same in all its snapshots. */
  points: Type.Number(),
  /** The reward of the whole trajectory, as `rewardOf` computes it (after Sculptor, appendix F). */
  reward: Type.Union([Type.Literal(1), Type.Literal(0), Type.Literal(-1)]),
  parts: RewardParts,
  /** Number of calls by tool, failed ones included. */
  calls: Type.Record(Type.String(), Type.Number()),
  /** Tokens in the context at the end of the last step. */
  context: Type.Number(),
  /** For each completion that training has a loss on, the index of its step in the trajectory, from 0. */
  steps: Type.Array(Type.Number()),
  /** For each completion in `steps`, the outcomes of its calls. */
  outcomes: Type.Optional(Type.Array(Type.Array(CallOutcome))),
})
export type TrajectoryFacts = Static<typeof TrajectoryFacts>
