/** Defines what a task is: samples, which are the same for the same options, and the scoring of answers. */
import type { ChatMessage } from '../runtime/chat/message.js'
import type { SystemPrompt } from '../runtime/agents/sculptor.js'

export const taskNames = ['pi-llm', 'needles', 'mrcr', 'longbench-v2', 'frames', 'babilong', 'gsm-infinite', 'logbook'] as const
export type TaskName = (typeof taskNames)[number]

/**
 * A task's name and options as plain JSON, for logs and worker threads. The same spec opens the same task, if the files that it names stay
 * the same.
 */
export interface TaskSpec {
  readonly task: TaskName
  /** Options that the task's own schema checks. Opening the task fills in defaults. */
  readonly options: Readonly<Record<string, unknown>>
}

/**
 * A sample's values on its task's axes (updates, needles, length, ...). The samples of one cell make one table row and one point of a
 * figure.
 */
export type TaskCell = Readonly<Record<string, number | string>>

/** One question, with everything that its scorer needs. It is plain JSON, so that a log can be read without the task's files. */
export interface TaskSample {
  /** Identifies the sample within its task; the same for the same spec and index. */
  readonly id: string
  readonly cell: TaskCell
  /** The messages that the agent gets, without a system message. The last one is the user's. */
  readonly messages: readonly ChatMessage[]
  /**
   * `context`: the long text by itself, for agents that read only excerpts. `question`: the question, with everything else that such an
   * agent needs.
   */
  readonly context: string
  readonly question: string
  /** The right answer, or other data with which the scorer compares the answer. Its form depends on the task. */
  readonly truth: unknown
}

export interface Score {
  /** 0 to 1. Accuracy is the mean of the points. */
  readonly points: number
  /** `unparsed`: the scorer found no answer in the text. `partial`: the points are between 0 and 1. */
  readonly outcome: 'right' | 'partial' | 'wrong' | 'unparsed'
  /** Counts and shares that the task defines, such as `older` (interference). */
  readonly details: Readonly<Record<string, number>>
}

/** A question to the judge, a model that decides whether an answer is right. Only tasks whose authors use a judge have one. */
export interface Judging {
  readonly prompt: string
  /** Returns the verdict in the judge's answer; null if it contains none. */
  readonly verdict: (said: string) => boolean | null
}

export interface Task {
  readonly spec: TaskSpec
  /** The name in reports and tables. */
  readonly title: string
  /** The system prompt that the agent `sculptor` uses for this task. */
  readonly prompt: SystemPrompt
  /** The most tokens of an answer. */
  readonly maxTokens: number
  /** The temperature that the task's authors use. */
  readonly temperature: number
  /** How the task differs from the original, one sentence each; empty if it does not. */
  readonly differs: readonly string[]
  /**
   * The number of samples. Consecutive indexes go through all cells first, then through the cells' second samples, and so on. So a stopped
   * run has covered the cells evenly.
   */
  readonly size: number
  /** Makes the sample with this index, or reads it from a file. @throws KvfoldError eval/bad-data */
  sample(index: number): Promise<TaskSample>
  /** Scores an answer. Pure. `verdict`: the judge's verdict, for tasks with `judging`. */
  score(sample: TaskSample, answer: string, verdict?: boolean | null): Score
  /** Makes the question to the judge. Absent for tasks without a judge. */
  readonly judging?: (sample: TaskSample, answer: string) => Judging
}
