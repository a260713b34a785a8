/** Owns the choice of tokens that contract `blend` computes again. */
import type { ConversationId } from '../core/ids.js'
import { span, type Span } from '../core/span.js'
import type { BlendChoice } from './contract.js'
import type { HeldSequence } from './holder.js'
import type { Part } from './part.js'
import { tokenSource, type Prompt } from './shown.js'

/** How much each shown token attended to what was hidden; only the order counts. */
export type Scores = Float32Array

/** Where scores come from; whoever can look at attention implements it. */
export interface AttentionScores {
  /** One score a shown token, or null when there are none for this step. */
  of(conversation: ConversationId, shown: Prompt): Scores | null
}

const DEFAULT: BlendChoice = { ratio: 0.2 }

/**
 * Which shown tokens to compute again; null when the step hides nothing that was visible to what follows it. Only approximate tokens after the
 * first text that this step hides are considered: what is exact cannot become better, and a restore takes what was there.
 *
 * @param parts those of a splice
 * @param exact tokens at the beginning that these parts show as a fresh prefill would make them
 */
export function chooseAgain(
  sequence: HeldSequence,
  shown: Prompt,
  parts: readonly Part[],
  exact: number,
  choice: BlendChoice,
  scores: Scores | null,
): Uint8Array | null {
  const { tokens, messages } = shown
  const from = Math.max(exact, firstHidden(sequence, shown, parts))
  const stretches = parts.flatMap(({ kind, span: { start, end } }): Span[] =>
    kind === 'compute' || end <= from ? [] : [span(Math.max(start, from), end)],
  )
  if (stretches.length === 0) return null
  const candidates = stretches.flatMap(({ start, end }) => Array.from({ length: end - start }, (_, offset) => start + offset))

  const { first = 0, messages: last = 0, ratio = 0 } = Object.keys(choice).length === 0 ? DEFAULT : choice
  const again = new Uint8Array(tokens.length)
  for (const { start, end } of stretches) again.fill(1, start, Math.min(end, start + first))
  // The last of `messages` is the answer to come.
  const answered = messages[messages.length - 1 - last]?.span.start ?? 0
  if (last > 0) for (const at of candidates) if (at >= answered) again[at] = 1
  const ranked = scores === null ? candidates : [...candidates].sort((a, b) => scores[b]! - scores[a]! || a - b)
  for (const at of ranked.slice(0, Math.round(ratio * candidates.length))) again[at] = 1
  return again
}

/** The first shown place behind a hole whose text whoever holds that place still holds; beyond the text where there is none. */
function firstHidden(sequence: HeldSequence, { tokens, origin }: Prompt, parts: readonly Part[]): number {
  let hidden = 0
  for (const { span: hole, marker } of origin?.holes ?? []) {
    const place = hole.start - hidden + marker
    hidden += hole.end - hole.start - marker
    const next = parts.find(({ kind, span: of }) => kind !== 'compute' && of.end > place)
    if (next === undefined || next.kind === 'compute') break
    const holder = next.kind === 'keep' ? sequence : next.from
    if (holder.atKey(tokenSource(hole.start)) < holder.atKey(tokenSource(hole.end))) return place
  }
  return tokens.length
}
