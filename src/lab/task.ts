/** Owns what a task is: samples that are always the same for the same options, and what an answer to one is worth. */
import type { ChatMessage } from '../runtime/chat/message.js'
import type { SystemPrompt } from '../runtime/agents/sculptor.js'

export const taskNames = ['pi-llm', 'needles', 'mrcr', 'longbench-v2', 'frames', 'babilong', 'gsm-infinite'] as const
export type TaskName = (typeof taskNames)[number]

/** A task as a log or a worker gets it: plain JSON. The same spec opens the same task, as long as the files it names stay the same. */
export interface TaskSpec {
  readonly task: TaskName
  /** What the task's own options schema takes; defaults are filled in when it is opened. */
  readonly options: Readonly<Record<string, unknown>>
}

/** Where a sample stands on the axes of the task (updates, needles, length, ...): samples of one cell are the rows of tables and points of figures. */
export type TaskCell = Readonly<Record<string, number | string>>

/** One question and all that its scorer needs; plain JSON, so that a log stands alone. */
export interface TaskSample {
  /** Tells the samples of a task apart; the same for the same spec and index. */
  readonly id: string
  readonly cell: TaskCell
  /** What the agent is asked, system message excluded; the last one is the user's. */
  readonly messages: readonly ChatMessage[]
  /** The same for agents that do not read all of it: the long text, and what is asked about it with everything a reader needs to know. */
  readonly context: string
  readonly question: string
  /** What the scorer compares with; the task's own shape. */
  readonly truth: unknown
}

export interface Score {
  /** 0..1: what counts as accuracy. */
  readonly points: number
  /** `unparsed`: nothing in the answer could be read as one. `partial`: neither 0 nor 1. */
  readonly outcome: 'right' | 'partial' | 'wrong' | 'unparsed'
  /** Counts and shares of the task's own, such as `older` (interference). */
  readonly details: Readonly<Record<string, number>>
}

/** A question to a model that decides whether an answer is right, for tasks whose authors have it judged. */
export interface Judging {
  readonly prompt: string
  /** Reads the judge's answer; null when it says neither. */
  readonly verdict: (said: string) => boolean | null
}

export interface Task {
  readonly spec: TaskSpec
  /** What people read. */
  readonly title: string
  /** Which of our system prompts the sculptor agent gets. */
  readonly prompt: SystemPrompt
  /** Tokens an answer may take. */
  readonly maxTokens: number
  /** Temperature of the task's authors. */
  readonly temperature: number
  /** Where this differs from the original, one sentence each; empty when it does not. */
  readonly differs: readonly string[]
  /** How many samples there are. Index order goes through all cells before it comes to the next sample of one, so that a run that is stopped is even. */
  readonly size: number
  /** Made or read when it is asked for. @throws KvfoldError eval/bad-data */
  sample(index: number): Promise<TaskSample>
  /** Pure. `verdict`: what the judge said, for tasks with `judging`. */
  score(sample: TaskSample, answer: string, verdict?: boolean | null): Score
  /** Set for tasks whose answers are judged by a model. */
  readonly judging?: (sample: TaskSample, answer: string) => Judging
}
