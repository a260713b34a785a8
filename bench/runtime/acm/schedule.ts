/** Owns what is studied and measured: contexts before and after a fold, the arms of a turn from there, in which order, and how long it will take as far as the calibrated model knows. Pure. */
import { type Contract, CONTRACTS } from '../../../src/runtime/core/contract.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Random } from '../../../src/runtime/core/random.js'
import { span } from '../../../src/runtime/core/span.js'
import { type CostModel, decodeTime, prefillTime } from '../../../src/runtime/kv/cost-model.js'
import { dryRun } from '../../../src/runtime/kv/dry-run.js'
import { type Prospect, timeOf } from '../../../src/runtime/kv/forecast.js'
import { EXACT, type StepContract } from '../../../src/runtime/kv/plan/parts.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { paperFigure6 } from '../../../src/lab/paper.js'
import { type CostLine, total } from './line.js'

/** One thing to do. The text only grows: turns are timed while it is as long as their point's `before`. */
export type TimedTask =
  | { readonly kind: 'fill'; readonly from: number; readonly to: number }
  /** Generating after so many tokens, with nothing else in use. */
  | { readonly kind: 'depth'; readonly tokens: number }
  /** A small turn that does not count: the first of a kind runs code that was not compiled yet. */
  | { readonly kind: 'warm-up'; readonly point: Point; readonly way: Arm }
  | { readonly kind: 'turn'; readonly round: number; readonly point: Point; readonly way: Arm }

/** Tokens that a fold of a warm-up leaves. */
const SMALL = 64

interface ScheduleOptions {
  readonly points: readonly Point[]
  readonly rounds: number
}

/**
 * Fills up to every depth once. At each, every round has every way once at every point of that depth, beginning with another way each time,
 * so that a load that comes and goes meets all of them alike.
 */
export function schedule({ points, rounds }: ScheduleOptions): TimedTask[] {
  const longest = Math.max(...points.map(({ before }) => before))
  const depths = new Set([
    Math.ceil(longest / 8),
    Math.ceil(longest / 2),
    ...points.flatMap(({ before, after }) => [before, after]),
  ])
  let from = 0
  return [...depths]
    .sort((a, b) => a - b)
    .flatMap((to): TimedTask[] => {
      const here = points.filter(({ before }) => before === to)
      const turns = Array.from({ length: rounds }, (_, round) =>
        here.flatMap((point) =>
          ARMS.map((_, index): TimedTask => ({ kind: 'turn', round, point, way: ARMS[(index + round) % ARMS.length]! })),
        ),
      ).flat()
      const small = { before: to, after: SMALL, share: 0.5 }
      const warmUps = ARMS.map((way): TimedTask => ({ kind: 'warm-up', point: small, way }))
      const tasks: TimedTask[] = [
        { kind: 'fill', from, to },
        ...(from === 0 && to >= 2 * SMALL ? warmUps : []),
        { kind: 'depth', tokens: to },
        ...turns,
      ]
      from = to
      return tasks
    })
}

/** Milliseconds each task is expected to take. */
export function expected(
  model: CostModel,
  tasks: readonly TimedTask[],
  { generated, blend }: { readonly generated: number; readonly blend: number },
): number[] {
  const known = new Map<Point, ReturnType<typeof predictLines>>()
  const linesOf = (point: Point) => {
    const lines = known.get(point) ?? predictLines(model, point, blend)
    known.set(point, lines)
    return lines
  }
  return tasks.map((task) => {
    switch (task.kind) {
      case 'fill':
        return prefillTime(model, { tokens: task.to - task.from, attended: task.from, cells: task.from })
      case 'depth':
        return (generated + 2) * decodeTime(model, { attended: task.tokens, cells: task.tokens })
      case 'warm-up':
      case 'turn': {
        const { before } = task.point
        // Before the clock starts the text's last token is decoded once more.
        return decodeTime(model, { attended: before, cells: before }) + total(linesOf(task.point)[task.way], generated)
      }
    }
  })
}

// What a calibrated model expects of the study's situations, by the real planner and without computing anything.

/** One line a way. */
export type CostLines = Readonly<Record<Arm, CostLine>>

/** What every way would do to a cache that holds the whole text; positions are not limited, as if the model had been trained on them. */
export function prospects(point: Point, blend: number): Readonly<Record<Arm, Prospect>> {
  // Which tokens they are does not matter, only that they are different ones.
  const text = Int32Array.from({ length: point.before }, (_, index) => index)
  const marker = Int32Array.from({ length: MARKER }, (_, index) => point.before + index)
  const prospectOf = (way: Arm): Prospect => {
    const prompt = way === 'keep' ? open(text) : folded(text, point, marker)
    const steps = [
      { prompt: open(text), terms: termsOf('keep', blend) },
      { prompt, terms: termsOf(way, blend) },
    ]
    return dryRun(steps, { cells: point.before + point.after + 2 * MARKER, sequences: 8 })[1]!
  }
  return Object.fromEntries(ARMS.map((way) => [way, prospectOf(way)])) as Record<Arm, Prospect>
}

/** What the model expects of every way. */
export function predictLines(model: CostModel, point: Point, blend: number): CostLines {
  const all = prospects(point, blend)
  const { attended, scanned } = model.decode.rates
  const lineOf = (way: Arm): CostLine => {
    const { shown, cells } = all[way]
    return {
      first: timeOf(model, all[way]),
      perToken: decodeTime(model, { attended: shown, cells }),
      growth: attended + scanned,
    }
  }
  return Object.fromEntries(ARMS.map((way) => [way, lineOf(way)])) as Record<Arm, CostLine>
}

/** Tokens before and after a fold. */
export type FoldSizes = Pick<Point, 'before' | 'after'>

/** What the paper's sentence about cost is about (section 4.4): 85.2K tokens that become 20.3K. */
export const PAPER: FoldSizes = (() => {
  const { before, after } = paperFigure6.tasks.find(({ task }) => task === 'needles')!
  return { before, after }
})()

/** As much shorter as the paper's. */
export const foldedLike = (before: number): number => Math.round((before * PAPER.after) / PAPER.before)

/** What limits the choice. */
export interface ScheduleLimits {
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

export const pointsOf = (contexts: readonly FoldSizes[], shares: readonly number[]): Point[] =>
  contexts.flatMap((context) => shares.map((share) => ({ ...context, share })))

/** The paper's context, or the half, a quarter ... of it: the longest that is expected to be measured in time, and for which there is room. */
export function longest(limits: ScheduleLimits): FoldSizes {
  const { cost, shares, trained, memory, budget, generated } = limits
  const candidates: FoldSizes[] = []
  for (let { before } = PAPER; before >= SHORTEST; before = Math.round(before / 2))
    candidates.push({ before, after: foldedLike(before) })
  const fits = ({ before, after }: FoldSizes): boolean =>
    (trained === null || before + generated + MARKER <= trained) && (before + after) * cost.host.bytesPerCell <= memory
  const inTime = (context: FoldSizes): boolean =>
    expected(cost, schedule({ points: pointsOf([context], shares), rounds: limits.rounds }), limits).reduce((a, b) => a + b, 0) <=
    budget
  const possible = candidates.filter(fits)
  const found = possible.find(inTime) ?? possible.at(-1)
  if (found !== undefined) return found
  throw new KvfoldError('cli/bad-usage', `The model's context of ${trained ?? 0} tokens is too short for this study.`)
}

/** Longer ones up to the paper's, each twice as long as the one before. */
export function longer(than: number): FoldSizes[] {
  const found: FoldSizes[] = []
  for (let { before } = PAPER; before > 1.2 * than; before = Math.round(before / 2))
    found.unshift({ before, after: foldedLike(before) })
  return found
}

/** @throws KvfoldError cli/bad-usage for contexts that cannot be folded so, or are longer than the model was trained for */
export function checkContext(context: FoldSizes, { trained, generated }: Pick<ScheduleLimits, 'trained' | 'generated'>): void {
  checkPoint({ ...context, share: 0 })
  if (trained !== null && context.before + generated + MARKER > trained)
    throw new KvfoldError(
      'cli/bad-usage',
      `${context.before} tokens, and ${generated + MARKER} for answer and marker, are more than the ${trained} that the model was trained on; give a shorter --before.`,
    )
}

// What is studied: a long context, all cached, the same after a fold, and the arms of a turn from there.

// The situation that is studied: a long context, all cached, and the same after a fold, as token lists.

/** Tokens before and after the fold. */
export interface Point {
  readonly before: number
  readonly after: number
  /** Share (0..1) of what is still shown that stands before the fold; what follows it is computed again under `exact`. */
  readonly share: number
}

/** Tokens shown instead of what is folded: about as many as kvfold's own markers take. */
export const MARKER = 20

/** So many random tokens, for times do not depend on what a text says; a longer one of the same seed begins with it. */
export function randomText(length: number, vocabulary: number, seed: number): Int32Array {
  const random = new Random(seed)
  return Int32Array.from({ length }, () => random.below(vocabulary))
}

/** The whole text, nothing folded. */
export const open = (text: Int32Array): Prompt => ({ tokens: text, messages: asOne(text.length) })

/** The text with one fold, so that as many tokens are left as the point says, the marker's included. */
export function folded(text: Int32Array, point: Point, marker: Int32Array): Prompt {
  const { start, end } = holeOf(point, marker.length)
  const tokens = new Int32Array(point.after)
  tokens.set(text.subarray(0, start))
  tokens.set(marker, start)
  tokens.set(text.subarray(end), start + marker.length)
  return {
    tokens,
    messages: asOne(tokens.length),
    origin: { base: text, holes: [{ span: span(start, end), marker: marker.length }] },
  }
}

/** What is folded, half-open. At least one token follows: a turn always ends with what is asked. */
function holeOf({ before, after, share }: Point, marker: number): { readonly start: number; readonly end: number } {
  const left = after - marker
  const start = Math.min(left - 1, Math.round(share * left))
  return { start, end: before - (left - start) }
}

/** @throws KvfoldError cli/bad-usage where nothing would be folded, or nothing left */
function checkPoint({ before, after }: Point): void {
  if (after < MARKER + 2)
    throw new KvfoldError('cli/bad-usage', `Nothing is left of a context folded to ${after} tokens; give ${MARKER + 2} at least.`)
  if (before < after + MARKER)
    throw new KvfoldError(
      'cli/bad-usage',
      `A fold from ${before} to ${after} tokens hides less than its marker of ${MARKER}; give a longer context before, or a shorter one after.`,
    )
}

const asOne = (length: number) => [{ index: 0, role: 'text', span: span(0, length) }]

// The alternatives of a turn: go on with the long context, or fold it under a contract.

/** `keep`: nothing is folded, and all of it is cached. */
export type Arm = 'keep' | Contract

export const ARMS: readonly Arm[] = ['keep', ...CONTRACTS]

/** `blend`: the share of what follows the fold that it computes again. */
export function termsOf(way: Arm, blend: number): StepContract {
  if (way === 'keep') return EXACT
  return way === 'blend' ? { contract: way, blend: { ratio: blend } } : { contract: way }
}
