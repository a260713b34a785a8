/** Owns what goes into a batch: the share of each job, and how many prompt tokens beside streams; and several turns of streams alone, run ahead of what follows from them. */
import { invariant } from '../core/errors.js'
import type { StepCache } from '../kv/step-cache.js'
import type { Seat } from '../kv/step.js'
import type { Batch, Watched, DecodeStatus, DrawnTokens, NativeContext, RunEnd } from '../native/types.js'
import type { Job } from './job.js'

// One job's share of a batch, and how shares are put into one.

/** The last token's logits are wanted when `output`. */
export interface BatchShare {
  readonly job: Job
  readonly tokens: Int32Array
  readonly what: 'prompt' | 'generated'
  readonly output: boolean
  /** Where the first of them goes. */
  readonly seat: Seat
}

/** Shares in one batch, in order. */
interface Packed {
  readonly batch: Batch
  /** Tokens of all of them. */
  readonly size: number
  /** At which token of the batch a share's logits are; those that want none are left out. */
  readonly outputs: ReadonlyMap<BatchShare, number>
  /** Where shares begin all of whose tokens have logits, because they are to be read. */
  readonly read: ReadonlyMap<BatchShare, number>
  /** What is looked at, of shares that are watched. */
  readonly watched: ReadonlyMap<BatchShare, Watched>
}

/** Tokens of a prompt at once that all have logits: those of a large vocabulary take a megabyte each. */
const MOST_READ = 64

const sizeOf = (shares: readonly BatchShare[]): number => shares.reduce((sum, { tokens }) => sum + tokens.length, 0)

/**
 * The next batch of at most `room` tokens: one of every stream, then prompts, those first that waited longest. Shares that find no cells wait.
 * @returns the shares, and whose found no cells
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
    // What the batch already holds needs its cells too: none of them is taken before the decode.
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
    const isRead = job.request.promptLogprobs !== undefined
    const chunk = cache.next(job.phase.step, isRead ? Math.min(room, MOST_READ) : room)
    invariant(chunk !== null, 'a prompt that is in was not decoded on')
    add({ job, tokens: chunk.tokens, what: 'prompt', output: chunk.last, seat: chunk })
  }
  return { shares, starved }
}

/** Arms the captures of watched jobs. */
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
    if (what === 'prompt' && job.request.promptLogprobs !== undefined) {
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
    batch.outputs[at - 1] = 1
    outputs.set(share, at - 1)
  }
  return { batch, size, outputs, read, watched }
}

// How many prompt tokens go into a batch beside streams, so that these wait no longer than they should between two tokens.

/** What a turn decoded and how long it took, from its batch to the last of its tokens on its way. */
interface TurnTime {
  readonly prompt: number
  /** Streams with a token in the batch. */
  readonly streams: number
  readonly milliseconds: number
}

/** A prompt always goes on by so many tokens: fewer take about as long on most hardware. */
const FEWEST = 16
/** A chunk is a multiple of this where it is larger: kernels work in tiles, and llama.cpp keeps the graph of a batch of the same size. */
const TILE = 16
/** Turns with prompts, until one without is due: only that tells what the streams take for themselves. */
const PROBE_EVERY = 32
/** Turns without prompts before the first one with them; the shortest counts. */
const FIRST_PROBES = 2
/** Weight of the last turn in a running mean, where it took longer and where it took less: noise only ever adds. */
const RISING = 0.3
const FALLING = 0.5
/** One turn raises an estimate as if it had taken so many times as long at most: a thread that lost its core says nothing about the next turn. */
const LARGEST_RISE = 2
/** Of a turn with prompts they take this share at least. */
const LEAST_SHARE = 0.1

/** What is known of turns with so many streams. */
interface TurnPace {
  /** A turn without prompts. */
  readonly milliseconds: number
  /** Such turns so far. */
  readonly probes: number
  /** Turns with prompts since the last one without. */
  mixed: number
}

/**
 * A turn with prompts takes what the streams' own tokens take, and a time for every prompt token. Both are running means over the last turns,
 * so they follow depth, model and machine. The first is measured by turns without prompts, which come by themselves or are asked for; the
 * second by those with prompts.
 */
export class PrefillBudget {
  /** By the number of streams. */
  readonly #alone = new Map<number, TurnPace>()
  /** Milliseconds a prompt token; null before the first. */
  #each: number | null = null

  /** @param maxGap milliseconds between two tokens of a stream */
  constructor(private readonly maxGap: number) {}

  /**
   * Prompt tokens for a batch that has a token of each of these streams, at least one stream. 0: this turn is to show what the streams take
   * alone, the next one has room for prompts.
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
      // Larger batches are cheaper a token; they serve until there is something better.
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
    // What a few tokens take is lost in the noise; and noise can make a turn shorter than one without prompts.
    if (prompt >= FEWEST)
      this.#each = follow(this.#each, Math.max(milliseconds - alone.milliseconds, LEAST_SHARE * milliseconds) / prompt)
  }
}

function follow(mean: number | null, value: number): number {
  if (mean === null) return value
  return value < mean ? mean + FALLING * (value - mean) : mean + RISING * (Math.min(value, mean * LARGEST_RISE) - mean)
}

/** How it ended: the shares of the last decode, one a job. */
interface RanAhead {
  readonly status: DecodeStatus | 'failed'
  /** Why the last decode failed. */
  readonly failure: unknown
  readonly shares: readonly BatchShare[]
  /** What was drawn after it, by share; empty where the status is not `done`. */
  readonly drawn: Int32Array
  /** Jobs that cannot go on, and why. */
  readonly errors: ReadonlyMap<Job, unknown>
}

interface RunAheadPorts {
  readonly context: NativeContext
  readonly cache: StepCache
  /** A step was decoded and sampled in so many milliseconds. */
  readonly onStep: (milliseconds: number) => void
}

/**
 * Every step is booked and streamed in order as it is heard of. Tokens of the last decode are in the books if its status is `done`; what was
 * drawn after it was given to nobody.
 */
export async function runAhead(shares: readonly BatchShare[], steps: number, ports: RunAheadPorts): Promise<RanAhead> {
  const { context, cache, onStep } = ports
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

/** A token that was drawn in the middle of a run: nothing ends with it. */
function goOn(job: Job, token: number): void {
  const step = job.step!
  job.firstToken ??= performance.now()
  const ended = job.take(token, null)
  invariant(ended === null, `an answer ended (${ended}) in the middle of a run`)
  job.phase = { name: 'decode', step, token }
}
