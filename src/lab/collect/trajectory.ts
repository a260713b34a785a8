/** Owns what is said of a collected trajectory whatever its form, and the reward (Sculptor, appendix F). */
import Type, { type Static } from 'typebox'
import type { TakenCall } from '../agents/snapshots.js'
import type { TurnOutcome } from '../../runtime/agents/tool-loop.js'
import { type Score, taskNames } from '../task.js'

const RewardParts = Type.Object({
  /** Everything that was asked for is right. */
  right: Type.Boolean(),
  /** Calls that failed, whatever was wrong with them. */
  failed: Type.Number(),
  /** Those of them whose arguments were no JSON object. */
  malformed: Type.Number(),
  /** Those of them after which, in a later step, a call of the same tool went well. */
  recovered: Type.Number(),
  /** Calls beyond those that a turn may make. */
  refused: Type.Number(),
  /** The answer, or a step before it, reached its limit of tokens. */
  cutOff: Type.Boolean(),
  /** Of a trajectory that began with a failed call that is not the model's: whether the model then made that call well. */
  stumbled: Type.Optional(Type.Boolean()),
})
export type RewardParts = Static<typeof RewardParts>

export type Reward = 1 | 0 | -1

/** A turn as the reward sees it: the calls of each step and what became of them. */
export interface RewardedTurn extends Pick<TurnOutcome, 'refusedCalls' | 'end'> {
  readonly steps: readonly { readonly calls: readonly TakenCall[] }[]
}

/** `before`: a step in front of the turn's own that the model did not take. Pure. */
export function rewardParts(
  { outcome }: Pick<Score, 'outcome'>,
  { steps, refusedCalls, end }: RewardedTurn,
  before?: RewardedTurn['steps'][number],
): RewardParts {
  const calls = steps.flatMap((step, at) => step.calls.map((report) => ({ ...report, at })))
  // Calls over the limit fail, too, and are counted as such alone.
  const failed = calls.filter((report) => report.failed)
  const stumbles = before?.calls.filter((report) => report.failed) ?? []
  return {
    right: outcome === 'right',
    failed: Math.max(0, failed.length - refusedCalls),
    malformed: failed.filter(({ call }) => call.malformed !== undefined).length,
    recovered: failed.filter(({ call, at }) => isRecovered(call.name, at, steps)).length,
    refused: refusedCalls,
    cutOff: end === 'length',
    ...(stumbles.length === 0 ? {} : { stumbled: stumbles.every(({ call }) => isRecovered(call.name, -1, steps)) }),
  }
}

/** Whether a call of the tool goes well in a step after step `at`. */
const isRecovered = (tool: string, at: number, steps: RewardedTurn['steps']): boolean =>
  steps.slice(at + 1).some(({ calls }) => calls.some(({ call, failed }) => !failed && call.name === tool))

/** Of a session of several turns: sums, and `right` and `cutOff` of all. Pure. */
export function partsOfTurns(turns: readonly RewardParts[]): RewardParts {
  const sum = (key: 'failed' | 'malformed' | 'recovered' | 'refused') => turns.reduce((all, parts) => all + parts[key], 0)
  return {
    right: turns.length > 0 && turns.every(({ right }) => right),
    ...{ failed: sum('failed'), malformed: sum('malformed'), recovered: sum('recovered'), refused: sum('refused') },
    cutOff: turns.some(({ cutOff }) => cutOff),
  }
}

/**
 * What became of each call of a turn, step by step: a call that no tool could carry out (`failed`) is told apart from one whose arguments were no JSON
 * object (`malformed`), and either from what the model made up for later. Pure.
 */
export const outcomesOf = (steps: RewardedTurn['steps']): readonly (readonly CallOutcome[])[] =>
  steps.map(({ calls }, at) =>
    calls.map(({ call, failed }): CallOutcome => {
      const outcome = !failed ? 'done' : call.malformed === undefined ? 'failed' : 'malformed'
      return { name: call.name, outcome, ...(failed && isRecovered(call.name, at, steps) ? { recovered: true } : {}) }
    }),
  )

/** 1 right; -1 a failed call that was not made up for, too many calls, or cut off, which counts as too long; 0 otherwise. Pure. */
export function rewardOf({ right, failed, recovered, refused, cutOff }: RewardParts): Reward {
  if (failed > recovered || refused > 0 || cutOff) return -1
  return right ? 1 : 0
}

const CallOutcome = Type.Object({
  name: Type.String(),
  /** `failed`: carried out it was an error, or was refused. `malformed`: its arguments were no JSON object. */
  outcome: Type.Enum(['done', 'failed', 'malformed']),
  /** In a later step of the turn a call of the same tool went well. */
  recovered: Type.Optional(Type.Literal(true)),
})
export type CallOutcome = Static<typeof CallOutcome>

/** Owns whom a teacher speaks for: an agent with the context tools, or one without any tool. */
export const taughtAgents = ['sculptor', 'plain'] as const
export type TaughtAgent = (typeof taughtAgents)[number]

// The form of collected trajectories: one snapshot a row. What every form has is here; formats.ts has the rest.

/** Grows with every change that an older reader would misread. */
export const TRAJECTORY_VERSION = 2

export const collectedTasks = [...taskNames, 'memtool', 'service'] as const
export type CollectedTask = (typeof collectedTasks)[number]

export const TrajectoryFacts = Type.Object({
  version: Type.Literal(TRAJECTORY_VERSION),
  task: Type.Enum([...collectedTasks]),
  /** Of the sample in the task; with `rollout` it names the trajectory. */
  id: Type.String(),
  cell: Type.Record(Type.String(), Type.Union([Type.Number(), Type.String()])),
  /** Which try at the sample, from 0. */
  rollout: Type.Number(),
  /** Tries at one prompt have the same, in every file. */
  group: Type.String(),
  /** Whose tools it has: `sculptor` the context tools, `plain` none; of memtool the way, of service the framework. */
  agent: Type.String({ default: 'sculptor' }),
  /** Who acted: a script of ours, or a model itself. */
  teacher: Type.Enum(['script', 'model']),
  /** How the model sampled, of a model that acts; what is left out is llama.cpp's neutral value, so temperature alone is the model's own distribution. */
  sampling: Type.Optional(
    Type.Object({
      temperature: Type.Number(),
      topK: Type.Number(),
      topP: Type.Number(),
      minP: Type.Number(),
      seed: Type.Number(),
    }),
  ),
  /** Whose tokens these are: name and hash of the GGUF file, or what the endpoint calls it and a hash of that and the endpoint's release. */
  model: Type.Object({ name: Type.String(), fingerprint: Type.String() }),
  /** Which snapshot of the trajectory, from 0, and how many it has. */
  snapshot: Type.Number(),
  snapshots: Type.Number(),
  /** Of the whole trajectory, the same in all of its snapshots. */
  points: Type.Number(),
  /** 1 right; -1 a failed call that was not made up for, too many calls or cut off; else 0 (Sculptor, appendix F). */
  reward: Type.Union([Type.Literal(1), Type.Literal(0), Type.Literal(-1)]),
  parts: RewardParts,
  /** Calls that were carried out, by tool. */
  calls: Type.Record(Type.String(), Type.Number()),
  /** Tokens in the context when the last step was over. */
  context: Type.Number(),
  /** For each completion that is learned, the step of the trajectory that it is, from 0. */
  steps: Type.Array(Type.Number()),
  /** For each of them, what became of its calls. */
  outcomes: Type.Optional(Type.Array(Type.Array(CallOutcome))),
})
export type TrajectoryFacts = Static<typeof TrajectoryFacts>
