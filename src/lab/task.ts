/** Defines a task that agents are tested on: its samples, which are the same for the same options, and the score of an answer. */
import type { ChatMessage } from '../runtime/chat/message.js'
import type { SystemPrompt } from '../runtime/agents/sculptor.js'

export const taskNames = ['pi-llm', 'needles', 'mrcr', 'longbench-v2', 'frames', 'babilong', 'gsm-infinite', 'logbook'] as const
export type TaskName = (typeof taskNames)[number]

/**
 * Names a task and its options as plain JSON, for logs and worker threads. The same spec opens the same task as long as the files that it
 * names do not change.
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
   * The long text alone, for agents that read only parts of it. `question`: the question, with everything else that such an agent needs to
   * answer.
   */
  readonly context: string
  readonly question: string
  /** The right answer, or other data that the scorer compares the answer with. Each task has a form of its own. */
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

/** A question to the judge, a model that decides whether an answer is right. Only tasks whose authors use a judge have it. */
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
   * The number of samples. The indices go through all cells first, then through their second samples, and so on. So a stopped run has
   * covered the cells evenly.
   */
  readonly size: number
  /** Makes the sample with this index, or reads it from a file. @throws KvfoldError eval/bad-data */
  sample(index: number): Promise<TaskSample>
  /** Scores an answer. Pure. `verdict`: the judge's verdict, for tasks with `judging`. */
  score(sample: TaskSample, answer: string, verdict?: boolean | null): Score
  /** Makes the question to the judge. Only tasks whose answers a model judges have this function. */
  readonly judging?: (sample: TaskSample, answer: string) => Judging
}
