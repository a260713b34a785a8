/** The types of the agents that `kvfold eval` tests. An agent answers samples, and computes only with the engine that it is given. */
import type { Engine } from '../runtime/engine/engine.js'
import type { ContractChoice } from '../runtime/core/contract.js'
import type { Task, TaskSample } from './task.js'

export const agentKinds = [
  ...(['plain', 'sculptor', 'rag-bm25', 'rag-dense', 'memagent', 'mem0'] as const),
  ...(['policy', 'summary', 'archive', 'files', 'edit-text'] as const),
] as const
export type AgentKind = (typeof agentKinds)[number]

/** Turns texts into vectors of length 1, for agents that retrieve by similarity. */
export interface TextEmbedder {
  /** The embedder's name in the log. */
  readonly name: string
  embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>
}

export interface AgentSetting {
  /** The engine for all steps of the agent. It records every step, so the agent must use no other engine. */
  readonly engine: Engine
  readonly task: Task
  readonly sample: TaskSample
  /** A name that no other running sample has. The ids of the sample's conversations begin with it. */
  readonly name: string
  /** The contract of the agent's edits. Default: the engine's. */
  readonly contract?: ContractChoice
  readonly seed: number
  /** The most tokens that a prompt and its answer may take together. In a run it is the engine's context. */
  readonly window: number
  readonly embedder?: TextEmbedder
  readonly signal?: AbortSignal
  /** Called after each tool call, so that the log has the calls even if an error ends the answer. */
  readonly onCall?: (call: CalledTool, isRefused: boolean) => void
}

/** One tool call. `step`: index, from 0, of the sample's step that made the call. `modifies`: the tool changes the context. */
export interface CalledTool {
  readonly step: number
  readonly name: string
  readonly failed: boolean
  readonly modifies: boolean
}

export interface Answered {
  readonly answer: string
  /** How the last step ended. */
  readonly end: 'stop' | 'length' | 'cancelled'
  readonly calls: readonly CalledTool[]
  /** Number of calls that the agent did not carry out because the turn had used up its calls. */
  readonly refusedCalls: number
  /** Counts of the agent's own work outside the engine, such as the passages that it retrieved. */
  readonly details: Readonly<Record<string, number>>
}

/** The answer of a sample whose prompt no longer fitted into the context: an empty text. */
export const OVERFLOWED = {
  ...{ answer: '', end: 'length', calls: [], refusedCalls: 0 },
  details: { overflowed: 1 },
} as const satisfies Answered

/** Returns whether the turn fitted into the context. For an overflowed turn, the size of its context is unknown. */
export const fitted = ({ details }: { readonly details: Readonly<Record<string, number | undefined>> }): boolean =>
  details['overflowed'] !== 1

/** An agent with its options. The log records `options`, which is plain JSON with a value for every option. */
export interface EvalAgent {
  readonly kind: AgentKind
  readonly title: string
  readonly options: Readonly<Record<string, unknown>>
  /** Answers the sample. Forgets the sample's conversations at the end, even after an error. @throws KvfoldError any error of the engine */
  answer(setting: AgentSetting): Promise<Answered>
}
