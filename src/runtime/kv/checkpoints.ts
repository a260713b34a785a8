/** Chooses where in a prompt checkpoints are saved, and finds them: saved states of sequences that can only be extended. */
import { steady } from '../core/clock.js'
import { type OffloadedSequence, offloadRecordOf, type OffloadTiers } from './offload.js'
import type { SequenceTable } from './sequence-table.js'
import type { HeldSequence, Sequence } from './sequence.js'
import { commonPrefix, isMarker, type Prompt, sourceIdsOf, sourcePlace } from './prompt.js'

/**
 * Returns the prompt indices, ascending, at which the state is saved while the prompt is computed:
 *
 * - where the answer begins, because the next step most likely differs from there on. The answer is generated again, or a template strips
 *   its reasoning;
 * - in a bare completion, before its last token, so that it can be continued in another way;
 * - where each edited message begins, because an edited message is likely to be edited again, or restored;
 * - where the system message ends, because other conversations begin with the same system message.
 */
export function checkpointPlaces(prompt: Prompt): number[] {
  const { tokens, messages } = prompt
  const keys = sourceIdsOf(prompt)
  const isEdited = (start: number, end: number) => {
    for (let at = start; at < end; at++)
      if (isMarker(keys[at]!) || sourcePlace(keys[at]!) > (at === 0 ? 0 : sourcePlace(keys[at - 1]!) + 1)) return true
    return false
  }
  const [first, second] = messages
  const answer = messages.at(-1)?.span.start ?? 0
  const places = [
    answer === 0 ? tokens.length - 1 : answer,
    ...messages.filter(({ span: { start, end } }) => isEdited(start, end)).map(({ span }) => span.start),
    ...(first?.role === 'system' && second !== undefined ? [second.span.start] : []),
  ]
  return [...new Set(places)].filter((place) => place > 0 && place < tokens.length).sort((a, b) => a - b)
}

/**
 * Saves and finds checkpoints. They are kept in the offload tiers, which drop those of least benefit when they are full (tier-policy.ts).
 */
export class Checkpoints {
  constructor(
    private readonly table: Pick<SequenceTable, 'save'>,
    private readonly offload: OffloadTiers,
  ) {}

  /** Saves the sequence's state, unless the same state is saved already. Returns false when no state can be kept. */
  save(sequence: Sequence): boolean {
    const { offload, table } = this
    const { held, tokens } = sequence
    if (!offload.open || held === 0) return false
    const alike = offload.all.filter((stored) => stored.held === held && commonPrefix(stored.tokens, tokens) === held)
    // `isFresh` rejects another tenant's state: it is useless here, and this tenant must not learn that it exists.
    const text = sequence.freshText(tokens)
    const same = alike.find((stored) => stored.isFresh(held - 1, held - 1, text))
    if (same !== undefined) {
      same.lastUse = steady.now()
      return true
    }
    const state = table.save(sequence)
    return state !== null && offload.put(offloadRecordOf(sequence), state)
  }

  /**
   * Returns the longest checkpoint that holds a beginning of these tokens, but not all of them. Of equals, it takes the conversation's own,
   * then the latest used. Returns null when none is longer than `least`.
   */
  before(
    tokens: Int32Array,
    least: number,
    own: Pick<Sequence, 'conversation' | 'freshText'>,
    without?: ReadonlyMap<HeldSequence, string>,
  ): OffloadedSequence | null {
    const fitting = this.offload.all.filter(({ held }) => held > least && held < tokens.length)
    if (fitting.length === 0) return null
    const { conversation } = own
    const text = own.freshText(tokens)
    let best: OffloadedSequence | null = null
    for (const stored of fitting) {
      const { held } = stored
      const better =
        best === null ||
        held > best.held ||
        (held === best.held && best.conversation !== conversation && stored.conversation === conversation)
      // The last hash covers the hashes before it. Compare the tokens nevertheless, because a wrong state would give a wrong answer.
      if (!better || without?.has(stored) === true || !stored.isFresh(held - 1, held - 1, text)) continue
      if (commonPrefix(stored.tokens, tokens) === held) best = stored
    }
    return best
  }
}
