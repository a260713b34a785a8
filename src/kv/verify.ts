/** Owns the last look at a plan before it is carried out: a wrong one would be a wrong cache, not only a slow one. */
import { invariant } from '../core/errors.js'
import { Sequence } from './holding.js'
import { positionAfter } from './part.js'
import type { Plan } from './plan.js'
import { commonPrefix } from './prefix.js'

/**
 * The parts cover what is shown; what is reused is on the device, of the same tokens, in order of position and, under `exact`, what a fresh
 * prefill would make it; what is computed follows on the position before it.
 */
export function verifyPlan(sequence: Sequence, { parts, shown, contract }: Plan, isHeld: (sequence: Sequence) => boolean): void {
  const { tokens } = shown
  const of = `the plan for conversation ${sequence.conversation}`
  const fresh = contract === 'exact' ? sequence.freshHashes(tokens) : null
  let at = 0
  let position = 0
  for (const part of parts) {
    const { start, end } = part.span
    invariant(start === at && end > start, `${of} does not add up to what it shows`)
    at = end
    if (part.kind === 'compute') {
      invariant(part.position === position, `${of} leaves a gap that llama.cpp cannot make`)
      position += end - start
      continue
    }
    const holder = part.kind === 'keep' ? sequence : part.from
    invariant(holder instanceof Sequence && isHeld(holder), `${of} borrows from a sequence that is not on the device`)
    const same = commonPrefix(holder.tokens.subarray(part.at), tokens.subarray(start, end)) === end - start
    invariant(same, `${of} would reuse cells of other tokens`)
    invariant(holder.position(part.at) >= position, `${of} would reuse cells out of order`)
    position = positionAfter(sequence, part)
    for (let place = start; fresh !== null && place < end; place++)
      invariant(holder.isFresh(part.at + place - start, place, tokens, fresh), `${of} would pass approximate cells off as exact`)
  }
  invariant(at === tokens.length && parts.at(-1)?.kind === 'compute', `${of} does not end with a token to compute`)
}
