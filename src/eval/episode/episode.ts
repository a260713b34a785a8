/** Owns episodes: sessions of many turns in an environment, with a record of each turn, which go on at the turn where they were stopped. */
import type { ChatMessage } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { Answered } from '../agent.js'
import type { SampleRecord } from '../log.js'
import type { Recorder } from '../recorder.js'
import type { Score } from '../task.js'

/** What is said to the agent in a turn; the last message is the user's. */
export interface Ask {
  readonly messages: readonly ChatMessage[]
}

/**
 * Who talks to the agent, and in what world. The tools that act on that world are the environment's own affair: an actor that is to have them
 * is made with them. The same environment and the same answers give the same episode.
 */
export interface Environment {
  /** The next turn; null when the session is over. `before`: what the turn before came to, null at the start. */
  ask(before: Pick<Answered, 'answer' | 'end'> | null): Ask | null
  /** What the turn was worth, asked once after each. */
  score(turn: Answered): Score | Promise<Score>
  /** Everything that a later turn depends on, as plain JSON (an Int32Array is allowed). An environment made from it goes on here. */
  readonly state: unknown
}

/** An agent in an episode; computes by nothing but the engine that the episode's recorder is. */
export interface Actor {
  /** @throws KvfoldError what the engine throws */
  act(ask: Ask, signal?: AbortSignal): Promise<Answered>
  /** As an environment's. */
  readonly state: unknown
}

/** One turn and what it cost; the sums are over its own steps. */
export interface TurnRecord extends Pick<SampleRecord, 'answer' | 'end' | 'score' | 'tokens' | 'milliseconds'> {
  /** From 0. */
  readonly turn: number
  /** The user's words. */
  readonly asked: string
  readonly calls: SampleRecord['calls']
  readonly refusedCalls: number
  readonly details: Readonly<Record<string, number>>
  readonly work: SampleRecord['work'] & { readonly recomputed: number; readonly fresh: number; readonly approximate: number }
}

/** Where both stand after a turn: all that is needed to go on. */
export interface Checkpoint {
  /** Turns that are over. */
  readonly turns: number
  readonly environment: unknown
  readonly actor: unknown
}

export interface EpisodeOptions {
  readonly environment: Environment
  readonly actor: Actor
  /** The engine that the actor uses. */
  readonly recorder: Recorder
  /** Turns that were over before; environment and actor stand where the last of them left them. Default none. */
  readonly before?: readonly TurnRecord[]
  /** Awaited after every turn, before the next one begins. */
  readonly onTurn?: (turn: TurnRecord, checkpoint: Checkpoint) => Promise<void> | void
  readonly signal?: AbortSignal
}

/**
 * Runs to the end of the session. @returns all turns, those before included
 * @throws KvfoldError what the actor throws; engine/cancelled when `signal` stopped it: the turns that were told are whole
 */
export async function runEpisode(options: EpisodeOptions): Promise<readonly TurnRecord[]> {
  const { environment, actor, recorder, before = [], onTurn, signal } = options
  const turns = [...before]
  for (;;) {
    const asked = environment.ask(turns.at(-1) ?? null)
    if (asked === null) return turns
    const steps = recorder.ledger.length
    const [done, begun] = [recorder.work, performance.now()]
    const acted = await actor.act(asked, signal)
    if (acted.end === 'cancelled')
      throw new KvfoldError('engine/cancelled', `Turn ${turns.length + 1} was cancelled; the turns before it are kept.`)
    const score = await environment.score(acted)
    const entries = recorder.ledger.slice(steps)
    const turn: TurnRecord = {
      turn: turns.length,
      asked: asked.messages.at(-1)?.content ?? '',
      answer: acted.answer,
      end: acted.end,
      score: { ...score, details: { ...score.details } },
      calls: [...acted.calls],
      refusedCalls: acted.refusedCalls,
      details: { ...acted.details },
      ...costOf(entries, recorder.work.generated - done.generated),
      milliseconds: { ...timeOf(entries), total: performance.now() - begun },
    }
    turns.push(turn)
    await onTurn?.(turn, { turns: turns.length, environment: environment.state, actor: actor.state })
  }
}

/** A question that is asked once: the sample of a task as an episode of one turn. */
export function singleTurn(messages: readonly ChatMessage[], score: Environment['score']): Environment {
  return {
    ask: (before) => (before === null ? { messages } : null),
    score,
    state: null,
  }
}

function costOf(entries: readonly LedgerEntry[], generated: number): Pick<TurnRecord, 'tokens' | 'work'> {
  const sum = (key: 'shown' | 'reused' | 'recomputed' | 'fresh' | 'submitted' | 'approximate') =>
    entries.reduce((total, entry) => total + entry[key], 0)
  return {
    tokens: {
      before: entries[0]?.shown ?? 0,
      most: entries.reduce((most, { shown }) => Math.max(most, shown), 0),
      after: entries.findLast(({ kind }) => kind !== 'summary')?.shown ?? 0,
    },
    work: {
      steps: entries.length,
      shown: sum('shown'),
      reused: sum('reused'),
      recomputed: sum('recomputed'),
      fresh: sum('fresh'),
      approximate: sum('approximate'),
      submitted: sum('submitted'),
      generated,
    },
  }
}

function timeOf(entries: readonly LedgerEntry[]): Omit<TurnRecord['milliseconds'], 'total'> {
  const sum = (key: keyof LedgerEntry['milliseconds']) => entries.reduce((total, entry) => total + entry.milliseconds[key], 0)
  return { cache: sum('cache'), prefill: sum('prefill'), decode: sum('decode') }
}
