/** Owns the form of collected trajectories: JSON Lines, one snapshot a line, nothing else in the file; and whom a teacher speaks for. */
import { z } from 'zod'
import { taskNames } from '../task.js'

/** Owns whom a teacher speaks for: an agent with the context tools, or one without any tool. */
export const taughtAgents = ['sculptor', 'plain'] as const
export type TaughtAgent = (typeof taughtAgents)[number]

// The form of collected trajectories: JSON Lines, one snapshot a line, nothing else in the file.

/** Grows with every change that an older reader would misread. */
export const TRAJECTORY_VERSION = 1

const Stretch = z.tuple([z.number(), z.number()])

export const TrajectoryRecord = z.object({
  version: z.literal(TRAJECTORY_VERSION),
  task: z.enum(taskNames),
  /** Of the sample in the task; with `rollout` it names the trajectory. */
  id: z.string(),
  cell: z.record(z.string(), z.union([z.number(), z.string()])),
  /** Which try at the sample, from 0. */
  rollout: z.number(),
  /** Whose tools it has: the context tools, or none. */
  agent: z.enum(taughtAgents).default('sculptor'),
  /** Who acted: a script of ours, or the model itself. */
  teacher: z.enum(['script', 'model']),
  /** Whose tokens these are: name and hash of the GGUF file. */
  model: z.object({ name: z.string(), fingerprint: z.string() }),
  /** Which snapshot of the trajectory, from 0, and how many it has. */
  snapshot: z.number(),
  snapshots: z.number(),
  /** Of the whole trajectory, the same in all of its snapshots. */
  points: z.number(),
  /** 1 right; -1 a call that failed, too many calls or cut off; else 0 (Sculptor, appendix F). */
  reward: z.union([z.literal(1), z.literal(0), z.literal(-1)]),
  tokens: z.array(z.number()),
  /** Half-open stretches of `tokens` that have loss, in order; over all snapshots every completion is in one, once. */
  loss: z.array(Stretch),
  /** For each stretch the step of the trajectory whose completion it is, from 0. */
  steps: z.array(z.number()),
})

export type TrajectoryRecord = z.infer<typeof TrajectoryRecord>
