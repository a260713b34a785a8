/** The fields that a collected trajectory has in every format, and the reward (after Sculptor, appendix F). */
import Type, { type Static } from 'typebox'
import type { TakenCall } from '../agents/snapshots.js'
import type { TurnOutcome } from '../../runtime/agents/tool-loop.js'
import type { Finish } from '../../runtime/engine/engine.js'
import { type Score, taskNames } from '../task.js'

const RewardParts = Type.Object({
  /** Whether the answer is completely right. In a session, whether the answers of all turns are. */
  right: Type.Boolean(),
  /** Number of failed calls, without refused ones. */
  failed: Type.Number(),
  /** Number of failed calls whose arguments were not a JSON object. */
  malformed: Type.Number(),
  /** Number of failed calls after which a later step called the same tool with success. */
  recovered: Type.Number(),
  /**
   * Number of calls beyond the turn's limit. The turn refuses such calls, except further failed calls of one step, because it counts only
   * the first of these.
   */
  refused: Type.Number(),
  /** Whether the answer or an earlier step reached its token limit. */
  cutOff: Type.Boolean(),
  /**
   * Present if the trajectory began with a stumble, a failed call in the model's name: whether the model later called that tool with
   * success.
   */
  stumbled: Type.Optional(Type.Boolean()),
})
export type RewardParts = Static<typeof RewardParts>

export type Reward = 1 | 0 | -1

/** What the reward depends on: the calls of each step and their outcomes, and how the turn ended. */
export interface RewardedTurn extends Pick<TurnOutcome, 'refusedCalls' | 'end'> {
  readonly steps: readonly (CallsOfStep & { readonly finish: Finish })[]
}

interface CallsOfStep {
  readonly calls: readonly TakenCall[]
}

/**
 * Computes the reward's parts for one turn. Pure.
 * @param before the stumble that the collector made in the model's name before the first step, if any
 * @param maxCalls the most calls of the turn, failed ones included; default: no limit
 */
export function rewardParts(
  { outcome }: Pick<Score, 'outcome'>,
  { steps, refusedCalls, end }: RewardedTurn,
  { before, maxCalls = Infinity }: { readonly before?: CallsOfStep; readonly maxCalls?: number } = {},
): RewardParts {
  const calls = steps.flatMap((step, at) => step.calls.map((report) => ({ ...report, at })))
  // Refused calls are reported as failed too. They count in `refused` and not in `failed`.
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

/** Returns whether a step after the one with index `at` calls the tool with success. */
const isRecovered = (tool: string, at: number, steps: readonly CallsOfStep[]): boolean =>
  steps.slice(at + 1).some(({ calls }) => calls.some(({ call, failed }) => !failed && call.name === tool))

/**
 * Combines the parts of a session's turns. Counts are summed; `right` needs all turns to be right, `cutOff` only one to be cut off. Pure.
 */
export function partsOfTurns(turns: readonly RewardParts[]): RewardParts {
  const sum = (key: 'failed' | 'malformed' | 'recovered' | 'refused') => turns.reduce((all, parts) => all + parts[key], 0)
  return {
    right: turns.length > 0 && turns.every(({ right }) => right),
    ...{ failed: sum('failed'), malformed: sum('malformed'), recovered: sum('recovered'), refused: sum('refused') },
    cutOff: turns.some(({ cutOff }) => cutOff),
  }
}

/**
 * Returns the outcome of each call of a turn, step by step. A failed call is `malformed` if its arguments were not a JSON object, else
 * `failed`. It has `recovered` if a later step called the same tool with success. Pure.
 */
export const outcomesOf = (steps: readonly CallsOfStep[]): readonly (readonly CallOutcome[])[] =>
  steps.map(({ calls }, at) =>
    calls.map(({ call, failed }): CallOutcome => {
      const outcome = !failed ? 'done' : call.malformed === undefined ? 'failed' : 'malformed'
      return { name: call.name, outcome, ...(failed && isRecovered(call.name, at, steps) ? { recovered: true } : {}) }
    }),
  )

/**
 * Returns the reward. -1: a failed call that no later call made good, too many calls, or an answer that was cut off. Otherwise 1 for a
 * right answer, and 0 for any other. Sculptor's formula 4 (appendix F) gives -1 for a format error, too many calls, or too long a
 * trajectory. That any failed call needs a later success is our own rule. Pure.
 */
export function rewardOf({ right, failed, recovered, refused, cutOff }: RewardParts): Reward {
  if (failed > recovered || refused > 0 || cutOff) return -1
  return right ? 1 : 0
}

const CallOutcome = Type.Object({
  name: Type.String(),
  /** `failed`: the call returned an error or was refused. `malformed`: its arguments were not a JSON object. */
  outcome: Type.Enum(['done', 'failed', 'malformed']),
  /** Present if a later step of the turn called the same tool with success. */
  recovered: Type.Optional(Type.Literal(true)),
})
export type CallOutcome = Static<typeof CallOutcome>

/** The agents for which a teacher can speak: `sculptor` with the context tools, `plain` without tools. */
export const taughtAgents = ['sculptor', 'plain'] as const
export type TaughtAgent = (typeof taughtAgents)[number]

// Below: a row of a collected file, which is one snapshot of a trajectory. These fields are the same in every format; formats.ts adds more.

/** The version of the rows. Increase it with every change that older readers would misread. */
export const TRAJECTORY_VERSION = 2

export const collectedTasks = [...taskNames, 'chat', 'memtool', 'service'] as const
export type CollectedTask = (typeof collectedTasks)[number]

export const TrajectoryFacts = Type.Object({
  version: Type.Literal(TRAJECTORY_VERSION),
  task: Type.Enum([...collectedTasks]),
  /** The sample's id in its task. Together with `rollout` it identifies the trajectory. */
  id: Type.String(),
  cell: Type.Record(Type.String(), Type.Union([Type.Number(), Type.String()])),
  /** The index, from 0, of the try at the sample. */
  rollout: Type.Number(),
  /** An id of the prompt, the same for all tries at it, in every file. */
  group: Type.String(),
  /**
   * The agent: `sculptor` has the context tools, `plain` has none. For the task memtool, the way of managing tools; for service, the
   * framework.
   */
  agent: Type.String({ default: 'sculptor' }),
  /** The teacher that acted: our script, or a model. */
  teacher: Type.Enum(['script', 'model']),
  /**
   * How the model sampled; absent if a script acted. A filter that was not set has llama.cpp's neutral value (top-k 0, top-p 1, min-p 0).
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
   * The model whose tokens the row has. For a GGUF file: its name and hash. For an endpoint: its name for the model, and a hash of that
   * name and the endpoint's release. `settings`: everything else that changes the trajectory and is not the default, such as a contract, a
   * token limit, or the endpoint whose text was tokenized by another model.
   */
  model: Type.Object({
    name: Type.String(),
    fingerprint: Type.String(),
    settings: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  }),
  /** `snapshot`: index of this snapshot in its trajectory, from 0. `snapshots`: number of snapshots in the trajectory. */
  snapshot: Type.Number(),
  snapshots: Type.Number(),
  /** The score of the whole trajectory, the same in all its snapshots. */
  points: Type.Number(),
  /** The reward of the whole trajectory, by `rewardOf` (after Sculptor, appendix F). */
  reward: Type.Union([Type.Literal(1), Type.Literal(0), Type.Literal(-1)]),
  parts: RewardParts,
  /** Number of calls per tool, failed ones included. */
  calls: Type.Record(Type.String(), Type.Number()),
  /** Tokens in the context at the end of the last step. */
  context: Type.Number(),
  /** For each completion with loss, the index of its step in the trajectory, from 0. */
  steps: Type.Array(Type.Number()),
  /** For each completion in `steps`, the outcomes of its calls. */
  outcomes: Type.Optional(Type.Array(Type.Array(CallOutcome))),
})
export type TrajectoryFacts = Static<typeof TrajectoryFacts>
