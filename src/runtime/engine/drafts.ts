/** Adds drafts to the shares of a batch. */
import type { BatchShare } from './batch.js'
import type { DraftingStream, Speculation } from './speculation.js'

/**
 * Adds drafts to the shares of streams. Returns the shares as they are if there is nothing to draft.
 * @param room the most tokens of the batch, these shares' own included
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

/** The streams of these shares; null if nothing can be drafted. All streams share the room that is left (`withDrafts`). */
export function draftingStreams(shares: readonly BatchShare[], room: number): readonly (DraftingStream | null)[] | null {
  const each = Math.floor((room - shares.length) / Math.max(1, shares.length))
  if (each < 1 || shares.some(({ what }) => what === 'prompt')) return null
  const streams = shares.map(({ job: { drafter, left } }) =>
    // The last token that may be sampled is never submitted.
    drafter === null || left < 2 ? null : { drafter, room: Math.min(each, left - 1) },
  )
  return streams.some((stream) => stream !== null) ? streams : null
}
