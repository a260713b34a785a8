/** Adds drafts to the shares of a batch. */
import type { BatchShare } from './batch.js'
import type { DraftingStream, Speculation } from './speculation.js'

/**
 * Adds drafts to the shares of streams. Returns the same shares if nothing is drafted.
 * @param room the most tokens of the batch, including those of `shares`
 */
export async function withDrafts(
  shares: readonly BatchShare[],
  speculation: Speculation,
  room: number,
): Promise<readonly BatchShare[]> {
  const streams = draftingStreams(shares, room)
  const drafts = streams === null ? null : speculation.choose(streams)
  if (streams === null || drafts === null) return shares
  const proposals = await speculation.propose(streams, drafts)
  return shares.map((share, at) => {
    const proposed = proposals[at]!
    if (proposed.length === 0) return share
    const tokens = new Int32Array(1 + proposed.length)
    tokens.set(share.tokens)
    tokens.set(proposed, 1)
    return { ...share, tokens, drafted: proposed.length }
  })
}

/**
 * Returns the streams of these shares, null for each that cannot draft; null altogether if none can. The rest of `room` is divided equally.
 */
export function draftingStreams(shares: readonly BatchShare[], room: number): readonly (DraftingStream | null)[] | null {
  const each = Math.floor((room - shares.length) / Math.max(1, shares.length))
  if (each < 1 || shares.some(({ what }) => what === 'prompt')) return null
  const streams = shares.map(({ job: { drafter, left } }) =>
    // The last token of the answer is sampled but never decoded, so there is one row less than tokens left.
    drafter === null || left < 2 ? null : { drafter, room: Math.min(each, left - 1) },
  )
  return streams.some((stream) => stream !== null) ? streams : null
}
