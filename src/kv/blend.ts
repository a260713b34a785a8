/** Owns the choice of tokens that contract `blend` computes again. */
import type { ConversationId } from '../core/ids.js'
import type { BlendChoice } from './contract.js'
import type { Part } from './part.js'
import type { Shown } from './shown.js'

/** How much each shown token attended to what was hidden; only the order counts. */
export type Scores = Float32Array

/** Where scores come from; whoever can look at attention implements it. */
export interface AttentionScores {
  /** One score a shown token, or null when there are none for this step. */
  of(conversation: ConversationId, shown: Shown): Scores | null
}

const DEFAULT: BlendChoice = { ratio: 0.2 }

/**
 * Which shown tokens to compute again; null when the step hides and restores nothing. Only tokens after the first change are considered,
 * because those before it are what they were.
 */
export function chooseAgain(
  { tokens, messages }: Shown,
  parts: readonly Part[],
  choice: BlendChoice,
  scores: Scores | null,
): Uint8Array | null {
  const [head] = parts
  const after = head?.kind === 'keep' && head.at === 0 ? parts.slice(1) : parts
  // What others lend is exact.
  const own = after.filter((part) => part.kind === 'keep' || (part.kind === 'borrow' && part.source === 'parked'))
  const stretches = own.map((part) => part.span)
  if (stretches.length === 0) return null
  const candidates = stretches.flatMap(({ start, end }) => Array.from({ length: end - start }, (_, offset) => start + offset))

  const { first = 0, messages: last = 0, ratio = 0 } = Object.keys(choice).length === 0 ? DEFAULT : choice
  const again = new Uint8Array(tokens.length)
  for (const { start, end } of stretches) again.fill(1, start, Math.min(end, start + first))
  // The last of `messages` is the answer to come.
  const from = messages[messages.length - 1 - last]?.span.start ?? 0
  if (last > 0) for (const at of candidates) if (at >= from) again[at] = 1
  const ranked = scores === null ? candidates : [...candidates].sort((a, b) => scores[b]! - scores[a]! || a - b)
  for (const at of ranked.slice(0, Math.round(ratio * candidates.length))) again[at] = 1
  return again
}
