/** Plans how a live sequence gets the tokens that a step shows: which cells stay, which are borrowed, and which tokens are computed. */
import type { Contract } from '../../core/contract.js'
import { invariant } from '../../core/errors.js'
import { length, span, type Span } from '../../core/span.js'
import { chooseRepair, type Repair } from './blend.js'
import {
  exactBeginning,
  exactIn,
  type Lenders,
  type Part,
  positionAfter,
  stricter,
  type StepContract,
  turnOf,
  withComputed,
  withRest,
} from './parts.js'
import { commonPrefix, type Prompt, sourceIdsOf } from '../prompt.js'
import { type HeldSequence, Sequence } from '../sequence.js'
import { type Placing, splicedParts, type SplicedParts } from './splice.js'
import { type LatestView, latestView } from '../views.js'

/** How a step is carried out. A plan is valid until the cache changes, so nothing may change it between planning and beginning. */
export interface Plan {
  readonly prompt: Prompt
  readonly sourceIds: Int32Array
  /** The contract that was asked for. */
  readonly asked: Contract
  /** The contract that the step keeps. */
  readonly contract: Contract
  /** Why `contract` differs from `asked`; null when it does not. */
  readonly fallback: string | null
  /** In order; they cover all shown tokens. The last part is always computed, because a step needs the logits of its last token. */
  readonly parts: readonly Part[]
  /** 1 if all shown tokens are held already, so that the last one is decoded only for its logits. */
  readonly redecoded: 0 | 1
  /** Number of tokens from the first approximate one to the end of the prompt. */
  readonly approximate: number
  /** The view that showed the longest beginning of the prompt. Null or absent when `exact` was asked for or no view showed any of it. */
  readonly last?: LatestView | null
  /** Which held tokens are computed again because `blend` chose them. */
  readonly repair?: Repair
  /** Stored sequences that could not be loaded, each with the reason. */
  readonly without?: ReadonlyMap<HeldSequence, string>
  /** The shown tokens from this prompt index on are computed, even if they are held (StepContract.recomputeFrom). */
  readonly recomputeFrom?: number
}

export interface PlanOptions {
  readonly terms: StepContract
  /**
   * Number of positions that the model was trained on. A splice that would go beyond them closes its gaps instead. If it cannot, the step
   * falls back to `exact`, whose positions have no gaps.
   */
  readonly positions?: number
  /** Why cells cannot be turned to other positions; null if they can. */
  readonly fixed: string | null
}

/** Number of tokens to decode: those of all `compute` parts. */
export const computedIn = ({ parts }: Pick<Plan, 'parts'>): number =>
  parts.reduce((sum, part) => sum + (part.kind === 'compute' ? length(part.span) : 0), 0)

/** Number of tokens that are reused, including a last token that is only decoded again for its logits. */
export const reusedIn = (plan: Pick<Plan, 'parts' | 'redecoded' | 'prompt'>): number =>
  plan.prompt.tokens.length - computedIn(plan) + plan.redecoded

/** Number of tokens whose cells are copies turned to other positions. */
export const turnedIn = ({ parts }: Pick<Plan, 'parts'>): number =>
  parts.reduce((sum, part) => sum + (part.kind === 'turn' ? length(part.span) : 0), 0)

/**
 * Number of tokens for which the plan uses other approximate cells than the conversation last showed, although the text before them is the
 * same. Must be called before the plan is carried out, because that changes the entries that it compares.
 */
export function replacedIn(sequence: HeldSequence, { parts, prompt, approximate, last = null }: Plan): number {
  if (last === null || approximate === 0) return 0
  const { view, places } = last
  const from = prompt.tokens.length - approximate
  let count = 0
  for (const part of parts) {
    if (part.kind === 'compute') continue
    const { start, end } = part.span
    const holder = part.kind === 'keep' ? sequence : part.from
    for (let place = Math.max(start, from); place < Math.min(end, places); place++)
      if (part.kind === 'turn' || holder.cellWord(part.at + place - start) !== view.cellWord(place)) count++
  }
  return count
}

/** The sequences that must stay until the plan has begun: the live sequence, and those that the plan borrows or copies from. */
export const neededBy = (sequence: HeldSequence, { parts }: Pick<Plan, 'parts'>): ReadonlySet<HeldSequence> =>
  new Set([sequence, ...parts.flatMap((part) => (part.kind === 'borrow' || part.kind === 'turn' ? [part.from] : []))])

/** The prompt spans that the live sequence holds when the plan begins: all that are not computed. */
export const spansHeld = ({ parts }: Plan): Span[] => parts.flatMap((part) => (part.kind === 'compute' ? [] : [part.span]))

/** Whether the plan needs a scratch sequence: it computes tokens in the middle of the live sequence, or turns cells. */
export const needsScratch = ({ parts }: Pick<Plan, 'parts'>): boolean =>
  parts.slice(0, -1).some(({ kind }) => kind === 'compute' || kind === 'turn')

/**
 * Plans `prompt`, which must not be empty, for `sequence`. Changes nothing.
 *
 * `exact` reuses the longest beginning that exact cells of any sequences can make up. `splice` reuses that beginning, too. Behind it, it
 * reuses the conversation's own cells with the same source id. They stay at their positions as long as these ascend; copies of the others
 * are turned to other positions. Missing tokens are computed at the positions right after the token before them. `blend` also computes some
 * of the reused tokens again.
 *
 * For any contract but `exact` it also makes the exact plan, and returns that one if it is no worse (`leastOf`).
 */
export function planStep(sequence: Sequence, prompt: Prompt, lenders: Lenders, options: PlanOptions): Plan {
  const { terms, positions = Infinity, fixed } = options
  invariant(prompt.tokens.length > 0, `conversation ${sequence.conversation} was given an empty prompt`)
  const { tokens } = prompt
  const asked = contractOf(prompt, terms)
  const keys = sourceIdsOf(prompt)
  const text = sequence.freshText(tokens)
  const { recomputeFrom = tokens.length } = terms
  let repair: Repair | null = null
  const last = asked === 'exact' ? null : latestView([sequence, ...lenders.views], prompt, keys)
  const planned = (contract: Contract, { parts, redecoded = 0, blocked = 0 }: CandidateParts): PlanCandidate => {
    const isWatched = recomputeFrom < tokens.length
    const whole = withLast(sequence, computedFrom(sequence, parts, recomputeFrom))
    const approximate = tokens.length - exactIn(sequence, whole.parts, text)
    const why = {
      ...(terms.recomputeFrom === undefined ? {} : { recomputeFrom }),
      ...(contract === 'blend' && repair !== null ? { repair } : {}),
    }
    const common = { prompt, sourceIds: keys, asked, contract, fallback: null, last }
    return { ...common, ...whole, ...(redecoded === 1 && !isWatched ? { redecoded } : {}), approximate, blocked, ...why }
  }
  const beginning = exactBeginning(sequence, text, lenders)
  const exact = planned('exact', { parts: withRest(beginning, tokens) })
  if (asked === 'exact') return exact

  const placed = (placing: Placing) =>
    splicedParts(sequence, prompt, keys, beginning, lenders.parked, last, repair?.places ?? null, placing)
  const placing = fixed === null ? 'turn' : 'stay'
  if (asked === 'blend') {
    const { parts } = placed(placing)
    const known = Math.max(exactIn(sequence, parts, text), last?.places ?? 0)
    repair = chooseRepair(sequence, prompt, parts, known, lenders, terms.blend ?? {})
    if (repair?.isTooMuch === true) {
      const { count, decodes, tail } = repair
      return {
        ...exact,
        fallback: `it would compute ${count} of ${tail} tokens behind the hidden text again, in ${decodes === 1 ? 'one decode' : `${decodes} decodes`}; exact computes all of them at once`,
      }
    }
  }
  const wanted = planned(asked, placed(placing))
  const end = endOf(wanted)
  const gaps = end - tokens.length
  if (fixed === null && isShort(end, gaps, positions))
    return leastOf(planned(asked, { ...placed('close'), blocked: 0 }), exact, fixed)
  if (end > positions && gaps > 0)
    return {
      ...exact,
      fallback: `the step would end at position ${end} of the ${positions} that the model was trained on, and its gaps cannot be closed because ${fixed ?? ''}`,
    }
  return leastOf(wanted, exact, fixed)
}

/**
 * The share of the trained positions that should stay free for the answer. If less is free, gaps are closed, provided that they take at
 * least this share themselves.
 */
const RESERVE = 1 / 8

/**
 * Whether the gaps must be closed because the model's trained positions run out.
 * @param end the position of the answer's first token
 * @param gaps number of positions without a cell
 * @param positions number of positions that the model was trained on
 */
const isShort = (end: number, gaps: number, positions: number): boolean =>
  gaps > 0 && (end > positions || (end > (1 - RESERVE) * positions && gaps >= RESERVE * positions))

/** A plan, and how many of its computed tokens are held, but at positions where they cannot stay (`blocked`). */
type PlanCandidate = Plan & { readonly blocked: number }

type CandidateParts = Pick<SplicedParts, 'parts'> & Partial<SplicedParts>

/**
 * Chooses between the plan for the asked contract and the exact one. The plan with fewer computed tokens wins; of equals, the plan with
 * fewer approximate tokens. If both plans are equal in that, too, the asked contract wins, unless cells were blocked.
 */
function leastOf(wanted: PlanCandidate, exact: PlanCandidate, fixed: string | null): Plan {
  const more = computedIn(wanted) - computedIn(exact) || wanted.approximate - exact.approximate || (wanted.blocked > 0 ? 1 : -1)
  if (more < 0) return wanted
  const fallback =
    wanted.blocked > 0
      ? `the prompt needs more positions than are free there (a longer marker than the hidden text, or closed gaps); no cells can move, because ${fixed ?? ''}`
      : `it would compute as much as exact does, and exact leaves nothing approximate`
  return { ...exact, fallback }
}

/**
 * Returns the strictest contract that the prompt's edits ask for. An edit without a contract asks for the step's contract, and so does a
 * prompt without edits. The result depends only on the prompt and the terms, so a cancelled step does not change the next one.
 */
function contractOf({ origin }: Prompt, { contract }: StepContract): Contract {
  const [first, ...rest] = (origin?.holes ?? []).map((hole) => hole.contract ?? contract)
  return first === undefined ? contract : rest.reduce(stricter, first)
}

/** Returns the position right after the last part; 0 if that part is not computed. */
function endOf({ parts }: Plan): number {
  const last = parts.at(-1)
  return last?.kind === 'compute' ? last.position + length(last.span) : 0
}

/** Returns the parts with every token from prompt index `recomputeFrom` on computed, at the positions right after the token before it. */
function computedFrom(sequence: Sequence, parts: readonly Part[], recomputeFrom: number): readonly Part[] {
  const end = parts.at(-1)?.span.end ?? 0
  if (recomputeFrom >= end) return parts
  const before = parts
    .filter((part) => part.span.start < recomputeFrom)
    .map((part) => ({ ...part, span: span(part.span.start, Math.min(part.span.end, recomputeFrom)) }))
  return withComputed(before, span(recomputeFrom, end), positionAfter(sequence, before.at(-1)))
}

/** Returns the parts with the last token computed, even if it is held. Then `redecoded` is 1. */
function withLast(sequence: Sequence, parts: readonly Part[]): Pick<Plan, 'parts' | 'redecoded'> {
  const last = parts.at(-1)
  invariant(last !== undefined, 'a plan has no parts')
  if (last.kind === 'compute') return { parts, redecoded: 0 }
  const { start, end } = last.span
  const before = end - start > 1 ? [...parts.slice(0, -1), { ...last, span: span(start, end - 1) }] : parts.slice(0, -1)
  return { parts: withComputed(before, span(end - 1, end), positionAfter(sequence, before.at(-1))), redecoded: 1 }
}

/** If `redecoded` is 1 and the last part computes only the last token, returns the plan with `redecoded` set to 1; else the same plan. */
export function withRedecoded(plan: Plan, redecoded: 0 | 1): Plan {
  const last = plan.parts.at(-1)
  return redecoded === 1 && last?.kind === 'compute' && length(last.span) === 1 ? { ...plan, redecoded } : plan
}

// Verifies a plan before it is carried out, because a wrong plan would corrupt the cache.

/**
 * Checks a plan:
 *
 * - The parts cover the prompt, and the last one is computed.
 * - Reused cells are on the device, have the same tokens, ascend in position and, under `exact`, are exact.
 * - A computed part begins at the position right after the part before it.
 * - The cells of a turned part have consecutive positions, before and after the move.
 *
 * @throws KvfoldError internal/invariant
 */
export function verifyPlan(sequence: Sequence, { parts, prompt, contract }: Plan, isHeld: (sequence: Sequence) => boolean): void {
  const { tokens } = prompt
  const of = `the plan for conversation ${sequence.conversation}`
  const text = sequence.freshText(tokens)
  let at = 0
  let position = 0
  for (const part of parts) {
    const { start, end } = part.span
    invariant(start === at && end > start, `${of} does not cover its prompt without gaps`)
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
    invariant(
      (part.kind === 'turn' ? part.position : holder.position(part.at)) >= position,
      `${of} would reuse cells out of order`,
    )
    position = positionAfter(sequence, part)
    if (part.kind === 'turn') {
      const last = part.at + end - start - 1
      invariant(holder.position(last) + turnOf(part) + 1 === position, `${of} would move cells by different distances at once`)
    }
    const isExact = contract !== 'exact' || (part.kind !== 'turn' && holder.freshRun(part.at, start, end, text) === end - start)
    invariant(isExact, `${of} would pass approximate cells off as exact`)
  }
  invariant(at === tokens.length && parts.at(-1)?.kind === 'compute', `${of} does not end with a token to compute`)
}
