/** Owns what a run of histories comes to: totals, and the violations that count. */
import { emptyTally, type Tally, type Violation } from './judge.js'
import type { Verdict } from './run.js'

interface Found extends Violation {
  readonly seed: number
}

export interface Total {
  readonly tally: Tally
  readonly violations: readonly Found[]
  readonly told: string
  add(seed: number, verdict: Verdict): void
}

export function total(): Total {
  const tally = emptyTally()
  const violations: Found[] = []
  return {
    tally,
    violations,
    get told() {
      const { steps, exactSteps, restores, freeRestores, tokens, rounded } = tally
      return `${steps} steps, ${exactSteps} compared (${rounded} decode by decode), ${freeRestores} of ${restores} restores free, ${tokens} tokens, ${violations.length} violations`
    },
    add(seed, verdict) {
      for (const key of Object.keys(tally) as (keyof Tally)[]) tally[key] += verdict.tally[key]
      violations.push(...verdict.violations.map((each) => ({ seed, ...each })))
    },
  }
}

/** A line each. */
export function reported(violations: readonly Found[]): string[] {
  return violations.map(({ seed, at, property, what }) => `seed ${seed}, operation ${at}, ${property}: ${what}`)
}
