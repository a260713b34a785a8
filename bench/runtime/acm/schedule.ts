/**
 * Decides what the study measures: contexts before and after a fold, the ways to take a turn, their order, and how long it will take by the
 * calibrated model. Pure.
 */
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

/** One task. The text only grows: a point's turns are timed while the text has the point's `before` tokens. */
export type TimedTask =
  | { readonly kind: 'fill'; readonly from: number; readonly to: number }
  /** Generates behind this many tokens, with no other cells in use. */
  | { readonly kind: 'depth'; readonly tokens: number }
  /** A small turn that is not counted. The first turn of each kind runs JavaScript that is not compiled yet. */
  | { readonly kind: 'warm-up'; readonly point: Point; readonly way: Arm }
  | { readonly kind: 'turn'; readonly round: number; readonly point: Point; readonly way: Arm }

/** Tokens that a warm-up's fold leaves. */
const SMALL = 64

interface ScheduleOptions {
  readonly points: readonly Point[]
  readonly rounds: number
}

/**
 * Fills the text to each depth once. At a depth, each round runs every way once at each point of that depth. Each round begins with a
 * different way, so that a passing load on the machine affects all ways alike.
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

/** Returns the milliseconds that each task is expected to take. */
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
        // The stopwatch decodes the text's last token once more before it starts the clock.
        return decodeTime(model, { attended: before, cells: before }) + total(linesOf(task.point)[task.way], generated)
      }
    }
  })
}

// Below: what a calibrated model predicts for the study's situations. It asks the real planner, and computes nothing.

/** One line per way of taking the turn. */
export type CostLines = Readonly<Record<Arm, CostLine>>

/**
 * Returns what each way would do to a cache that holds the whole text. Positions are not limited, as if the model had been trained on them.
 */
export function prospects(point: Point, blend: number): Readonly<Record<Arm, Prospect>> {
  // The tokens only need to differ from each other.
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

/** Returns the predicted line for each way. */
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

/** Token counts before and after a fold. */
export type FoldSizes = Pick<Point, 'before' | 'after'>

/** The sizes in the paper's sentence about cost (section 4.4): 85.2K tokens that become 20.3K. */
export const PAPER: FoldSizes = (() => {
  const { before, after } = paperFigure6.tasks.find(({ task }) => task === 'needles')!
  return { before, after }
})()

/** Returns the size after a fold that shortens the text by the paper's ratio. */
export const foldedLike = (before: number): number => Math.round((before * PAPER.after) / PAPER.before)

/** The limits for the choice of points. */
export interface ScheduleLimits {
  readonly cost: CostModel
  readonly shares: readonly number[]
  readonly rounds: number
  readonly generated: number
  readonly blend: number
  /** Milliseconds that the study may take. */
  readonly budget: number
  /** Tokens of context on which the model was trained; null if unknown. */
  readonly trained: number | null
  /** Bytes of memory for the cache. */
  readonly memory: number
}

/** The shortest context worth measuring, in tokens. */
const SHORTEST = 512

export const pointsOf = (contexts: readonly FoldSizes[], shares: readonly number[]): Point[] =>
  contexts.flatMap((context) => shares.map((share) => ({ ...context, share })))

/**
 * Returns the paper's context or half, a quarter, ... of it: the longest that fits into the memory and can be measured within the budget.
 */
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

/** Returns longer contexts up to the paper's, each twice as long as the one before. */
export function longer(than: number): FoldSizes[] {
  const found: FoldSizes[] = []
  for (let { before } = PAPER; before > 1.2 * than; before = Math.round(before / 2))
    found.unshift({ before, after: foldedLike(before) })
  return found
}

/** @throws KvfoldError cli/bad-usage for contexts that cannot be folded like this, or that exceed the model's training context */
export function checkContext(context: FoldSizes, { trained, generated }: Pick<ScheduleLimits, 'trained' | 'generated'>): void {
  checkPoint({ ...context, share: 0 })
  if (trained !== null && context.before + generated + MARKER > trained)
    throw new KvfoldError(
      'cli/bad-usage',
      `${context.before} tokens, and ${generated + MARKER} for answer and marker, are more than the ${trained} that the model was trained on; give a shorter --before.`,
    )
}

// Below: the study's situation as token lists: a long context, fully cached, and the same context after a fold.

/** Tokens before and after the fold. */
export interface Point {
  readonly before: number
  readonly after: number
  /** The share (0 to 1) of the remaining text that precedes the fold. `exact` computes again what follows the fold. */
  readonly share: number
}

/** Tokens of the marker, about as many as kvfold's own markers have. */
export const MARKER = 20

/**
 * Returns this many random tokens; times do not depend on a text's content. With the same seed, a longer text begins with the shorter one.
 */
export function randomText(length: number, vocabulary: number, seed: number): Int32Array {
  const random = new Random(seed)
  return Int32Array.from({ length }, () => random.below(vocabulary))
}

/** Returns the whole text with nothing folded. */
export const open = (text: Int32Array): Prompt => ({ tokens: text, messages: asOne(text.length) })

/** Returns the text with one fold, which leaves as many tokens as the point says, including its marker. */
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

/** Returns the folded span, half-open. At least one token follows it, because a turn always ends with its question. */
function holeOf({ before, after, share }: Point, marker: number): { readonly start: number; readonly end: number } {
  const left = after - marker
  const start = Math.min(left - 1, Math.round(share * left))
  return { start, end: before - (left - start) }
}

/** @throws KvfoldError cli/bad-usage if nothing would be folded, or nothing would be left */
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

// Below: the ways to take a turn: continue with the long context, or fold it under a contract.

/** `keep`: nothing is folded, and the whole context is cached. */
export type Arm = 'keep' | Contract

export const ARMS: readonly Arm[] = ['keep', ...CONTRACTS]

/** `blend`: the share of the text behind the fold that the contract `blend` computes again. */
export function termsOf(way: Arm, blend: number): StepContract {
  if (way === 'keep') return EXACT
  return way === 'blend' ? { contract: way, blend: { spread: blend } } : { contract: way }
}
