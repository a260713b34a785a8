/** Owns what a figure of a report is, a drawing or why there is none, and the look of a condition in all of them. */
import type { AgentKind } from '../../agent.js'
import type { ConditionResult, Summary } from '../summary.js'

export interface Picture {
  /** File name without its ending. */
  readonly name: string
  readonly svg: string
}

export interface LeftOut {
  /** What the logs lack, as a sentence. */
  readonly why: string
}

export type Drawn = Picture | LeftOut

/** The drawing, where there is one: figures without data are empty text. */
export const drawnOr = (name: string, svg: string, why: string): Drawn => (svg === '' ? { why } : { name, svg })

/** Readable on white and on black. */
const AGENTS: Readonly<Record<AgentKind, string>> = {
  plain: '#71717a',
  sculptor: '#0d9488',
  'rag-bm25': '#ea580c',
  'rag-dense': '#ca8a04',
  memagent: '#3b82f6',
  mem0: '#a855f7',
}

const DASHES: readonly string[] = ['', '7 4', '2 3', '10 3 2 3']

export interface Look {
  readonly colour: string
  /** Sets conditions of one agent apart: contracts, settings, logs. */
  readonly dash: string
}

/** The same for a condition in all figures. */
export function lookOf({ agents, conditions }: Summary, condition: ConditionResult): Look {
  const kind = agents[condition.agent]!.agent
  const name = ({ variant, agent, contract }: ConditionResult): string => `${variant} ${agent} ${contract}`
  const same = [...new Set(conditions.filter(({ agent }) => agents[agent]!.agent === kind).map(name))]
  return { colour: AGENTS[kind], dash: DASHES[same.indexOf(name(condition)) % DASHES.length]! }
}
