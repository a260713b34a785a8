/** One job's share of a batch, and how shares are put into one. */
import type { Seat } from '../kv/step.js'
import type { Batch, Watched } from '../native/types.js'
import type { Job } from './job.js'

/** The last token's logits are wanted when `output`. */
export interface Share {
  readonly job: Job
  readonly tokens: Int32Array
  readonly what: 'prompt' | 'generated'
  readonly output: boolean
  /** Where the first of them goes. */
  readonly seat: Seat
}

/** Shares in one batch, in order. */
export interface Packed {
  readonly batch: Batch
  /** Tokens of all of them. */
  readonly size: number
  /** At which token of the batch a share's logits are; those that want none are left out. */
  readonly outputs: ReadonlyMap<Share, number>
  /** What is looked at, of shares that are watched. */
  readonly watched: ReadonlyMap<Share, Watched>
}

export const sizeOf = (shares: readonly Share[]): number => shares.reduce((sum, { tokens }) => sum + tokens.length, 0)

/** Arms the captures of watched jobs. */
export function packed(shares: readonly Share[]): Packed {
  const size = sizeOf(shares)
  const batch = {
    tokens: new Int32Array(size),
    positions: new Int32Array(size),
    sequences: new Int32Array(size),
    outputs: new Uint8Array(size),
  }
  const outputs = new Map<Share, number>()
  const watched = new Map<Share, Watched>()
  let at = 0
  for (const share of shares) {
    const { job, seat, what, tokens } = share
    const watching = job.watch?.watched({ at, count: tokens.length, what, seat }, job.step!.sequence) ?? null
    if (watching !== null) watched.set(share, watching)
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
  return { batch, size, outputs, watched }
}
