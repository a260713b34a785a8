/**
 * Plays one stream with one agent (a trial), turns trials into the table's rows, and writes two sentences about them.
 * The sentences are true whether the tools helped or not.
 */
import { freshConversation } from '../../../runtime/core/ids.js'
import type { AgentEvent, TurnOutcome } from '../../../runtime/agents/tool-loop.js'
import { plain, sculptor } from '../../../runtime/agents/sculptor.js'
import type { Session } from '../../../runtime/agents/session.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { accuracyOf, differ } from '../../accuracy.js'
import { type PiSample, piScore } from '../../pi-llm.js'
import { costOf } from '../../recorder.js'
import { count, percent, plural } from '../../../runtime/figures/numbers.js'
import { type Column, number, table, terminal } from '../../../runtime/figures/table.js'

export const agentNames = ['plain', 'sculptor'] as const
export type AgentName = (typeof agentNames)[number]

export interface DemoTrial {
  /** Updates per key. */
  readonly n: number
  /** The number of the stream, from 0. Both agents get the same stream under the same number. */
  readonly sample: number
  readonly agent: AgentName
  readonly asked: number
  readonly right: number
  /** Number of wrong answers that name an older value of the same key: interference, not ignorance. */
  readonly older: number
  /** Tokens in context at the end of the turn's first step; `tokensAfter`: at the end of the answer. */
  readonly tokensBefore: number
  readonly tokensAfter: number
  /** Tokens from the ledger, summed over the turn's steps; also `recomputed` and `fresh`. */
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  /** Tokens submitted to decode. */
  readonly submitted: number
  readonly steps: number
  readonly calls: number
  /** Number of calls that returned an error. */
  readonly refused: number
  /** 1 when the answer ran into the token limit, else 0. */
  readonly cutOff: number
  readonly seconds: number
}

/** The row of one n and agent: means over its samples, except where a field says otherwise. */
export interface DemoRow extends Omit<DemoTrial, 'sample' | 'asked' | 'right' | 'older'> {
  /** The share of right answers among all questions, 0..1. */
  readonly accuracy: number
  /** The 95 % interval of the accuracy. It treats streams as independent, not the questions about one stream. */
  readonly interval: readonly [low: number, high: number]
  /** Share of the samples whose answer ran into the token limit. */
  readonly cutOff: number
  readonly samples: number
  /** Total number of questions over the samples. */
  readonly questions: number
  /** Share of the wrong answers that name an older value of the key; null when no answer was wrong. */
  readonly interference: number | null
}

/** Returns a row for every n and agent with trials, sorted by n, `plain` first. */
export function rows(trials: readonly DemoTrial[]): DemoRow[] {
  const sizes = [...new Set(trials.map(({ n }) => n))].sort((a, b) => a - b)
  return sizes.flatMap((n) =>
    agentNames.flatMap((agent) => {
      const of = trials.filter((trial) => trial.n === n && trial.agent === agent)
      return of.length === 0 ? [] : [row(n, agent, of)]
    }),
  )
}

function row(n: number, agent: AgentName, of: readonly DemoTrial[]): DemoRow {
  const total = (key: Exclude<keyof DemoTrial, 'agent'>): number => of.reduce((sum, trial) => sum + trial[key], 0)
  const mean = (key: Exclude<keyof DemoTrial, 'agent'>): number => total(key) / of.length
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

// One turn of the demo: an agent answers a stream, and the result is a trial.

/** The most tokens of a step. The answer to 46 keys takes a few hundred tokens, so a longer step is an error of the model. */
const LONGEST_STEP = 512

/** Returns a session for one turn with greedy sampling. `sculptor` has the tools and the system prompt of this task. */
export function sessionFor(agent: AgentName, engine: LlamaEngine): Session {
  const options = { engine, id: freshConversation(), generation: { sampling: { temperature: 0 }, maxTokens: LONGEST_STEP } }
  return agent === 'plain' ? plain(options) : sculptor({ ...options, prompt: 'pi-llm' })
}

/** Sends the stream to the session and scores the answer; returns null when cancelled. Then the session forgets its cells. */
export async function play(
  session: Session,
  stream: PiSample,
  of: Pick<DemoTrial, 'n' | 'sample' | 'agent'>,
  signal: AbortSignal,
  onEvent: (event: AgentEvent) => void,
): Promise<DemoTrial | null> {
  const begun = performance.now()
  try {
    const outcome = await session.ask(stream.prompt, { signal, onEvent })
    return outcome.end === 'cancelled' ? null : trialOf(of, stream, outcome, (performance.now() - begun) / 1000)
  } finally {
    session.forget()
  }
}

function trialOf(
  of: Pick<DemoTrial, 'n' | 'sample' | 'agent'>,
  stream: PiSample,
  outcome: TurnOutcome,
  seconds: number,
): DemoTrial {
  const { correct, older } = piScore(stream, outcome.answer)
  const { reused, recomputed, fresh, submitted } = costOf(outcome.ledger).work
  return {
    ...of,
    asked: stream.keys.length,
    right: correct,
    older,
    tokensBefore: outcome.contextBefore,
    tokensAfter: outcome.contextAfter,
    ...{ reused, recomputed, fresh, submitted },
    steps: outcome.steps.length,
    calls: outcome.calls,
    refused: outcome.steps.reduce((total, { calls }) => total + calls.filter(({ failed }) => failed).length, 0),
    cutOff: outcome.end === 'length' ? 1 : 0,
    seconds,
  }
}

// The demo's summary of its numbers: the table, and two sentences that are true whatever the outcome.

/** Columns that the table needs without and with the accuracy's interval. Terminals narrower than `NARROW` get a list. */
const NARROW = 76
const WIDE = 84

/** Returns the table's lines, one row per n and agent, to fit `width`. All columns but n and accuracy are means per stream. */
export function rowTable(
  rows: readonly DemoRow[],
  options: { readonly width: number; readonly rule: string; readonly plusMinus: string },
): string[] {
  const { width, rule, plusMinus } = options
  if (width < NARROW) return rows.flatMap(listed)
  const spread = ({ interval: [low, high] }: DemoRow) => (width < WIDE ? '' : ` ${plusMinus}${((high - low) * 50).toFixed(1)}`)
  const columns: Column<DemoRow>[] = [
    number('n', ({ n }) => String(n)),
    { title: 'agent', text: ({ agent }) => agent },
    number('accuracy', (row) => percent(row.accuracy) + spread(row)),
    number('before', ({ tokensBefore }) => count(tokensBefore)),
    number('after', ({ tokensAfter }) => count(tokensAfter)),
    number('reused', ({ reused }) => count(reused)),
    number('recomputed', ({ recomputed }) => count(recomputed)),
    number('time', ({ seconds }) => `${seconds.toFixed(1)} s`),
    number('asked', asked),
  ]
  return terminal(table(columns, rows, { opens: (row, before) => row.n !== before.n }), rule)
}

/** Returns a row as a list, for a terminal that is too narrow for a table. */
const listed = (row: DemoRow): string[] => [
  `n = ${row.n}, ${row.agent}: ${percent(row.accuracy)} (${asked(row)})`,
  `  ${count(row.tokensBefore)}, then ${count(row.tokensAfter)} tokens`,
  `  ${count(row.reused)} reused`,
  `  ${count(row.recomputed)} recomputed`,
  `  ${row.seconds.toFixed(1)} s`,
]

const asked = ({ samples, questions }: DemoRow): string => `${samples} x ${questions / samples}`

/** Returns two sentences on the largest n at which both agents answered; none when there is no such n. */
export function sentences(rows: readonly DemoRow[]): string[] {
  const plains = rows.filter(({ agent }) => agent === 'plain')
  const plain = plains.findLast(({ n }) => rows.some((row) => row.n === n && row.agent === 'sculptor'))
  const sculptor = rows.find((row) => row.n === plain?.n && row.agent === 'sculptor')
  if (plain === undefined || sculptor === undefined) return []
  return [accuracySentence(plains[0]!, plain, sculptor), costSentence(sculptor)]
}

function accuracySentence(first: DemoRow, plain: DemoRow, sculptor: DemoRow): string {
  const points = (sculptor.accuracy - plain.accuracy) * 100
  const apart = differ(plain, sculptor)
  const trend =
    first.n === plain.n
      ? `With ${plural(plain.n, 'update')} per key the model alone got ${percent(plain.accuracy)} of the last values right`
      : `From ${first.n} to ${plural(plain.n, 'update')} per key the model alone went from ${percent(first.accuracy)} to ${percent(plain.accuracy)} of last values right`
  const errors =
    plain.interference === null
      ? ''
      : ` (${percent(plain.interference, 0)} of its errors there were older values of the same key)`
  const verdict = !apart
    ? `and with its context tools it got ${percent(sculptor.accuracy)}, which may be chance with so few streams`
    : points > 0
      ? `and with its context tools it got ${percent(sculptor.accuracy)}: the tools helped by ${points.toFixed(0)} points`
      : `and with its context tools it got ${percent(sculptor.accuracy)}: the tools did not help but cost ${(-points).toFixed(0)} points`
  return `${trend}${errors}, ${verdict}.`
}

function costSentence(row: DemoRow): string {
  const smaller = row.tokensBefore === 0 ? 0 : 1 - row.tokensAfter / row.tokensBefore
  const shown = row.reused + row.recomputed + row.fresh
  const size =
    smaller > 0
      ? `It answered from ${count(row.tokensAfter)} tokens instead of ${count(row.tokensBefore)} (${percent(smaller, 0)} fewer)`
      : `Its context did not shrink (${count(row.tokensBefore)} tokens before, ${count(row.tokensAfter)} after)`
  const share = shown === 0 ? 0 : row.reused / shown
  return (
    `${size}; over the ${row.steps.toFixed(1)} steps of a turn ${percent(share, 0)} of the tokens shown came from the cache, ` +
    `and its ${plural(row.calls, 'call')} made it compute ${plural(row.recomputed, 'token')} a second time.`
  )
}
