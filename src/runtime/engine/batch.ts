/**
 * Composes batches: which tokens of each job go in, and how many prompt tokens beside streams (jobs that generate). Also decodes several
 * batches of streams in a row without returning to the scheduler's loop.
 */
import { invariant } from '../core/errors.js'
import type { StepCache } from '../kv/step-cache.js'
import type { WritePosition } from '../kv/step.js'
import type { Batch, Watched, DecodeStatus, DrawnTokens, NativeContext, RunEnd } from '../native/types.js'
import type { Job } from './job.js'
import { followed } from './running-time.js'

// The share of one job in a batch, and the packing of shares into a batch.

/** One job's tokens in a batch. `output`: whether the logits of the last token are needed. */
export interface BatchShare {
  readonly job: Job
  readonly tokens: Int32Array
  readonly what: 'prompt' | 'generated'
  readonly output: boolean
  /** How many of the tokens, the last ones, are drafts (speculation.ts). Then the logits of all tokens are needed. Default 0. */
  readonly drafted?: number
  /** The sequence and position where the first token goes. */
  readonly seat: WritePosition
}

/** A batch, and where its shares are in it. */
interface Packed {
  readonly batch: Batch
  /** How many tokens all shares have together. */
  readonly size: number
  /** By share: the batch index of its first token with requested logits. Shares that need no logits are missing. */
  readonly outputs: ReadonlyMap<BatchShare, number>
  /** By share: the batch index where it begins, for shares that need the logits of all their tokens (`promptLogprobs`). */
  readonly read: ReadonlyMap<BatchShare, number>
  /** By share: the attention to capture, for jobs that asked for it. */
  readonly watched: ReadonlyMap<BatchShare, Watched>
}

/** The most prompt tokens with logits in a batch: with a large vocabulary the logits of one token take a megabyte. */
const MOST_READ = 64

const sizeOf = (shares: readonly BatchShare[]): number => shares.reduce((sum, { tokens }) => sum + tokens.length, 0)

/**
 * Composes the next batch of at most `room` tokens: a token of every stream, then prompt tokens in order of `Job.due`, as many as the
 * budget allows. Jobs whose tokens find no free cells are left out.
 * @param jobs the jobs that may be in one batch
 * @param waiting the number of streams that cannot be in this batch, because they apply other adapters
 * @returns the shares, and the jobs that found no cells (`starved`)
 */
export function composed(jobs: readonly Job[], cache: StepCache, room: number, budget: PrefillBudget, waiting = 0): Composed {
  const streams = jobs.filter(isStream).length
  const due = jobs.reduce((sum, { phase }) => sum + (phase.name === 'prefill' ? phase.total - phase.done : 0), 0)
  const everything = { streams: true, prompt: room }
  if (streams + waiting === 0 || due === 0) return filled(jobs, cache, room, everything)
  if (streams === 0) return filled(jobs, cache, room, { streams: true, prompt: budget.apart(waiting, due) })
  const chosen = filled(jobs, cache, room, budget.turn(streams, due))
  return chosen.shares.length > 0 ? chosen : filled(jobs, cache, room, everything)
}

interface Composed {
  readonly shares: BatchShare[]
  readonly starved: readonly Job[]
}

/** Fills a batch with the tokens that `turn` allows. */
function filled(jobs: readonly Job[], cache: StepCache, room: number, turn: Turn): Composed {
  const shares: BatchShare[] = []
  const starved: Job[] = []
  const streams = jobs.filter(isStream)
  /** Number of cells to keep free for the next tokens of streams that this batch leaves out. */
  const held = turn.streams ? 0 : streams.length
  const add = (share: BatchShare): void => {
    // Reserve cells for the whole batch so far: none of them is taken before the decode.
    if (cache.reserve(held + sizeOf(shares) + share.tokens.length).kind === 'full') starved.push(share.job)
    else {
      shares.push(share)
      room -= share.tokens.length
    }
  }
  // If the batch has no room for all streams, those that ran longest ago go first.
  const inTurn = streams.length <= room ? streams : [...streams].sort((a, b) => a.ran - b.ran)
  for (const job of turn.streams ? inTurn : []) {
    if (job.phase.name === 'decode' && room > 0)
      add({
        job,
        tokens: Int32Array.of(job.phase.token),
        what: 'generated',
        output: true,
        seat: cache.seat(job.phase.step),
      })
  }
  room = Math.min(turn.prompt, room)
  for (const job of [...jobs].sort((a, b) => a.due - b.due)) {
    if (job.phase.name !== 'prefill' || room === 0) continue
    const isRead = job.asked.promptLogprobs !== undefined
    const chunk = cache.next(job.phase.step, isRead ? Math.min(room, MOST_READ) : room)
    invariant(chunk !== null, 'a job still prefills although its whole prompt is in the cache')
    add({ job, tokens: chunk.tokens, what: 'prompt', output: chunk.last, seat: chunk })
  }
  return { shares, starved }
}

/** Packs the shares into one batch, and arms the captures of attention that jobs asked for. */
export function packed(shares: readonly BatchShare[]): Packed {
  const size = sizeOf(shares)
  const batch = {
    tokens: new Int32Array(size),
    positions: new Int32Array(size),
    sequences: new Int32Array(size),
    outputs: new Uint8Array(size),
  }
  const outputs = new Map<BatchShare, number>()
  const read = new Map<BatchShare, number>()
  const watched = new Map<BatchShare, Watched>()
  let at = 0
  for (const share of shares) {
    const { job, seat, what, tokens } = share
    const watching = job.watch?.watched({ at, count: tokens.length, what, seat }, job.step!.sequence) ?? null
    if (watching !== null) watched.set(share, watching)
    if (what === 'prompt' && job.asked.promptLogprobs !== undefined) {
      read.set(share, at)
      batch.outputs.fill(1, at, at + tokens.length)
    }
    for (const [offset, token] of tokens.entries()) {
      batch.tokens[at] = token
      batch.positions[at] = seat.position + offset
      batch.sequences[at] = seat.seq
      at++
    }
    if (!share.output) continue
    const first = at - 1 - (share.drafted ?? 0)
    batch.outputs.fill(1, first, at)
    outputs.set(share, first)
  }
  return { batch, size, outputs, read, watched }
}

// Which jobs may be in one batch: llama.cpp applies adapters to a whole batch, so all jobs of a batch must have the same.

/**
 * Groups the jobs that have tokens to compute by their adapters. If `stays`, the group with the current adapters (`last`) comes first. The
 * rest is in order of waiting, the longest first.
 */
export function byAdapters(jobs: readonly Job[], last: string, stays: boolean): readonly (readonly Job[])[] {
  const groups = new Map<string, Job[]>()
  for (const job of jobs) {
    if (job.step === null) continue
    const { key } = job.adapters
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [job])
    else group.push(job)
  }
  const turn = ([key, group]: readonly [string, readonly Job[]]) =>
    stays && key === last ? -Infinity : group.reduce((latest, { ran }) => Math.max(latest, ran), -1)
  return [...groups].sort((a, b) => turn(a) - turn(b)).map(([, group]) => group)
}

export const isStream = ({ phase }: Job): boolean => phase.name === 'decode'

// Chooses the next batch (a "turn") while prompts wait beside streams. The aim: short gaps between a stream's tokens, and little lost
// throughput.

/** The content of the next batch: a token of every stream or of none, and at most `prompt` prompt tokens. */
interface Turn {
  readonly streams: boolean
  readonly prompt: number
}

/** The content of a decoded batch, and its time from before the decode until its tokens were sampled and streamed. */
interface TurnTime {
  readonly prompt: number
  /** How many streams have a token in the batch. */
  readonly streams: number
  readonly milliseconds: number
}

/** The fewest prompt tokens in a batch that has room for a prompt. Fewer take about as long on most hardware. */
const FEWEST = 16
/** Larger chunks are multiples of this, because attention kernels work in tiles of 64 tokens; on the CPU only from 64 tokens on. */
const TILE = 64
/** The target for the gap between two tokens of a stream, in milliseconds, if the options set none. */
const AIM = 50
/** The longest gap in milliseconds if shorter ones would lose more than `MOST_LOST`. */
const WORTHWHILE = 250
/** The longest gap in milliseconds if a shorter one has no room for a whole tile of prompt tokens. */
const LONGEST = 1000
/** The share of a prompt's time that may be lost by computing it in chunks instead of whole batches. */
const MOST_LOST = 0.05
/** One in this many batches with prompts is a measurement: a quarter of a chunk, the slower way, or the streams alone. */
const PROBE_EVERY = 32
/** How many batches of streams alone are measured before the first one with prompts. The shortest time of these counts. */
const FIRST_PROBES = 2
/**
 * A chunk takes all waiting prompt tokens if they are at most this many times its size. A small rest would cost as much as a larger chunk.
 */
const REST = 4 / 3
/** Of every PROBE_EVERY choices between the two ways, the choice with this number takes the way that seems slower, to measure it. */
const FIRST_CHOICE = 8
/** In a batch with prompts and streams, the prompts count as at least this share of the time, however short the batch was. */
const LEAST_SHARE = 0.1

/** The measured time of batches with a certain number of streams. */
interface TurnPace {
  /** Running mean of the time of a batch without prompts. */
  readonly milliseconds: number
  /** How many batches without prompts were measured. */
  readonly probes: number
  /** How many batches with prompts and streams there were since the last one without prompts. */
  mixed: number
}

/**
 * The measured cost of prompt tokens in one of two ways: in batches of their own, or in one batch with streams. They add `each * (tokens +
 * extra)` milliseconds to the time of the streams. `extra` is the fixed cost of a chunk, in tokens. It is measured by a chunk of a quarter
 * of the size from time to time.
 */
class Way {
  /** Milliseconds per prompt token; null before the first measurement. */
  #each: number | null = null
  #extra = 0
  /** Number of chunks chosen so far, and the size of the last one if it was such a quarter. */
  #chunks = 0
  #quarter: number | null = null

  /** @param like a way that is measured earlier; its `extra` is the first estimate for this one */
  constructor(private readonly like: Way | null = null) {}

  /** Returns the milliseconds that these prompt tokens take; Infinity before the first measurement. */
  milliseconds(tokens: number): number {
    return (this.#each ?? Infinity) * (tokens + this.#extra)
  }

  /** Returns how many prompt tokens can be computed in this time. */
  #fitting(milliseconds: number): number {
    return milliseconds / (this.#each ?? Infinity) - this.#extra
  }

  /**
   * Returns the number of prompt tokens of the next chunk.
   * @param left the milliseconds that the chunk should take, that it may take if this saves throughput, and that it may take for a whole
   * tile
   * @param room the most tokens of the chunk
   * @param due how many prompt tokens wait
   */
  size([left, more, most]: readonly [number, number, number], room: number, due: number): number {
    if (this.#each === null) return FEWEST
    // The smallest size at which chunks lose at most MOST_LOST compared with whole batches, which cost `extra`, too: extra / size <=
    // MOST_LOST + (1 + MOST_LOST) * extra / room.
    const worthwhile = this.#extra / (MOST_LOST + ((1 + MOST_LOST) * this.#extra) / room)
    const longest = Math.min(Math.max(this.#fitting(more), Math.min(TILE, this.#fitting(most))), room)
    const best = Math.min(longest, Math.max(this.#fitting(left), TILE * Math.round(worthwhile / TILE), TILE))
    const size = best < TILE ? Math.max(FEWEST, FEWEST * Math.floor(best / FEWEST)) : TILE * Math.floor(best / TILE)
    return due > size && due <= Math.min(longest, REST * size) ? due : size
  }

  /** Returns `size` for the next chunk, or from time to time a quarter of it, to measure `extra`. */
  next(size: number): number {
    const every = this.#chunks < PROBE_EVERY ? PROBE_EVERY / 4 : PROBE_EVERY
    const isQuarter = this.#chunks++ % every === 2 && size >= TILE && size % TILE === 0
    this.#quarter = isQuarter ? size / 4 : null
    return this.#quarter ?? size
  }

  took(tokens: number, milliseconds: number): void {
    if (this.#each !== null && tokens === this.#quarter) {
      const size = 4 * tokens
      const whole = this.milliseconds(size)
      const share = Math.min(milliseconds / whole, 0.9)
      const extra = Math.max(0, (share * size - tokens) / (1 - share))
      this.#extra += (extra - this.#extra) / 2
      this.#each = whole / (size + this.#extra)
    } else if (tokens >= FEWEST) {
      if (this.#each === null) this.#extra = this.like === null ? 0 : this.like.#extra
      this.#each = followed(this.#each, milliseconds / (tokens + this.#extra))
    }
    this.#quarter = null
  }
}

/**
 * Chooses the content of batches while prompts wait beside streams. Prompt tokens are computed in one batch with the streams (`mixed`), or
 * in batches of their own (`apart`). `mixed` saves the fixed cost of a batch. `apart` is faster where attention passes over the cells of
 * all tokens of a tile, as on the CPU. All times are running means, so they adapt to depth, model and machine.
 */
export class PrefillBudget {
  /** The measured times of batches, by number of streams. */
  readonly #alone = new Map<number, TurnPace>()
  readonly #apart = new Way()
  readonly #mixed = new Way(this.#apart)
  readonly #gaps: readonly [number, number, number]
  /** How many choices between the two ways there were. */
  #choices = 0
  /** Whether the last batch had streams. If not, the next batch has only streams. */
  #streamed = false

  /**
   * @param room the most tokens of a batch
   * @param maxGap the most milliseconds between two tokens of a stream that prompts may cause. Default: 50, or up to 250 if shorter gaps
   * cost over 5 % of throughput, or up to 1000 for a chunk of 64 tokens
   */
  constructor(
    private readonly room: number,
    maxGap?: number,
  ) {
    this.#gaps = maxGap === undefined ? [AIM, WORTHWHILE, LONGEST] : [maxGap, maxGap, maxGap]
  }

  /**
   * Chooses the next batch, while prompts wait beside this many streams (at least one).
   * @param due how many prompt tokens wait
   */
  turn(streams: number, due: number): Turn {
    const alone = this.#alone.get(streams)
    const isProbe = alone === undefined || alone.probes < FIRST_PROBES || alone.mixed >= PROBE_EVERY
    if (isProbe || !this.#streamed) return { streams: true, prompt: 0 }
    const room = Math.max(FEWEST, this.room - streams)
    const left = this.#left(streams)
    const sizeOf = (way: Way) => way.size(left, room, due)
    const each = (way: Way) => way.milliseconds(sizeOf(way)) / sizeOf(way)
    const [better, other] = each(this.#mixed) < each(this.#apart) ? [this.#mixed, this.#apart] : [this.#apart, this.#mixed]
    const way = ++this.#choices % PROBE_EVERY === FIRST_CHOICE ? other : better
    return { streams: way === this.#mixed, prompt: way.next(sizeOf(better)) }
  }

  /** Returns how many prompt tokens the next batch may have if this many streams wait that cannot be in it. */
  apart(streams: number, due: number): number {
    return this.#apart.size(this.#left(streams), Math.max(FEWEST, this.room - streams), due)
  }

  /** Returns how many milliseconds each of the three gaps leaves for prompt tokens beside this many streams. */
  #left(streams: number): readonly [number, number, number] {
    const alone = this.#alone.get(streams)?.milliseconds ?? 0
    const [aim, more, most] = this.#gaps
    return [aim - alone, more - alone, most - alone]
  }

  /** Updates the measured times with a decoded batch. */
  took({ prompt, streams, milliseconds }: TurnTime): void {
    this.#streamed = streams > 0
    if (streams === 0) {
      this.#apart.took(prompt, milliseconds)
      return
    }
    const alone = this.#alone.get(streams)
    if (prompt === 0) {
      const { milliseconds: before = null, probes = 0 } = alone ?? {}
      const isFirst = probes < FIRST_PROBES && before !== null
      const mean = isFirst ? Math.min(before, milliseconds) : followed(before, milliseconds)
      this.#alone.set(streams, { milliseconds: mean, probes: probes + 1, mixed: 0 })
      return
    }
    if (alone === undefined) return
    alone.mixed++
    // By chance, a batch with prompts may be faster than one without. LEAST_SHARE keeps the cost above 0.
    this.#mixed.took(prompt, Math.max(milliseconds - alone.milliseconds, LEAST_SHARE * milliseconds))
  }
}

/** The result of a run. `shares` are those of its last decode, one per job. */
interface RanAhead {
  readonly status: DecodeStatus | 'failed'
  /** Why the last decode failed; null if the run did not fail. */
  readonly failure: unknown
  readonly shares: readonly BatchShare[]
  /** The tokens sampled after the last decode, one per share; empty unless `status` is `done`. */
  readonly drawn: Int32Array
  /** Jobs that cannot continue, each with the reason. */
  readonly errors: ReadonlyMap<Job, unknown>
}

interface RunAheadPorts {
  readonly context: NativeContext
  readonly cache: StepCache
  /** Called after each decoded and sampled batch, with its milliseconds. */
  readonly onStep: (milliseconds: number) => void
  /** Whether the next batch would have drafts. Then the run ends, because drafts need the scheduler's loop. */
  readonly hasDrafts: () => boolean
}

/**
 * Decodes and samples up to `steps` batches of these streams, one after another. The tokens of each batch are recorded and streamed in
 * order as they arrive. If `status` is `done`, the tokens of the last decode are recorded, but the tokens sampled after it (`drawn`) are
 * not given to the jobs yet.
 */
export async function runAhead(shares: readonly BatchShare[], steps: number, ports: RunAheadPorts): Promise<RanAhead> {
  const { context, cache, onStep, hasDrafts } = ports
  const jobs = shares.map(({ job }) => job)
  const errors = new Map<Job, unknown>()
  let current = shares
  const book = (milliseconds: number): void => {
    onStep(milliseconds)
    for (const { job, tokens } of current) cache.commit(job.step!, tokens, 'generated', milliseconds / jobs.length)
  }
  const follow = ({ tokens, milliseconds }: DrawnTokens): void => {
    for (const [step, elapsed] of milliseconds.entries()) {
      book(elapsed)
      const from = step * jobs.length
      current = current.map((share, at) => ({ ...share, tokens: tokens.slice(from + at, from + at + 1) }))
      for (const { job, tokens } of current) {
        try {
          if (!job.cancelled && !errors.has(job)) goOn(job, tokens[0]!)
        } catch (error) {
          errors.set(job, error)
          context.interrupt()
        }
      }
      if (hasDrafts()) context.interrupt()
    }
  }
  const { batch } = packed(shares)
  const run = {
    ...batch,
    samplers: jobs.map(({ sampler }) => sampler),
    limits: Int32Array.from(jobs, ({ left }) => left),
    steps,
  }
  let end: Pick<RunEnd, 'status' | 'drawn' | 'refused'> & { readonly failure: unknown }
  try {
    end = await context.generate(run, follow)
  } catch (failure) {
    return { status: 'failed', failure, shares: current, drawn: new Int32Array(), errors }
  }
  const { status, failure, drawn, refused } = end
  if (status !== 'done') {
    follow(drawn)
    return { status, failure, shares: current, drawn: new Int32Array(), errors }
  }
  const last = drawn.milliseconds.length - 1
  const before = last * jobs.length
  follow({ tokens: drawn.tokens.subarray(0, before), milliseconds: drawn.milliseconds.subarray(0, last) })
  book(drawn.milliseconds[last]!)
  for (const [at, error] of refused.entries()) if (error !== null) errors.set(jobs[at]!, error)
  return { status, failure, shares: current, drawn: drawn.tokens.subarray(before), errors }
}

/** Gives the job a token from within a run. Such a token never ends the answer, because the run would have ended with it. */
function goOn(job: Job, token: number): void {
  const step = job.step!
  job.firstToken ??= performance.now()
  const ended = job.take(token, null)
  invariant(ended === null, `an answer ended (${ended}) in the middle of a run`)
  job.phase = { name: 'decode', step, token }
}
