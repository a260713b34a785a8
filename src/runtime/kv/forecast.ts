/** Predicts the cost and the saving of an edit before it is made. */
import type { Contract } from '../core/contract.js'
import { length } from '../core/span.js'
import { booksTime, decodeTime, hostTime, prefillTime, type CostModel, type ComputedRun } from './cost-model.js'
import { type Plan, turnedIn } from './plan/plan.js'

/** The effects that a step would have on the cache. */
export interface Prospect {
  readonly asked: Contract
  /** The contract that the step would keep. */
  readonly contract: Contract
  readonly fallback: string | null
  readonly runs: readonly ComputedRun[]
  /** Number of tokens that the step shows. */
  readonly shown: number
  /** Number of cells that the step parks, borrows or drops. */
  readonly moved: number
  /** Number of cells that the step copies to other positions. */
  readonly turned: number
  /** Number of cells that all sequences use after the step, parked ones included. */
  readonly cells: number
  /** Number of positions that the live sequence has used up after the step. */
  readonly positions: number
}

/**
 * Returns the effects of a plan.
 * @param held number of tokens in the live sequence before the plan is carried out
 * @param cells number of cells in use before the step, and after it
 */
export function prospectOf(plan: Plan, held: number, cells: { readonly before: number; readonly after: number }): Prospect {
  const runs: ComputedRun[] = []
  let used = cells.before
  let positions = 0
  let kept = 0
  let borrowed = 0
  for (const part of plan.parts) {
    const tokens = length(part.span)
    if (part.kind === 'keep') kept += tokens
    else if (part.kind === 'borrow' || part.kind === 'turn') borrowed += tokens
    else {
      runs.push({ tokens, attended: part.span.start, cells: used })
      used += tokens
      // The last part of a plan is computed, so this ends as the position after the prompt.
      positions = part.position + tokens
    }
  }
  const { asked, contract, fallback, prompt } = plan
  const moved = Math.max(0, held - kept) + borrowed
  return {
    asked,
    contract,
    fallback,
    runs,
    shown: prompt.tokens.length,
    moved,
    turned: turnedIn(plan),
    cells: cells.after,
    positions,
  }
}

export interface Forecast {
  readonly asked: Contract
  readonly contract: Contract
  readonly fallback: string | null
  readonly computeTokens: number
  /** Milliseconds until the first token can be sampled. */
  readonly milliseconds: number
  readonly cellsAfter: number
  readonly positionsAfter: number
  /** Milliseconds for each token that is generated after the edit. */
  readonly perToken: number
  /** Milliseconds that the edit saves per generated token; negative when it costs time. */
  readonly savingPerToken: number
  /** Number of generated tokens after which the edit has saved its cost. 0: at once. Null: never. */
  readonly breakEven: number | null
}

/** Returns the cost and saving of an edit. `edited` and `unedited` are the effects of the next step with and without it. */
export function forecast(model: CostModel, unedited: Prospect, edited: Prospect): Forecast {
  const { asked, contract, fallback, runs, cells, positions } = edited
  const milliseconds = timeOf(model, edited)
  const perToken = tokenTime(model, edited)
  const extra = milliseconds - timeOf(model, unedited)
  const savingPerToken = tokenTime(model, unedited) - perToken
  return {
    asked,
    contract,
    fallback,
    computeTokens: runs.reduce((sum, { tokens }) => sum + tokens, 0),
    milliseconds,
    cellsAfter: cells,
    positionsAfter: positions,
    perToken,
    savingPerToken,
    breakEven: extra <= 0 ? 0 : savingPerToken > 0 ? Math.ceil(extra / savingPerToken) : null,
  }
}

/**
 * Returns the milliseconds that the plan will take until the first token can be sampled; null without a cost model.
 * @param used cells in use, by all sequences
 */
export const predictedTime = (model: CostModel | null, plan: Plan, held: number, used: number): number | null =>
  model === null ? null : timeOf(model, prospectOf(plan, held, { before: used, after: used }))

/**
 * Returns the milliseconds until the first token can be sampled: for bookkeeping, copies to other positions, and the prompt. A copied cell
 * is saved and loaded once; rotating its key is not counted. A token that is computed alone costs as much as a generated one.
 */
export function timeOf(model: CostModel, { runs, shown, moved, turned }: Prospect): number {
  const { save, load } = hostTime(model, turned)
  const before = booksTime(model, { shown, moved }) + save + load
  return runs.reduce((sum, run) => sum + (run.tokens === 1 ? decodeTime(model, run) : prefillTime(model, run)), before)
}

const tokenTime = (model: CostModel, { shown, cells }: Prospect): number => decodeTime(model, { attended: shown, cells })
