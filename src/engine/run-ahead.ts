/** Owns several turns of streams alone that are decoded and sampled without a look at them in between, and what follows from them meanwhile. */
import { invariant } from '../core/errors.js'
import type { StepCache } from '../kv/cache.js'
import type { DecodeStatus, Drawn, NativeContext, RunEnd } from '../native/types.js'
import type { Job } from './job.js'
import { packed, type Share } from './batch.js'

/** How it ended: the shares of the last decode, one a job. */
export interface RanAhead {
  readonly status: DecodeStatus | 'failed'
  /** Why the last decode failed. */
  readonly failure: unknown
  readonly shares: readonly Share[]
  /** What was drawn after it, by share; empty where the status is not `done`. */
  readonly drawn: Int32Array
  /** Jobs that cannot go on, and why. */
  readonly errors: ReadonlyMap<Job, unknown>
}

export interface RunAheadPorts {
  readonly context: NativeContext
  readonly cache: StepCache
  /** A step was decoded and sampled in so many milliseconds. */
  readonly onStep: (milliseconds: number) => void
}

/**
 * Every step is booked and streamed in order as it is heard of. Tokens of the last decode are in the books if its status is `done`; what was
 * drawn after it was given to nobody.
 */
export async function runAhead(shares: readonly Share[], steps: number, ports: RunAheadPorts): Promise<RanAhead> {
  const { context, cache, onStep } = ports
  const jobs = shares.map(({ job }) => job)
  const errors = new Map<Job, unknown>()
  let current = shares
  const book = (milliseconds: number): void => {
    onStep(milliseconds)
    for (const { job, tokens } of current) cache.commit(job.step!, tokens, 'generated', milliseconds / jobs.length)
  }
  const follow = ({ tokens, milliseconds }: Drawn): void => {
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
