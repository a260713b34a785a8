/**
 * Runs episodes: sessions of many turns in an environment, with a record
 * of each turn. Keeps them in a file from which a stopped episode resumes.
 */
import { type FileHandle, mkdir, open, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import Type, { type Static } from 'typebox'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { checked, inWords, nullable } from '../../runtime/core/schema.js'
import { writeWhole } from '../../runtime/core/whole-file.js'
import { mappedJson, readJson, writeJson } from '../../runtime/core/written-json.js'
import type { LedgerEntry } from '../../runtime/kv/ledger.js'
import type { Answered } from '../agent.js'
import { SampleRecord } from '../log.js'
import type { Recorder } from '../recorder.js'
import { occasion } from '../run/plan.js'
import { bad, codeOf, takeLog } from '../run/log-file.js'
import type { Score } from '../task.js'

/** The messages that begin a turn; the last one is the user's. */
export interface TurnAsk {
  readonly messages: readonly ChatMessage[]
}

/**
 * The user who talks to the agent, and the world that the agent works in. The environment owns the tools that act on
 * its world; pass them to the actor when you make it. The same environment and the same answers give the same episode.
 */
export interface Environment {
  /** Begins the next turn; returns null when the session is over. `before` is the outcome of the previous turn, null at the start. */
  ask(before: Pick<Answered, 'answer' | 'end'> | null): TurnAsk | null
  /** Scores a turn. The runner calls it once after each turn. */
  score(turn: Answered): Score | Promise<Score>
  /**
   * Everything that later turns depend on, as plain JSON (Int32Array allowed). An environment made from it continues after the last turn.
   */
  readonly state: unknown
}

/** The agent in an episode. It must compute only on the episode's recorder, so that the records hold all its costs. */
export interface Actor {
  /** Takes one turn. @throws KvfoldError any error of the engine */
  act(ask: TurnAsk, signal?: AbortSignal): Promise<Answered>
  /** Everything that later turns depend on, in the same form as the environment's state. */
  readonly state: unknown
}

/** One turn and its costs, summed over its own steps. */
export interface TurnRecord extends Pick<SampleRecord, 'answer' | 'end' | 'score' | 'tokens' | 'milliseconds'> {
  /** The turn's number, from 0. */
  readonly turn: number
  /** The user's message. */
  readonly asked: string
  readonly calls: SampleRecord['calls']
  readonly refusedCalls: number
  readonly details: Readonly<Record<string, number>>
  readonly work: SampleRecord['work'] & { readonly recomputed: number; readonly fresh: number; readonly approximate: number }
}

/** The states of environment and actor after a turn: enough to resume the episode. */
export interface Checkpoint {
  /** Number of finished turns. */
  readonly turns: number
  readonly environment: unknown
  readonly actor: unknown
}

export interface EpisodeOptions {
  readonly environment: Environment
  readonly actor: Actor
  /** The engine that the actor computes on. */
  readonly recorder: Recorder
  /** Finished turns of an earlier run; environment and actor must have the states after the last of them. Default: none. */
  readonly before?: readonly TurnRecord[]
  /** Called after every turn; the next turn begins when its promise resolves. */
  readonly onTurn?: (turn: TurnRecord, checkpoint: Checkpoint) => Promise<void> | void
  readonly signal?: AbortSignal
}

/**
 * Runs the episode to its end.
 * @returns all turns, including `before`
 * @throws KvfoldError any error of the actor; engine/cancelled when `signal` stopped it (every turn passed to `onTurn` is complete)
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

/** Makes an environment of one turn, for example from the sample of a task. */
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

// The file of an episode: a header, then one line for each turn. A second file
// holds the checkpoint after the last turn. A stop loses one turn at most.

/** Increase it with every change that an older reader would misread. */
const EPISODE_VERSION = 1

const Header = Type.Object({
  kind: Type.Literal('episode'),
  version: Type.Literal(EPISODE_VERSION),
  kvfold: Type.String(),
  commit: nullable(Type.String()),
  date: Type.String(),
  command: Type.String(),
  machine: Type.Record(Type.String(), Type.Union([Type.String(), Type.Number()])),
  /** Identifies the episode: task, agent, model, contract, seed and their options. */
  about: Type.Record(Type.String(), Type.Unknown()),
})

const { answer, end, score, calls, refusedCalls, details, tokens, milliseconds } = SampleRecord.properties

const Turn = Type.Object({
  kind: Type.Literal('turn'),
  turn: Type.Number(),
  asked: Type.String(),
  ...{ answer, end, score, calls, refusedCalls, details, tokens, milliseconds },
  work: Type.Object({
    ...SampleRecord.properties.work.properties,
    ...{ recomputed: Type.Number(), fresh: Type.Number(), approximate: Type.Number() },
  }),
})

export class EpisodeFile {
  private constructor(
    readonly path: string,
    private readonly file: FileHandle,
    private readonly release: () => void,
    /** The finished turns that the file held when it was opened, up to the checkpoint. */
    readonly before: readonly TurnRecord[],
    /** The checkpoint after these turns; null at the start of an episode. */
    readonly checkpoint: Checkpoint | null,
  ) {}

  /**
   * Creates the file, or opens the file of the same episode to continue it. Removes turns after the checkpoint.
   * @throws KvfoldError eval/other-run when the file holds another episode; eval/log-busy;
   * eval/bad-log when the file cannot be read or written, or is no log of an episode
   */
  static async open(path: string, about: Readonly<Record<string, unknown>>, command: string): Promise<EpisodeFile> {
    try {
      await mkdir(dirname(path), { recursive: true })
    } catch (cause) {
      throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
    }
    const release = takeLog(path)
    try {
      const text = await textOf(path)
      const header = { kind: 'episode', version: EPISODE_VERSION, ...occasion(command), about }
      if (text !== null) refuseOther(path, text, about)
      const checkpoint = text === null ? null : await checkpointAt(path)
      const before = text === null ? [] : turnsIn(path, text).slice(0, checkpoint?.turns ?? 0)
      if (checkpoint !== null && before.length < checkpoint.turns)
        throw bad(path, `has ${before.length} turns and its checkpoint ${checkpoint.turns}; delete both to begin again`)
      const kept = text === null ? JSON.stringify(header) : text.slice(0, text.indexOf('\n'))
      const lines = [kept, ...before.map((turn) => JSON.stringify({ kind: 'turn', ...turn }))]
      await writeWhole(path, (temporary) => writeFile(temporary, `${lines.join('\n')}\n`))
      return new EpisodeFile(path, await open(path, 'a'), release, before, checkpoint)
    } catch (error) {
      release()
      throw error instanceof Error && 'syscall' in error ? bad(path, `cannot be written (${codeOf(error)})`, error) : error
    }
  }

  /**
   * Returns the number of finished turns by the checkpoint; 0 when there is no checkpoint.
   * @throws KvfoldError eval/bad-log when the checkpoint is damaged or cannot be read
   */
  static async reached(path: string): Promise<number> {
    return (await checkpointAt(path))?.turns ?? 0
  }

  static async remove(path: string): Promise<void> {
    await Promise.all([path, checkpointOf(path)].map((each) => rm(each, { force: true })))
  }

  /**
   * Writes the turn, then its checkpoint. If the process dies between the two, the next run repeats the turn.
   * @throws KvfoldError eval/bad-log
   */
  async add(turn: TurnRecord, checkpoint: Checkpoint): Promise<void> {
    try {
      await this.file.appendFile(`${JSON.stringify({ kind: 'turn', ...turn })}\n`)
      await writeWhole(checkpointOf(this.path), (temporary) => writeFile(temporary, writeJson(mappedJson(checkpoint, outgoing))))
    } catch (cause) {
      throw bad(this.path, `cannot be written (${codeOf(cause)})`, cause)
    }
  }

  async close(): Promise<void> {
    await this.file.close()
    this.release()
  }
}

const checkpointOf = (path: string): string => `${path}.checkpoint`

async function checkpointAt(path: string): Promise<Checkpoint | null> {
  const text = await textOf(checkpointOf(path))
  if (text === null) return null
  try {
    return mappedJson(readJson(text), incoming) as Checkpoint
  } catch (cause) {
    throw bad(checkpointOf(path), 'is damaged; delete it and the log to begin again', cause)
  }
}

/** Returns the turns of all complete lines; an incomplete last line is ignored. */
function turnsIn(path: string, text: string): TurnRecord[] {
  return text
    .split('\n')
    .slice(1, -1)
    .map((line, at) => {
      const read = checked(Turn, jsonOf(line))
      if (!read.ok) throw bad(path, `has a line ${at + 2} that is no turn (${inWords(read.faults[0])})`)
      return withoutKind(read.value)
    })
}

const withoutKind = ({ kind: _, ...turn }: Static<typeof Turn>): TurnRecord => turn

function refuseOther(path: string, text: string, about: Readonly<Record<string, unknown>>): void {
  const read = checked(Header, jsonOf(text.slice(0, Math.max(0, text.indexOf('\n')))))
  if (!read.ok) throw bad(path, 'is no log of an episode; it was left as it is')
  const there = read.value.about
  const now = JSON.parse(JSON.stringify(about)) as typeof there
  const field = [...new Set([...Object.keys(there), ...Object.keys(now)])].find((key) => !isDeepStrictEqual(there[key], now[key]))
  if (field === undefined) return
  throw new KvfoldError(
    'eval/other-run',
    `${path} holds another episode (${field}: ${JSON.stringify(there[field])} there, ${JSON.stringify(now[field])} now); name another --log, or delete this one.`,
  )
}

async function textOf(path: string): Promise<string | null> {
  try {
    return await readFile(path, 'utf8')
  } catch (cause) {
    if (codeOf(cause) === 'ENOENT') return null
    throw bad(path, `cannot be read (${codeOf(cause)})`, cause)
  }
}

function jsonOf(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    return null
  }
}

// Sampled tokens (Int32Array) are the only values in a state that JSON cannot hold; the file has them as { int32: [...] }.

const outgoing = (value: unknown): unknown => (value instanceof Int32Array ? { int32: [...value] } : value)

const incoming = (value: unknown): unknown =>
  typeof value === 'object' && value !== null && 'int32' in value && Array.isArray(value.int32)
    ? Int32Array.from(value.int32 as number[])
    : value
