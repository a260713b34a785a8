/** Owns which contexts are studied: those asked for, or the longest that the machine gets through in time; and those only predicted. */
import { KvfoldError } from '../../core/errors.js'
import { paperFigure6 } from '../paper.js'
import type { CostModel } from '../../kv/cost-model.js'
import { checkPoint, MARKER, type Point } from './scenario.js'
import { expected, schedule } from './schedule.js'

/** Tokens before and after a fold. */
export type Context = Pick<Point, 'before' | 'after'>

/** What the paper's sentence about cost is about (section 4.4): 85.2K tokens that become 20.3K. */
export const PAPER: Context = (() => {
  const { before, after } = paperFigure6.tasks.find(({ task }) => task === 'needles')!
  return { before, after }
})()

/** As much shorter as the paper's. */
export const foldedLike = (before: number): number => Math.round((before * PAPER.after) / PAPER.before)

/** What limits the choice. */
export interface Limits {
  readonly cost: CostModel
  readonly shares: readonly number[]
  readonly rounds: number
  readonly generated: number
  readonly blend: number
  /** Milliseconds that the study may take. */
  readonly budget: number
  /** Tokens the model was trained on; null: nobody knows. */
  readonly trained: number | null
  /** Bytes of memory for the cache. */
  readonly memory: number
}

/** Shorter contexts say little. */
const SHORTEST = 512

export const pointsOf = (contexts: readonly Context[], shares: readonly number[]): Point[] =>
  contexts.flatMap((context) => shares.map((share) => ({ ...context, share })))

/** The paper's context, or the half, a quarter ... of it: the longest that is expected to be measured in time, and for which there is room. */
export function longest(limits: Limits): Context {
  const { cost, shares, trained, memory, budget, generated } = limits
  const candidates: Context[] = []
  for (let { before } = PAPER; before >= SHORTEST; before = Math.round(before / 2))
    candidates.push({ before, after: foldedLike(before) })
  const fits = ({ before, after }: Context): boolean =>
    (trained === null || before + generated + MARKER <= trained) && (before + after) * cost.host.bytesPerCell <= memory
  const inTime = (context: Context): boolean =>
    expected(cost, schedule({ points: pointsOf([context], shares), rounds: limits.rounds }), limits).reduce((a, b) => a + b, 0) <=
    budget
  const possible = candidates.filter(fits)
  const found = possible.find(inTime) ?? possible.at(-1)
  if (found !== undefined) return found
  throw new KvfoldError('cli/bad-usage', `The model's context of ${trained ?? 0} tokens is too short for this study.`)
}

/** Longer ones up to the paper's, each twice as long as the one before. */
export function longer(than: number): Context[] {
  const found: Context[] = []
  for (let { before } = PAPER; before > 1.2 * than; before = Math.round(before / 2))
    found.unshift({ before, after: foldedLike(before) })
  return found
}

/** @throws KvfoldError cli/bad-usage for contexts that cannot be folded so, or are longer than the model was trained for */
export function checkContext(context: Context, { trained, generated }: Pick<Limits, 'trained' | 'generated'>): void {
  checkPoint({ ...context, share: 0 })
  if (trained !== null && context.before + generated + MARKER > trained)
    throw new KvfoldError(
      'cli/bad-usage',
      `${context.before} tokens, and ${generated + MARKER} for answer and marker, are more than the ${trained} that the model was trained on; give a shorter --before.`,
    )
}
