/** `kvfold demo`: runs PI-LLM on the built-in model with and without context tools, shows it live and sums it up. */
import type { Command } from 'commander'
import { ownWords, piSample, type PiSample, wordsFrom } from '../../pi-llm.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { type DemoView, LiveView, PlainView } from '../demo/view.js'
import { agentNames, play, rows, rowTable, sentences, sessionFor, type DemoTrial } from '../demo/trial.js'
import { Tracker } from '../demo/context-bar.js'
import { addModelOptions, integer, integers, type ModelFlags } from '../../../runtime/cli/options.js'
import { loadEngine } from '../../../runtime/cli/runtime.js'
import type { Shell } from '../../../runtime/cli/shell.js'
import type { Terminal } from '../../../runtime/cli/terminal.js'

/** Sizes and samples with which the whole demo takes well under three minutes on two slow cores. */
const FULL = { n: [4, 8, 16, 32, 64], samples: 4 }
const QUICK = { n: [4, 16], samples: 2 }

interface DemoFlags extends ModelFlags {
  readonly n?: readonly number[]
  readonly samples?: number
  readonly seed: number
  readonly words?: string
  readonly quick?: true
  readonly json?: true
}

export function addDemo(program: Command, shell: Shell): void {
  const command = program
    .command('demo')
    .description('compare PI-LLM without and with context tools, with growing numbers of updates: accuracy, context and work')
    .option('--n <list>', `updates per key, such as 4,8,16 (default: ${FULL.n.join(',')})`, integers(1, 400))
    .option('--samples <count>', `streams for every n (default: ${FULL.samples})`, integer(1, 1000))
    .option('--seed <number>', 'seed of the streams', integer(0, 0xffffffff), 1)
    .option('--words <file>', "keys and values from a JSON file {category: [value, ...]} instead of the project's own")
    .option('--quick', `play only n = ${QUICK.n.join(' and ')}, ${QUICK.samples} streams each`)
    .option('--json', 'print only one line of JSON: the rows of the table')
  addModelOptions(command).action((flags: DemoFlags) => demo(flags, shell))
}

async function demo(flags: DemoFlags, { out, notes, interrupt }: Shell): Promise<void> {
  const preset = flags.quick === true ? QUICK : FULL
  const { n: sizes = preset.n, samples = preset.samples, seed } = flags
  const words = flags.words === undefined ? ownWords() : wordsFrom(flags.words)
  // Make all streams before the model is loaded, so that a size with too few words fails at once.
  const streams = sizes.map((n) => ({
    n,
    of: Array.from({ length: samples }, (_, sample) => piSample({ words, updates: n, seed, sample })),
  }))
  const json = flags.json === true
  const view: DemoView | null = json ? null : out.live ? new LiveView(out) : new PlainView(out)
  const begun = performance.now()
  const engine = await loadEngine(flags, notes, interrupt.signal)
  const trials: DemoTrial[] = []
  try {
    // Throws here, before the demo begins, when the model has no usable template.
    const { syntax } = engine.format
    view?.begin({ model: engine.info.model, toolCalls: syntax.name, sizes, samples, keys: words.keys.length, seed })
    await playAll(engine, streams, view, interrupt.signal, trials)
  } finally {
    out.close()
    await engine.dispose()
  }
  const seconds = (performance.now() - begun) / 1000
  if (json && !interrupt.interrupted)
    out.print(JSON.stringify({ rows: rows(trials), model: engine.info.model, seed, seconds }, rounded))
  if (!json && trials.length > 0) conclude(trials, out, seconds)
}

/** Plays every stream with every agent and adds the trials, until the signal cancels. */
async function playAll(
  engine: LlamaEngine,
  streams: readonly { readonly n: number; readonly of: readonly PiSample[] }[],
  view: DemoView | null,
  signal: AbortSignal,
  trials: DemoTrial[],
): Promise<void> {
  for (const { n, of } of streams)
    for (const [sample, stream] of of.entries())
      for (const agent of agentNames) {
        if (signal.aborted) return
        const session = sessionFor(agent, engine)
        const tracker = view === null ? null : new Tracker(engine, session)
        if (tracker !== null) view?.turn(n, sample, agent, tracker)
        const trial = await play(session, stream, { n, sample, agent }, signal, (event) => {
          tracker?.onEvent(event)
          view?.event(event)
        })
        if (trial === null) return
        trials.push(trial)
        view?.ended(trial)
      }
}

function conclude(trials: readonly DemoTrial[], out: Terminal, seconds: number): void {
  const all = rows(trials)
  const { columns, unicode } = out
  out.print()
  for (const line of rowTable(all, {
    width: out.live ? columns : Infinity,
    rule: unicode ? '─' : '-',
    plusMinus: unicode ? '±' : '+-',
  }))
    out.print(line)
  out.print()
  out.prose(
    'The table has means per stream. before, after: tokens in context at the end of the first step and of the answer. asked: streams x keys.',
    out.colours.dim,
  )
  out.print()
  for (const sentence of sentences(all)) out.prose(sentence)
  out.print(out.colours.dim(`The demo took ${seconds.toFixed(0)} s.`))
}

/** Rounds numbers for JSON to four decimals; the measurements are less precise than that. */
const rounded = (_key: string, value: unknown): unknown => (typeof value === 'number' ? Math.round(value * 1e4) / 1e4 : value)
