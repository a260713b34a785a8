/** Owns what an edit will cost and save, before it is made. */
import type { Contract } from '../core/contract.js'
import { length } from '../core/span.js'
import { booksTime, decodeTime, hostTime, prefillTime, type CostModel, type ComputedRun } from './cost-model.js'
import { type Plan, turnedIn } from './plan/plan.js'

/** What a step would do to the cache. */
export interface Prospect {
  readonly asked: Contract
  /** What it would keep to. */
  readonly contract: Contract
  readonly fallback: string | null
  readonly runs: readonly ComputedRun[]
  /** Tokens shown afterwards. */
  readonly shown: number
  /** Cells that are parked, borrowed or given up. */
  readonly moved: number
  /** Cells that are copied to other positions. */
  readonly turned: number
  /** Cells in use afterwards, by whomever, parked ones included. */
  readonly cells: number
  /** Positions used up afterwards. */
  readonly positions: number
}

/** What the plan would do, made for a live sequence that holds `held` tokens. `cells`: in use once it begins, and in the end. */
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
      // A plan ends with a computed part.
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
  /** Until the first token can be sampled. */
  readonly milliseconds: number
  readonly cellsAfter: number
  readonly positionsAfter: number
  /** Milliseconds for one generated token afterwards. */
  readonly perToken: number
  /** Milliseconds that each generated token takes less than without the edit; negative when it takes more. */
  readonly savingPerToken: number
  /** Generated tokens after which the edit has paid for itself; 0: at once; null: never. */
  readonly breakEven: number | null
}

/** What `edited` costs and saves against going on without the edit. */
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
 * Milliseconds that the plan will take until the first token can be sampled; null without a model of the machine's costs.
 * @param used cells in use, by whomever
 */
export const predictedTime = (model: CostModel | null, plan: Plan, held: number, used: number): number | null =>
  model === null ? null : timeOf(model, prospectOf(plan, held, { before: used, after: used }))

/**
 * Milliseconds until the first token can be sampled: books, copies to other positions (their way out and back; not the pass over the keys) and
 * prompt. A lone token is computed as generated ones are.
 */
export function timeOf(model: CostModel, { runs, shown, moved, turned }: Prospect): number {
  const { save, load } = hostTime(model, turned)
  const before = booksTime(model, { shown, moved }) + save + load
  return runs.reduce((sum, run) => sum + (run.tokens === 1 ? decodeTime(model, run) : prefillTime(model, run)), before)
}

const tokenTime = (model: CostModel, { shown, cells }: Prospect): number => decodeTime(model, { attended: shown, cells })
