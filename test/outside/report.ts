/** Owns what a run of histories comes to: totals, and the violations that count. */
import type { Property, Tally, Violation } from './judge.js'
import type { Verdict } from './run.js'

/** Properties that are known not to hold yet; KVFOLD_OUTSIDE_ALL counts them, too. */
const PENDING: readonly Property[] = ['computed', 'restore']

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
  const tally: Tally = { steps: 0, exactSteps: 0, restores: 0, freeRestores: 0, tokens: 0 }
  const violations: Found[] = []
  return {
    tally,
    violations,
    get told() {
      const { steps, exactSteps, restores, freeRestores, tokens } = tally
      return `${steps} steps, ${exactSteps} compared, ${freeRestores} of ${restores} restores free, ${tokens} tokens, ${violations.length} violations`
    },
    add(seed, verdict) {
      for (const key of Object.keys(tally) as (keyof Tally)[]) tally[key] += verdict.tally[key]
      violations.push(...verdict.violations.map((each) => ({ seed, ...each })))
    },
  }
}

/** A line each, of those that count. */
export function reported(violations: readonly Found[]): string[] {
  const all = process.env['KVFOLD_OUTSIDE_ALL'] !== undefined
  return violations
    .filter(({ property }) => all || !PENDING.includes(property))
    .map(({ seed, at, property, what }) => `seed ${seed}, operation ${at}, ${property}: ${what}`)
}
