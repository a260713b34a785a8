/** Owns what an agent under evaluation is: something that answers a sample by way of an engine, and nothing else. */
import type { Engine } from '../runtime/engine/engine.js'
import type { ContractChoice } from '../runtime/core/contract.js'
import type { Task, TaskSample } from './task.js'

export const agentKinds = ['plain', 'sculptor', 'rag-bm25', 'rag-dense', 'memagent', 'mem0'] as const
export type AgentKind = (typeof agentKinds)[number]

/** Vectors of texts, for agents that look for what is alike; each of length 1. */
export interface TextEmbedder {
  /** What the log calls it. */
  readonly name: string
  embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>
}

export interface AgentSetting {
  /** Records every step: an agent must compute by nothing else. */
  readonly engine: Engine
  readonly task: Task
  readonly sample: TaskSample
  /** Unique among all samples that run; conversations of the agent begin with it. */
  readonly name: string
  /** What edits keep to. Default: the engine's. */
  readonly contract?: ContractChoice
  readonly seed: number
  /** Tokens of a context; default: the engine's. */
  readonly window: number
  readonly embedder?: TextEmbedder
  readonly signal?: AbortSignal
}

/** One call of a tool and what came of it; `step` counts the recorded steps of the sample from 0. */
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
  /** Calls that were not carried out because the turn had used up its calls. */
  readonly refusedCalls: number
  /** What the agent did of its own beside the engine, such as passages retrieved; counts. */
  readonly details: Readonly<Record<string, number>>
}

/** A turn whose prompt no longer fits the context: no answer. */
export const OVERFLOWED = {
  ...{ answer: '', end: 'length', calls: [], refusedCalls: 0 },
  details: { overflowed: 1 },
} as const satisfies Answered

/** Defaults are those of the paper; `options` is what they came to, plain JSON, for the log. */
export interface EvalAgent {
  readonly kind: AgentKind
  readonly title: string
  readonly options: Readonly<Record<string, unknown>>
  /** @throws KvfoldError what the engine throws; forgets its conversations in any case */
  answer(setting: AgentSetting): Promise<Answered>
}
