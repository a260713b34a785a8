/** Owns what a run consists of, and in which order: stopped anywhere, every task, cell and agent is about equally far. */
import type { ContractChoice } from '../../core/contract.js'
import type { AgentKind } from '../agent.js'
import type { ErrorRecord, LogRecord, SampleRecord } from '../log.js'

/** One sample put to one agent under one contract. */
export interface Item {
  /** Index among the run's tasks. */
  readonly task: number
  readonly agent: AgentKind
  readonly contract: ContractChoice
  /** Of the sample in the task. */
  readonly index: number
}

export interface Plan {
  /** Samples of each task. */
  readonly sizes: readonly number[]
  readonly agents: readonly AgentKind[]
  /** One at least. */
  readonly contracts: readonly ContractChoice[]
}

/**
 * Tasks advance in proportion to their sizes (the order within a task is even among its cells by itself, see Task.size), and all agents and
 * contracts have a sample before the next one begins. Who edits nothing runs once, under the first contract.
 */
export function itemsOf({ sizes, agents, contracts }: Plan): Item[] {
  const samples = sizes.flatMap((size, task) =>
    Array.from({ length: size }, (_, index) => ({ task, index, place: (index + 0.5) / size })),
  )
  samples.sort((a, b) => a.place - b.place || a.task - b.task)
  return samples.flatMap(({ task, index }) =>
    agents.flatMap((agent) =>
      (edits(agent) ? contracts : contracts.slice(0, 1)).map((contract) => ({ task, agent, contract, index })),
    ),
  )
}

/** Whether the agent changes what was shown before: contracts are about nothing else. */
export const edits = (agent: AgentKind): boolean => agent === 'sculptor'

// What is remembered of a sample that is done: its record without the long texts.

export type Answer = Omit<SampleRecord, 'talks' | 'truth' | 'answer' | 'judgement'>
export type Result = Answer | ErrorRecord

export function resultOf(record: LogRecord): Result {
  if (record.kind === 'error') return record
  const rest: Partial<SampleRecord> & Answer = { ...record }
  delete rest.talks
  delete rest.truth
  delete rest.answer
  delete rest.judgement
  return rest
}
