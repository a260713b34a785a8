/** Owns what the demo remembers of one stream answered once by one agent, and how trials become the table's rows. */

export const agentNames = ['plain', 'sculptor'] as const
export type AgentName = (typeof agentNames)[number]

export interface Trial {
  /** Updates per key. */
  readonly n: number
  /** From 0; the same number is the same stream for both agents. */
  readonly sample: number
  readonly agent: AgentName
  readonly asked: number
  readonly right: number
  /** Wrong answers that name an older value of the same key: interference, not ignorance. */
  readonly older: number
  /** Tokens in context when the turn's first step ended, and when the answer did. */
  readonly tokensBefore: number
  readonly tokensAfter: number
  /** Ledger, summed over the turn's steps. */
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  /** Tokens submitted to decode. */
  readonly submitted: number
  readonly steps: number
  readonly calls: number
  /** Calls that were answered with an error. */
  readonly refused: number
  /** 1 when the answer ran into the token limit, 0 when it ended by itself. */
  readonly cutOff: number
  readonly seconds: number
}

/** One n and agent: means over its samples, except where it says otherwise. */
export interface Row {
  readonly n: number
  readonly agent: AgentName
  /** 0..1: right answers of all questions. */
  readonly accuracy: number
  /** 95 % interval of the accuracy (Wilson), taking questions as independent. */
  readonly interval: readonly [low: number, high: number]
  readonly tokensBefore: number
  readonly tokensAfter: number
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  readonly submitted: number
  readonly seconds: number
  readonly steps: number
  readonly calls: number
  readonly refused: number
  /** Share of the samples whose answer ran into the token limit. */
  readonly cutOff: number
  readonly samples: number
  /** In all, over the samples. */
  readonly questions: number
  /** Share of the wrong answers that name an older value of the key; null when nothing was wrong. */
  readonly interference: number | null
}

/** One row for every n and agent that has trials, by n, plain first. */
export function rows(trials: readonly Trial[]): Row[] {
  const sizes = [...new Set(trials.map(({ n }) => n))].sort((a, b) => a - b)
  return sizes.flatMap((n) =>
    agentNames.flatMap((agent) => {
      const of = trials.filter((trial) => trial.n === n && trial.agent === agent)
      return of.length === 0 ? [] : [row(n, agent, of)]
    }),
  )
}

function row(n: number, agent: AgentName, of: readonly Trial[]): Row {
  const total = (key: Exclude<keyof Trial, 'agent'>): number => of.reduce((sum, trial) => sum + trial[key], 0)
  const mean = (key: Exclude<keyof Trial, 'agent'>): number => total(key) / of.length
  const questions = total('asked')
  const wrong = questions - total('right')
  return {
    n,
    agent,
    accuracy: questions === 0 ? 0 : total('right') / questions,
    interval: wilson(total('right'), questions),
    tokensBefore: mean('tokensBefore'),
    tokensAfter: mean('tokensAfter'),
    reused: mean('reused'),
    recomputed: mean('recomputed'),
    fresh: mean('fresh'),
    submitted: mean('submitted'),
    seconds: mean('seconds'),
    steps: mean('steps'),
    calls: mean('calls'),
    refused: mean('refused'),
    cutOff: mean('cutOff'),
    samples: of.length,
    questions,
    interference: wrong === 0 ? null : total('older') / wrong,
  }
}

/** The 95 % Wilson score interval of a proportion; [0, 1] when nothing was asked. */
export function wilson(right: number, asked: number): [low: number, high: number] {
  if (asked === 0) return [0, 1]
  const z = 1.959964
  const share = right / asked
  const scale = 1 + (z * z) / asked
  const middle = (share + (z * z) / (2 * asked)) / scale
  const half = (z * Math.sqrt((share * (1 - share)) / asked + (z * z) / (4 * asked * asked))) / scale
  return [Math.max(0, middle - half), Math.min(1, middle + half)]
}

/** Whether two rows' accuracies differ at the 95 % level (Newcombe 1998, method 10: from the Wilson intervals of both). */
export function differ(a: Row, b: Row): boolean {
  const [low, high] = a.accuracy < b.accuracy ? [a, b] : [b, a]
  const least = high.accuracy - low.accuracy - Math.hypot(high.accuracy - high.interval[0], low.interval[1] - low.accuracy)
  return least > 0
}
