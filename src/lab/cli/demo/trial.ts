/**
 * Owns what the demo remembers of one stream answered once by one agent, how trials become the table's rows, and two sentences about them that are
 * true whichever way they point.
 */
import { freshConversation } from '../../../runtime/core/ids.js'
import type { AgentEvent, TurnOutcome } from '../../../runtime/agents/tool-loop.js'
import { plain, sculptor } from '../../../runtime/agents/sculptor.js'
import type { Session } from '../../../runtime/agents/session.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { accuracyOf, differ } from '../../accuracy.js'
import { type PiSample, piScore } from '../../pi-llm.js'
import { count, percent, plural } from '../../../runtime/figures/numbers.js'
import { type Column, number, table, terminal } from '../../../runtime/figures/table.js'
import type { LedgerEntry } from '../../../runtime/kv/ledger.js'

export const agentNames = ['plain', 'sculptor'] as const
export type AgentName = (typeof agentNames)[number]

export interface DemoTrial {
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
export interface DemoRow extends Omit<DemoTrial, 'sample' | 'asked' | 'right' | 'older'> {
  /** 0..1: right answers of all questions. */
  readonly accuracy: number
  /** 95 % interval of the accuracy: what is independent is streams, not the questions about one. */
  readonly interval: readonly [low: number, high: number]
  /** Share of the samples whose answer ran into the token limit. */
  readonly cutOff: number
  readonly samples: number
  /** In all, over the samples. */
  readonly questions: number
  /** Share of the wrong answers that name an older value of the key; null when nothing was wrong. */
  readonly interference: number | null
}

/** One row for every n and agent that has trials, by n, plain first. */
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

// What the demo says about its own numbers: the table, and two sentences that are true whichever way they came out.

/** Widest table without and with the accuracy's interval; narrower terminals get a list. */
const NARROW = 76
const WIDE = 84

/** The table's lines, one row per n and agent, to fit `width`. Everything but n and accuracy is a mean per stream. */
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

/** A row for a terminal too narrow for a table. */
const listed = (row: DemoRow): string[] => [
  `n = ${row.n}, ${row.agent}: ${percent(row.accuracy)} (${asked(row)})`,
  `  ${count(row.tokensBefore)}, then ${count(row.tokensAfter)} tokens`,
  `  ${count(row.reused)} reused`,
  `  ${count(row.recomputed)} recomputed`,
  `  ${row.seconds.toFixed(1)} s`,
]

const asked = ({ samples, questions }: DemoRow): string => `${samples} x ${questions / samples}`

/** What was seen at the largest n where both agents answered, in two sentences; fewer when there is nothing to compare. */
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
    ? `and with its context tools it got ${percent(sculptor.accuracy)}, which is no difference beyond chance with so few streams`
    : points > 0
      ? `and with its context tools it got ${percent(sculptor.accuracy)}: the tools helped by ${points.toFixed(0)} points`
      : `and with its context tools it got ${percent(sculptor.accuracy)}: the tools did not help, they cost ${(-points).toFixed(0)} points`
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
