/** Draws what learning by reward did: one curve per run, as in Sculptor's figures 10 to 13. */
import * as Plot from '@observablehq/plot'
import { figure, type Panel, PALETTE } from '../../../src/lab/figures/figure.js'
import type { Origin } from '../../record.js'
import type { Computed } from '../logs.js'

/** Means over several tries. */
export interface Means {
  readonly reward: number
  /** Share of tries in which all asked values are right. */
  readonly right: number
  readonly points: number
  readonly calls: number
  /** Tokens in the context at the end. */
  readonly context: number
  readonly failed: number
}

/** One iteration of training: means over all its tries, and over the tries of some cells. */
export interface Point extends Means {
  readonly iteration: number
  /** Entropy of the tool calls, in bits. */
  readonly entropy: number
  /** Share of trajectories whose gradient was clipped. */
  readonly clipped: number
  readonly cells: {
    readonly start?: Pick<Means, 'right'>
    readonly middle?: Pick<Means, 'right'>
    readonly reading?: Pick<Means, 'right'>
    readonly restore?: FarMeans
  }
}

/** Means over the tries that need a restore. */
interface FarMeans extends Pick<Means, 'points' | 'failed'> {
  /** Mean calls per try, by tool. */
  readonly tools: Readonly<Record<string, number>>
}

export interface Row {
  readonly cell: string
  readonly run: string
  readonly command: string
  readonly samples: number
  readonly accuracy: number
  readonly interval: readonly [number, number]
  readonly allRight: number
  /** The accuracy less that of the weights before, on the same samples. */
  readonly more?: number
  readonly moreInterval?: readonly [number, number] | null
  readonly p?: number
  readonly calls: Readonly<Record<string, number>>
  /** Number of samples with a failed call. */
  readonly failed: number
  readonly cutOff: number
  readonly context: number | null
}

export interface GspoRecord extends Origin {
  /** The origins of runs that were added later. */
  readonly added?: readonly (Origin & { readonly runs: readonly string[]; readonly computed?: readonly Computed[] })[]
  /** The commits and machines that computed the rows' samples. */
  readonly computed?: readonly Computed[]
  readonly runs: readonly {
    readonly name: string
    readonly seed: number
    readonly lm: number
    readonly rate: number
    readonly minibatches: number
    readonly mix: string
    readonly reward?: string
    readonly curve: readonly Point[]
  }[]
  readonly rows: readonly Row[]
}

type Run = GspoRecord['runs'][number]

/** The number of iterations over which a point of a line averages. */
const WINDOW = 5

/** Returns the common name of runs that differ only in their seed. */
const kindOf = ({ lm, reward }: Run): string =>
  `${reward === 'parts' ? 'the share that is right as reward' : "appendix F's reward"}${lm === 0 ? ', no LM term' : ''}`

/** Returns an SVG with the curves of all runs of the mix `short`. Runs that differ only in their seed have the same colour. */
export function drawn({ runs }: GspoRecord): string {
  const shown = runs.filter(({ mix }) => mix === 'short')
  const kinds = [...new Set(shown.map(kindOf))]
  const colourOf = (kind: string) => PALETTE[kinds.indexOf(kind) % PALETTE.length]!
  const panel = (title: string, of: (point: Point) => number, domain?: readonly [number, number]): Panel => ({
    title,
    height: 180,
    plot: {
      x: { label: 'iteration' },
      y: { label: null, ticks: 4, ...(domain === undefined ? { zero: true } : { domain: [...domain] }) },
      marks: shown.map((run) =>
        Plot.line(smoothed(run, of), {
          x: 'x',
          y: 'y',
          stroke: colourOf(kindOf(run)),
          strokeWidth: 1.5,
          title: () => run.name,
        }),
      ),
    },
  })
  const cell = (name: 'start' | 'middle' | 'reading') => (point: Point) => point.cells[name]?.right ?? 0
  const far =
    (of: (means: FarMeans) => number) =>
    ({ cells: { restore } }: Point) =>
      restore === undefined ? 0 : of(restore)
  return figure({
    title: 'GSPO on the built-in model from its supervised weights',
    below: `Each point: the mean of ${WINDOW} iterations of 40 tries at temperature 1, from the one it stands at backwards. Far: the tries that need a restore.`,
    key: kinds.map((kind) => {
      const seeds = shown.filter((run) => kindOf(run) === kind).map(({ seed }) => seed)
      return { label: `${kind} (${seeds.length > 1 ? 'seeds' : 'seed'} ${seeds.join(', ')})`, colour: colourOf(kind) }
    }),
    columns: 3,
    panels: [
      panel('Reward as in appendix F', ({ reward }) => reward),
      panel('All right, share of tries', ({ right }) => right),
      panel('Share of an answer that is right', ({ points }) => points),
      panel('Calls a turn', ({ calls }) => calls),
      panel('Tries with a failed call, share', ({ failed }) => failed),
      panel('Entropy of the tools called, bits', ({ entropy }) => entropy),
      panel('All right: last updates at the start', cell('start')),
      panel('All right: last updates in the middle', cell('middle')),
      panel('All right: reading a short stream', cell('reading')),
      panel(
        'Far: restores a turn',
        far(({ tools }) => tools['restore_fragment'] ?? 0),
      ),
      panel(
        'Far: folds a turn',
        far(({ tools }) => tools['fold_fragment'] ?? 0),
      ),
      panel(
        'Far: share right',
        far(({ points }) => points),
      ),
      panel(
        'Far: tries with a failed call',
        far(({ failed }) => failed),
      ),
      panel('Tokens in the context', ({ context }) => context),
      panel('Held back by the clips, share', ({ clipped }) => clipped),
    ],
  })
}

function smoothed({ curve }: Run, of: (point: Point) => number): { readonly x: number; readonly y: number }[] {
  return curve.flatMap((_, at) => {
    const some = curve.slice(Math.max(0, at + 1 - WINDOW), at + 1)
    return at + 1 < WINDOW ? [] : [{ x: at, y: some.reduce((sum, point) => sum + of(point), 0) / some.length }]
  })
}
