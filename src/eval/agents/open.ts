/** Owns which agents there are, and for which of them the built-in model was trained. */
import { KvfoldError } from '../../core/errors.js'
import { agentKinds, type AgentKind, type EvalAgent } from '../agent.js'
import type { TaskName } from '../task.js'
import { makeAgent } from './define.js'
import { mem0 } from './mem0.js'
import { memAgent } from './memagent.js'
import { plainAgent, sculptorAgent } from './sculptor.js'
import { ragBm25, ragDense } from './rag.js'

const makers: Readonly<Record<AgentKind, (options: unknown) => EvalAgent>> = {
  plain: (options) => makeAgent(plainAgent, options),
  sculptor: (options) => makeAgent(sculptorAgent, options),
  'rag-bm25': (options) => makeAgent(ragBm25, options),
  'rag-dense': (options) => makeAgent(ragDense, options),
  memagent: (options) => makeAgent(memAgent, options),
  mem0: (options) => makeAgent(mem0, options),
}

/**
 * The agent, with the paper's defaults for what `options` leaves out (Sculptor, D.4). It may answer any number of samples at once.
 * @throws KvfoldError eval/bad-agent for an unknown kind, or naming the option that cannot be used
 */
export function openAgent(kind: AgentKind, options: Readonly<Record<string, unknown>> = {}): EvalAgent {
  if (!Object.hasOwn(makers, kind))
    throw new KvfoldError('eval/bad-agent', `There is no agent ${JSON.stringify(kind)}; the agents are ${agentKinds.join(', ')}.`)
  return makers[kind](options)
}

/** Agents that cannot answer without `AgentSetting.embedder`. */
export const embeddingAgents: readonly AgentKind[] = ['rag-dense', 'mem0']

/** Tasks of the built-in model's training. */
const learned: readonly TaskName[] = ['pi-llm', 'needles', 'mrcr']

/** Whether the built-in model has seen this agent's prompts on this task in training: it says nothing about an agent where it has not. */
export const isBuiltinTrained = (agent: AgentKind, task: TaskName): boolean =>
  learned.includes(task) && (agent === 'plain' || agent === 'sculptor')
