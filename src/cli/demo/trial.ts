/** Owns what the demo remembers of one stream answered once by one agent, and how trials become the table's rows. */
import type { AgentEvent, TurnOutcome } from '../../agents/events.js'
import { plain, sculptor } from '../../agents/sculptor.js'
import type { Session } from '../../agents/session.js'
import { freshConversation, type LlamaEngine } from '../../engine/llama.js'
import { accuracyOf } from '../../eval/accuracy.js'
import type { PiSample } from '../../eval/pi-llm.js'
import { piScore } from '../../eval/pi-score.js'
import type { LedgerEntry } from '../../kv/ledger.js'

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
  /** 95 % interval of the accuracy: what is independent is streams, not the questions about one. */
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
    interval: accuracyOf(of.map(({ right, asked }) => ({ points: asked === 0 ? 0 : right / asked, details: { asked } })))!
      .interval,
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

// One turn of the demo: a stream put to one agent, and what came of it.

/** A step that goes on for longer has lost its way; the answer to 46 keys takes a few hundred tokens. */
const LONGEST_STEP = 512

/** A session for one turn: greedy, and for `sculptor` with the tools and the system prompt of this task. */
export function sessionFor(agent: AgentName, engine: LlamaEngine): Session {
  const options = { engine, id: freshConversation(), generation: { sampling: { temperature: 0 }, maxTokens: LONGEST_STEP } }
  return agent === 'plain' ? plain(options) : sculptor({ ...options, prompt: 'pi-llm' })
}

/** Puts the stream to the session and scores the answer; null when it was cancelled. The session's cells are given back. */
export async function play(
  session: Session,
  stream: PiSample,
  of: Pick<Trial, 'n' | 'sample' | 'agent'>,
  signal: AbortSignal,
  onEvent: (event: AgentEvent) => void,
): Promise<Trial | null> {
  const begun = performance.now()
  try {
    const outcome = await session.ask(stream.prompt, { signal, onEvent })
    return outcome.end === 'cancelled' ? null : trialOf(of, stream, outcome, (performance.now() - begun) / 1000)
  } finally {
    session.forget()
  }
}

function trialOf(of: Pick<Trial, 'n' | 'sample' | 'agent'>, stream: PiSample, outcome: TurnOutcome, seconds: number): Trial {
  const { correct, older } = piScore(stream, outcome.answer)
  const sum = (key: 'reused' | 'recomputed' | 'fresh' | 'submitted'): number =>
    outcome.ledger.reduce((total, entry: LedgerEntry) => total + entry[key], 0)
  return {
    ...of,
    asked: stream.keys.length,
    right: correct,
    older,
    tokensBefore: outcome.contextBefore,
    tokensAfter: outcome.contextAfter,
    reused: sum('reused'),
    recomputed: sum('recomputed'),
    fresh: sum('fresh'),
    submitted: sum('submitted'),
    steps: outcome.steps.length,
    calls: outcome.calls,
    refused: outcome.steps.reduce((total, { calls }) => total + calls.filter(({ failed }) => failed).length, 0),
    cutOff: outcome.end === 'length' ? 1 : 0,
    seconds,
  }
}
