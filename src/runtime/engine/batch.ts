/**
 * Composes batches: each job's share, and how many prompt tokens go in beside streams. Also runs several turns of streams ahead of the
 * loop.
 */
import { invariant } from '../core/errors.js'
import type { StepCache } from '../kv/step-cache.js'
import type { WritePosition } from '../kv/step.js'
import type { Batch, Watched, DecodeStatus, DrawnTokens, NativeContext, RunEnd } from '../native/types.js'
import type { Job } from './job.js'

// The share of one job in a batch, and how shares are packed into one batch.

/** One job's tokens in a batch. `output`: the logits of the last token are needed. */
export interface BatchShare {
  readonly job: Job
  readonly tokens: Int32Array
  readonly what: 'prompt' | 'generated'
  readonly output: boolean
  /** How many of the tokens, the last ones, are drafted (speculation.ts). Then the logits of all are needed. Default 0. */
  readonly drafted?: number
  /** The position and the sequence of the first token. */
  readonly seat: WritePosition
}

/** Shares in one batch, in order. */
interface Packed {
  readonly batch: Batch
  /** How many tokens all shares have together. */
  readonly size: number
  /** The batch index of the first token whose logits a share needs. Shares that need none are left out. */
  readonly outputs: ReadonlyMap<BatchShare, number>
  /** The batch index where a share begins, for shares that need the logits of all their tokens (`promptLogprobs`). */
  readonly read: ReadonlyMap<BatchShare, number>
  /** The attention to capture, for shares of watched jobs. */
  readonly watched: ReadonlyMap<BatchShare, Watched>
}

/** The most prompt tokens with logits in a batch: with a large vocabulary the logits of one token take a megabyte. */
const MOST_READ = 64

const sizeOf = (shares: readonly BatchShare[]): number => shares.reduce((sum, { tokens }) => sum + tokens.length, 0)

/**
 * Composes the next batch of at most `room` tokens: one token of every stream, then prompts, those that waited longest first. Shares that
 * find no cells wait.
 * @returns the shares, and the jobs that found no cells
 */
export function composed(
  jobs: readonly Job[],
  cache: StepCache,
  room: number,
  budget: PrefillBudget,
): { readonly shares: BatchShare[]; readonly starved: readonly Job[] } {
  const shares: BatchShare[] = []
  const starved: Job[] = []
  const add = (share: BatchShare): void => {
    // Ask for the cells of the whole batch so far, because none of them is taken before the decode.
    if (cache.reserve(sizeOf(shares) + share.tokens.length).kind === 'full') starved.push(share.job)
    else {
      shares.push(share)
      room -= share.tokens.length
    }
  }
  for (const job of jobs) {
    if (job.phase.name === 'decode' && room > 0)
      add({
        job,
        tokens: Int32Array.of(job.phase.token),
        what: 'generated',
        output: true,
        seat: cache.seat(job.phase.step),
      })
  }
  const streams = shares.length
  const isPromptDue = jobs.some(({ phase }) => phase.name === 'prefill')
  if (streams > 0 && isPromptDue) room = Math.min(budget.tokens(streams), room)
  for (const job of [...jobs].sort((a, b) => a.served - b.served)) {
    if (job.phase.name !== 'prefill' || room === 0) continue
    const isRead = job.asked.promptLogprobs !== undefined
    const chunk = cache.next(job.phase.step, isRead ? Math.min(room, MOST_READ) : room)
    invariant(chunk !== null, 'a job still prefills although its whole prompt is in the cache')
    add({ job, tokens: chunk.tokens, what: 'prompt', output: chunk.last, seat: chunk })
  }
  return { shares, starved }
}

/** Packs the shares into one batch, and starts the capture of watched jobs. */
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

// How many prompt tokens go into a batch beside streams, so that the gap between two tokens of a stream stays within `maxGap`.

/** The tokens of a turn and its time: from before the decode until its tokens were sampled and streamed. */
interface TurnTime {
  readonly prompt: number
  /** How many streams have a token in the batch. */
  readonly streams: number
  readonly milliseconds: number
}

/** Every turn with room for a prompt takes at least this many of its tokens: fewer take about as long on most hardware. */
const FEWEST = 16
/** Larger chunks are multiples of this: kernels work in tiles, and llama.cpp keeps the graph of a batch of the same size. */
const TILE = 16
/** After this many turns with prompts comes one without, because only such a turn measures the time of the streams alone. */
const PROBE_EVERY = 32
/** How many turns without prompts come before the first one with them. The shortest of these counts. */
const FIRST_PROBES = 2
/** Weight of the last turn in a running mean: `RISING` if it took longer than the mean, `FALLING` if less. Noise only ever adds time. */
const RISING = 0.3
const FALLING = 0.5
/**
 * One turn raises an estimate at most as if it had taken this many times as long. A thread that lost its core says nothing about the next
 * turn.
 */
const LARGEST_RISE = 2
/** The prompt's share of the time of a turn that has prompts and streams counts as at least this. */
const LEAST_SHARE = 0.1

/** The measured time of turns with a given number of streams. */
interface TurnPace {
  /** Running mean of the time of a turn without prompts. */
  readonly milliseconds: number
  /** How many such turns were measured. */
  readonly probes: number
  /** How many turns with prompts there were since the last one without. */
  mixed: number
}

/**
 * A turn with prompts takes the time of the streams' own tokens, and a time for each prompt token. Both are running means, so they follow
 * depth, model and machine. Turns without prompts measure the first; they occur by themselves or are asked for. Turns with prompts measure
 * the second.
 */
export class PrefillBudget {
  /** The pace of turns, by the number of streams. */
  readonly #alone = new Map<number, TurnPace>()
  /** Milliseconds per prompt token; null before the first measurement. */
  #each: number | null = null

  /** @param maxGap milliseconds between two tokens of a stream */
  constructor(private readonly maxGap: number) {}

  /**
   * How many prompt tokens may go into a batch that has a token of each of these streams; there is at least one stream. Returns 0 when this
   * turn must measure the streams alone; the next turn has room for prompts.
   */
  tokens(streams: number): number {
    const alone = this.#alone.get(streams)
    if (alone === undefined || alone.probes < FIRST_PROBES || alone.mixed >= PROBE_EVERY) return 0
    if (this.#each === null) return FEWEST
    const budget = (this.maxGap - alone.milliseconds) / this.#each
    return budget < 2 * TILE ? Math.max(FEWEST, Math.floor(budget)) : TILE * Math.floor(budget / TILE)
  }

  /** Learns from a turn that was decoded. */
  took({ prompt, streams, milliseconds }: TurnTime): void {
    if (streams === 0) {
      // Without streams batches are larger, so this time per token is too low. It serves until a mixed turn has been measured.
      if (prompt >= FEWEST) this.#each ??= milliseconds / prompt
      return
    }
    const alone = this.#alone.get(streams)
    if (prompt === 0) {
      const { milliseconds: before = null, probes = 0 } = alone ?? {}
      const isFirst = probes < FIRST_PROBES && before !== null
      const mean = isFirst ? Math.min(before, milliseconds) : follow(before, milliseconds)
      this.#alone.set(streams, { milliseconds: mean, probes: probes + 1, mixed: 0 })
      return
    }
    if (alone === undefined) return
    alone.mixed++
    // The time of a few tokens is lost in the noise. Noise can also make a turn with prompts shorter than one without.
    if (prompt >= FEWEST)
      this.#each = follow(this.#each, Math.max(milliseconds - alone.milliseconds, LEAST_SHARE * milliseconds) / prompt)
  }
}

function follow(mean: number | null, value: number): number {
  if (mean === null) return value
  return value < mean ? mean + FALLING * (value - mean) : mean + RISING * (Math.min(value, mean * LARGEST_RISE) - mean)
}

/** How a run ended. `shares` are those of its last decode, one for each job. */
interface RanAhead {
  readonly status: DecodeStatus | 'failed'
  /** Why the last decode failed; null if the run did not fail. */
  readonly failure: unknown
  readonly shares: readonly BatchShare[]
  /** The tokens sampled after the last decode, by share; empty unless `status` is `done`. */
  readonly drawn: Int32Array
  /** Jobs that cannot continue, and why. */
  readonly errors: ReadonlyMap<Job, unknown>
}

interface RunAheadPorts {
  readonly context: NativeContext
  readonly cache: StepCache
  /** Called when a step was decoded and sampled, with the milliseconds it took. */
  readonly onStep: (milliseconds: number) => void
  /** Returns whether the run must end, because the next turn would have drafts. */
  readonly hasDrafts: () => boolean
}

/**
 * Decodes and samples up to `steps` turns of these streams. Every turn is recorded and streamed in order as its tokens arrive. If `status`
 * is `done`, the tokens of the last decode are recorded; their jobs do not have the tokens sampled after it yet.
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
    return { status: 'failed', failure, shares, drawn: new Int32Array(), errors }
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

/** Gives the job a token from the middle of a run; such a token never ends the answer. */
function goOn(job: Job, token: number): void {
  const step = job.step!
  job.firstToken ??= performance.now()
  const ended = job.take(token, null)
  invariant(ended === null, `an answer ended (${ended}) in the middle of a run`)
  job.phase = { name: 'decode', step, token }
}
