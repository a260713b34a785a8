/** Owns the figure of the contracts: accuracy by updates per key, who folds, and contract; and what the folds computed. */
import { curves } from '../../../src/lab/figures/panels.js'
import { COLOURS, figure, fitting, type Panel } from '../../../src/lab/figures/figure.js'
import type { Score } from './accuracy.js'

/** Colours by way of folding: readable on white and on black, and apart from each other for most kinds of sight. */
const WAYS: Readonly<Record<string, { readonly label: string; readonly colour: string }>> = {
  whole: { label: 'nothing folded', colour: COLOURS.complete },
  exact: { label: 'exact', colour: COLOURS.exact },
  splice: { label: 'splice', colour: COLOURS.splice },
  'splice, gaps closed': { label: 'splice, gaps closed', colour: '#9333ea' },
  'blend 0.1': { label: 'blend 0.1', colour: '#7cc4ff' },
  'blend 0.2': { label: 'blend 0.2', colour: COLOURS.blend },
  'blend 0.3': { label: 'blend 0.3', colour: '#2563eb' },
}

/** Everything drawn; `scores` must not be empty. */
export function contractsFigure(scores: readonly Score[], model: string): string {
  const program = scores.filter(({ folder }) => folder === 'program')
  const folded = program.filter(({ way }) => way !== 'whole')
  return figure({
    title: `PI-LLM on ${model}: accuracy with 95 % intervals, and prompt tokens a fold computes, by contract`,
    key: waysOf(scores).map((way) => WAYS[way]!),
    columns: 3,
    panels: [
      accuracy('Folded by a program', program),
      accuracy(
        'Folded by the model itself',
        scores.filter(({ folder }) => folder === 'model'),
      ),
      panel(
        'Folded by a program',
        'prompt tokens computed for it',
        folded,
        fitting(
          folded.map(({ computed }) => computed),
          [],
          10,
        ),
        (score) => ({
          ...{ value: score.computed, interval: null },
        }),
      ),
    ],
  })
}

const waysOf = (scores: readonly Score[]): string[] =>
  Object.keys(WAYS).filter((way) => scores.some((score) => score.way === way))

function accuracy(title: string, scores: readonly Score[]): Panel {
  const least = 100 * Math.min(...scores.map(({ interval }) => interval[0]))
  const floor = Math.max(0, Math.floor((least - 0.1) / 10) * 10)
  const below = `last values right, %${floor > 0 ? ' (axis cut)' : ''}`
  return panel(title, below, scores, { domain: [floor, 100], ticks: 5 }, ({ accuracy: value, interval }) => ({
    value: 100 * value,
    interval: [100 * interval[0], 100 * interval[1]],
  }))
}

/** A group for every n, and in it a place for every way. */
function panel(
  title: string,
  below: string,
  scores: readonly Score[],
  y: NonNullable<Parameters<typeof curves>[0]['y']>,
  of: (score: Score) => { readonly value: number; readonly interval: readonly [number, number] | null },
): Panel {
  return curves({
    ...{ title, below, height: 290, apart: 9, y },
    sizes: [...new Set(scores.map(({ n }) => n))].sort((a, b) => a - b),
    names: { x: 'updates per key', y: '' },
    curves: waysOf(scores).map((way) => ({
      colour: WAYS[way]!.colour,
      dash: null,
      points: scores
        .filter((score) => score.way === way)
        .map((score) => ({ x: score.n, ...of(score), says: `${way}, n = ${score.n}: ${of(score).value.toFixed(1)}` })),
    })),
  })
}
