/** Owns the form of collected trajectories: JSON Lines, one snapshot a line, nothing else in the file; and whom a teacher speaks for. */
import Type, { type Static } from 'typebox'
import { taskNames } from '../task.js'

/** Owns whom a teacher speaks for: an agent with the context tools, or one without any tool. */
export const taughtAgents = ['sculptor', 'plain'] as const
export type TaughtAgent = (typeof taughtAgents)[number]

// The form of collected trajectories: JSON Lines, one snapshot a line, nothing else in the file.

/** Grows with every change that an older reader would misread. */
export const TRAJECTORY_VERSION = 1

const Stretch = Type.Tuple([Type.Number(), Type.Number()])

export const TrajectoryRecord = Type.Object({
  version: Type.Literal(TRAJECTORY_VERSION),
  task: Type.Enum(taskNames),
  /** Of the sample in the task; with `rollout` it names the trajectory. */
  id: Type.String(),
  cell: Type.Record(Type.String(), Type.Union([Type.Number(), Type.String()])),
  /** Which try at the sample, from 0. */
  rollout: Type.Number(),
  /** Whose tools it has: the context tools, or none. */
  agent: Type.Enum(taughtAgents, { default: 'sculptor' }),
  /** Who acted: a script of ours, or the model itself. */
  teacher: Type.Enum(['script', 'model']),
  /** Whose tokens these are: name and hash of the GGUF file. */
  model: Type.Object({ name: Type.String(), fingerprint: Type.String() }),
  /** Which snapshot of the trajectory, from 0, and how many it has. */
  snapshot: Type.Number(),
  snapshots: Type.Number(),
  /** Of the whole trajectory, the same in all of its snapshots. */
  points: Type.Number(),
  /** 1 right; -1 a call that failed, too many calls or cut off; else 0 (Sculptor, appendix F). */
  reward: Type.Union([Type.Literal(1), Type.Literal(0), Type.Literal(-1)]),
  tokens: Type.Array(Type.Number()),
  /** Half-open stretches of `tokens` that have loss, in order; over all snapshots every completion is in one, once. */
  loss: Type.Array(Stretch),
  /** For each stretch the step of the trajectory whose completion it is, from 0. */
  steps: Type.Array(Type.Number()),
})

export type TrajectoryRecord = Static<typeof TrajectoryRecord>
