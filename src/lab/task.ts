/** Defines a task of the laboratory: its samples, which are always the same for the same options, and the score of an answer. */
import type { ChatMessage } from '../runtime/chat/message.js'
import type { SystemPrompt } from '../runtime/agents/sculptor.js'

export const taskNames = ['pi-llm', 'needles', 'mrcr', 'longbench-v2', 'frames', 'babilong', 'gsm-infinite', 'logbook'] as const
export type TaskName = (typeof taskNames)[number]

/**
 * A task as plain JSON, as a log or a worker thread receives it. The same spec opens the same task as long as the files that it names stay
 * the same.
 */
export interface TaskSpec {
  readonly task: TaskName
  /** Options that the task's own schema checks. Opening the task fills in the defaults. */
  readonly options: Readonly<Record<string, unknown>>
}

/**
 * The sample's values on the axes of its task (updates, needles, length, ...). The samples of one cell make one row of a table and one
 * point of a figure.
 */
export type TaskCell = Readonly<Record<string, number | string>>

/** One question and everything that its scorer needs. It is plain JSON, so that a log can be read without the task's files. */
export interface TaskSample {
  /** Identifies the sample within its task; the same for the same spec and index. */
  readonly id: string
  readonly cell: TaskCell
  /** The messages that the agent receives, without a system message. The last one is the user's. */
  readonly messages: readonly ChatMessage[]
  /**
   * The long text alone, for agents that read only parts of it; `question` then holds the question with everything else that a reader
   * needs.
   */
  readonly context: string
  readonly question: string
  /** The data that the scorer compares the answer with. Each task has its own shape. */
  readonly truth: unknown
}

export interface Score {
  /** From 0 to 1; accuracy is the mean of the points. */
  readonly points: number
  /** `unparsed`: the scorer found no answer in the text. `partial`: the points lie between 0 and 1. */
  readonly outcome: 'right' | 'partial' | 'wrong' | 'unparsed'
  /** Counts and shares that the task defines, such as `older` (interference). */
  readonly details: Readonly<Record<string, number>>
}

/** A question to a model that decides whether an answer is right. Tasks whose authors use a judge have one. */
export interface Judging {
  readonly prompt: string
  /** Returns the verdict in the judge's answer, or null when the answer contains none. */
  readonly verdict: (said: string) => boolean | null
}

export interface Task {
  readonly spec: TaskSpec
  /** The name that reports and tables show. */
  readonly title: string
  /** Which of our system prompts the sculptor agent uses for this task. */
  readonly prompt: SystemPrompt
  /** The most tokens that an answer may have. */
  readonly maxTokens: number
  /** The temperature that the task's authors use. */
  readonly temperature: number
  /** Differences from the original task, one sentence each; empty when there are none. */
  readonly differs: readonly string[]
  /**
   * The number of samples. Consecutive indices go through all cells before the second sample of any cell, so that a stopped run has covered
   * the cells evenly.
   */
  readonly size: number
  /** Makes or reads the sample when it is called. @throws KvfoldError eval/bad-data */
  sample(index: number): Promise<TaskSample>
  /** Pure. `verdict`: the judge's verdict, for tasks with `judging`. */
  score(sample: TaskSample, answer: string, verdict?: boolean | null): Score
  /** Builds the question to the judge. Only tasks whose answers a model judges have it. */
  readonly judging?: (sample: TaskSample, answer: string) => Judging
}
