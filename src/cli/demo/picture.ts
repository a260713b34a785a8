/** Owns how a step's account becomes the stretches of a strip: who fared how, in the order of the sequence, folded text at its place. */
import type { Share, Stretch } from '../strip.js'
import { joined } from '../strip.js'

/** What a message's tokens were come by; `waiting` ones are still to be computed. In tokens. */
export interface MessageShares {
  /** Index of the message in the conversation. */
  readonly index: number
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  readonly waiting?: number
}

/** Hidden text: `offset` tokens of its message are shown before its marker, `hidden` tokens are not shown, `marker` stand for them. */
export interface FoldedPlace {
  readonly message: number
  readonly offset: number
  readonly marker: number
  readonly hidden: number
}

/**
 * The context as stretches. Under contract `exact` reused tokens come first in every message. Computed ones follow: what is new in an
 * edited message stands at its first marker (the ledger counts what lies between the first and the last change as new), what was shown
 * before around it; without markers new tokens come last, because messages grow at their end.
 */
export function picture(messages: readonly MessageShares[], folded: readonly FoldedPlace[]): Stretch[] {
  return joined(
    messages.flatMap((message) => {
      const places = folded.filter((place) => place.message === message.index).sort((a, b) => a.offset - b.offset)
      return withHidden(shown(message, places[0]), places)
    }),
  )
}

function shown({ reused, recomputed, fresh, waiting = 0 }: MessageShares, first: FoldedPlace | undefined): Stretch[] {
  const ahead = first === undefined ? recomputed : Math.min(recomputed, Math.max(0, first.offset - reused))
  return [
    { share: 'reused', tokens: reused },
    { share: 'recomputed', tokens: ahead },
    { share: 'new', tokens: fresh },
    { share: 'recomputed', tokens: recomputed - ahead },
    { share: 'waiting', tokens: waiting },
  ]
}

/** The message's stretches with a folded one after each marker. */
function withHidden(stretches: readonly Stretch[], places: readonly FoldedPlace[]): Stretch[] {
  const result: Stretch[] = []
  const queue = places.map(({ offset, marker, hidden }) => ({ at: offset + marker, hidden }))
  let at = 0
  for (const { share, tokens } of stretches) {
    let left = tokens
    while (queue[0] !== undefined && queue[0].at <= at + left) {
      const { at: place, hidden } = queue.shift()!
      const before = Math.max(0, place - at)
      result.push({ share, tokens: before }, { share: 'folded', tokens: hidden })
      at += before
      left -= before
    }
    result.push({ share, tokens: left })
    at += left
  }
  for (const { hidden } of queue) result.push({ share: 'folded', tokens: hidden })
  return result
}

/**
 * A step under way: of messages with these sizes the first `reused` tokens are there, `done` more have been computed, the rest waits.
 * Messages before `known` were shown by the last step, so computing them is computing again; the ledger has the exact account later.
 */
export function underWay(
  sizes: readonly { readonly index: number; readonly tokens: number }[],
  reused: number,
  done: number,
  known: number,
): MessageShares[] {
  let there = reused
  let computed = done
  return sizes.map(({ index, tokens }) => {
    const kept = Math.min(there, tokens)
    const made = Math.min(computed, tokens - kept)
    there -= kept
    computed -= made
    const again = index < known
    return { index, reused: kept, recomputed: again ? made : 0, fresh: again ? 0 : made, waiting: tokens - kept - made }
  })
}

/** Tokens of one share. */
export const tokensOf = (stretches: readonly Stretch[], share: Share): number =>
  stretches.reduce((sum, stretch) => sum + (stretch.share === share ? stretch.tokens : 0), 0)
