/** Owns one turn of the demo: a stream put to one agent, and what came of it. */
import type { AgentEvent, TurnOutcome } from '../../agents/events.js'
import { plain } from '../../agents/plain.js'
import { sculptor } from '../../agents/sculptor.js'
import type { Session } from '../../agents/session.js'
import { freshConversation, type LlamaEngine } from '../../engine/llama.js'
import type { PiSample } from '../../eval/pi-llm.js'
import { piScore } from '../../eval/pi-score.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { AgentName, Trial } from './trial.js'

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
