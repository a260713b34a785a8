/** Runs the demo on the built-in model, and draws its counts: `node --import tsx bench/draw-demo.ts > docs/demo.svg` (a minute). */
import { readerPlan } from '../src/lab/cli/demo/plan.js'
import { Reader, type Standing } from '../src/lab/cli/demo/reader.js'
import { COLOURS, figure } from '../src/lab/figures/figure.js'
import { curves, type Curve } from '../src/lab/figures/panels.js'
import { ownWords } from '../src/lab/pi-llm.js'
import { builtinModel } from '../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../src/runtime/engine/llama.js'
import { count } from '../src/runtime/figures/numbers.js'
import { openNative } from '../src/runtime/native/binding.js'

/** Tokens of the stream between two points of the figure. */
const EVERY = 10_000

const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1 })
const plan = readerPlan(engine, { words: ownWords(), seed: 1, contract: 'splice', isBuiltin: true })
const standings: Standing[] = []
const reader = new Reader(
  engine,
  plan,
  { progress: () => undefined, folded: (_cost, standing) => standings.push(standing) },
  new AbortController().signal,
)
const reading = await reader.run()
const cells = engine.info.context
await engine.dispose()

const sizes = Array.from({ length: Math.floor(reader.tokens / EVERY) + 1 }, (_, at) => at * EVERY)
/** Each point shows the last fold at or before its size, so no point shows more than was read. */
const curve = (colour: string, name: string, of: (standing: Standing) => number, dash = ''): Curve => ({
  colour,
  dash,
  points: sizes.map((x) => {
    const at = standings.findLast(({ read }) => read <= x)
    const value = at === undefined ? 0 : of(at)
    return { x, value, interval: null, says: `${name}: ${count(value)} tokens after ${count(at?.read ?? 0)}` }
  }),
})
const key = [
  { label: 'kvfold', colour: COLOURS.exact, dash: '' },
  { label: 'a plain prefix cache', colour: COLOURS.splice, dash: '' },
  { label: 'the whole conversation', colour: COLOURS.complete, dash: '4 3' },
]

process.stdout.write(
  figure({
    title: `The demo: kvfold-tiny reads ${count(reading.conversationTokens)} tokens within ${count(cells)} positions, ${reading.right} of ${reading.asked} right`,
    key,
    columns: 2,
    panels: [
      curves({
        title: 'Tokens in context',
        sizes,
        names: { x: 'tokens read', y: '' },
        apart: 0,
        curves: [
          curve(COLOURS.exact, 'in context', ({ shown }) => shown),
          curve(COLOURS.complete, 'conversation', ({ read }) => read, '4 3'),
        ],
      }),
      curves({
        title: 'Tokens computed so far, the same folds',
        sizes,
        names: { x: 'tokens read', y: '' },
        apart: 0,
        curves: [
          curve(COLOURS.exact, 'kvfold', ({ total }) => total.ours.tokens),
          curve(COLOURS.splice, 'prefix cache', ({ total }) => total.prefixCache.tokens),
        ],
      }),
    ],
  }),
)
