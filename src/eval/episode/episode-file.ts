/** Owns the file of an episode: a line a turn behind a header, and beside it where the session stood after the last turn, so that a stop costs a turn at most. */
import { type FileHandle, mkdir, open, readFile, rename, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import { SampleRecord } from '../log.js'
import { bad, codeOf, complaint } from '../run/log-file.js'
import { occasion } from '../run/header.js'
import { takeLog } from '../run/log-writer.js'
import type { Checkpoint, TurnRecord } from './episode.js'

/** Grows with every change that an older reader would misread. */
const EPISODE_VERSION = 1

const Header = z.object({
  kind: z.literal('episode'),
  version: z.literal(EPISODE_VERSION),
  kvfold: z.string(),
  commit: z.string().nullable(),
  date: z.string(),
  command: z.string(),
  machine: z.record(z.string(), z.union([z.string(), z.number()])),
  /** What makes an episode the same one: task, agent, model, contract, seed and their options. */
  about: z.record(z.string(), z.unknown()),
})

const { answer, end, score, calls, refusedCalls, details, tokens, milliseconds } = SampleRecord.shape

const Turn = z.object({
  kind: z.literal('turn'),
  turn: z.number(),
  asked: z.string(),
  ...{ answer, end, score, calls, refusedCalls, details, tokens, milliseconds },
  work: SampleRecord.shape.work.extend({ recomputed: z.number(), fresh: z.number(), approximate: z.number() }),
})

export class EpisodeFile {
  private constructor(
    readonly path: string,
    private readonly file: FileHandle,
    private readonly release: () => void,
    /** Turns that the file held when it was opened. */
    readonly before: readonly TurnRecord[],
    /** Where the session stood after them; null at the start. */
    readonly checkpoint: Checkpoint | null,
  ) {}

  /**
   * Makes a file, or goes on in one of the same episode: turns that no checkpoint is there for are taken off.
   * @throws KvfoldError eval/other-run, eval/log-busy; eval/bad-log when it cannot be read or written, or is something else
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
      await replace(path, `${lines.join('\n')}\n`)
      return new EpisodeFile(path, await open(path, 'a'), release, before, checkpoint)
    } catch (error) {
      release()
      throw error instanceof Error && 'syscall' in error ? bad(path, `cannot be written (${codeOf(error)})`, error) : error
    }
  }

  /** The turn, then where it left the session: what is between the two when the process dies is done again. */
  async add(turn: TurnRecord, checkpoint: Checkpoint): Promise<void> {
    try {
      await this.file.appendFile(`${JSON.stringify({ kind: 'turn', ...turn })}\n`)
      await replace(checkpointOf(this.path), JSON.stringify(checkpoint, outgoing))
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
    return JSON.parse(text, incoming) as Checkpoint
  } catch (cause) {
    throw bad(checkpointOf(path), 'is damaged; delete it and the log to begin again', cause)
  }
}

/** The whole lines; a torn last one is no turn. */
function turnsIn(path: string, text: string): TurnRecord[] {
  return text
    .split('\n')
    .slice(1, -1)
    .map((line, at) => {
      const parsed = Turn.safeParse(jsonOf(line))
      if (!parsed.success) throw bad(path, `has a line ${at + 2} that is no turn (${complaint(parsed.error)})`)
      return withoutKind(parsed.data)
    })
}

const withoutKind = ({ kind: _, ...turn }: z.infer<typeof Turn>): TurnRecord => turn

function refuseOther(path: string, text: string, about: Readonly<Record<string, unknown>>): void {
  const parsed = Header.safeParse(jsonOf(text.slice(0, Math.max(0, text.indexOf('\n')))))
  if (!parsed.success) throw bad(path, 'is no log of an episode; it was left as it is')
  const there = parsed.data.about
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

/** All of it or nothing: a process that dies leaves the old one. */
async function replace(path: string, text: string): Promise<void> {
  await writeFile(`${path}.new`, text)
  await rename(`${path}.new`, path)
}

function jsonOf(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    return null
  }
}

// Sampled tokens are the one thing in a state that JSON has no word for.

const outgoing = (_: string, value: unknown): unknown => (value instanceof Int32Array ? { int32: [...value] } : value)

const incoming = (_: string, value: unknown): unknown =>
  typeof value === 'object' && value !== null && 'int32' in value && Array.isArray(value.int32)
    ? Int32Array.from(value.int32 as number[])
    : value
