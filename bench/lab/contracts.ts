/**
 * Fidelity of the contracts: single folds by length, place and size against `exact`, and PI-LLM under every contract. Prints tables; writes files
 * only when asked.
 *
 * `npm run --silent bench -- contracts [--json] [--quick] [--write] [--streams 12] [--seeds 3] [--model path]`; with `--from
 * bench/results/contracts.json` it measures nothing and only prints (and writes) again.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { measureAccuracy, scoresOf, type AccuracyOptions } from './contracts/accuracy.js'
import { contractsFigure } from './contracts/figure.js'
import { cellsOf, measureGrid, type GridOptions } from './contracts/grid.js'
import { NOT_MEASURED, readBack, written, type Results } from './contracts/results.js'
import { SETTINGS } from './contracts/stage.js'
import { forMarkdown, forTerminal } from './contracts/tables.js'
import { Watch } from './contracts/watch.js'
import { beginRecord } from '../record.js'

const SEED = 2026
const WHOLE: Options = {
  grid: { contexts: [1024, 4096], shares: [0.25, 0.5, 0.75], seeds: 3, answer: 32 },
  accuracy: { sizes: [16, 32, 64], streams: 12, seed: SEED },
}
/** Enough to see that it works; its figures mean little. */
const QUICK: Options = {
  grid: { contexts: [1024], shares: [0.5], seeds: 1, answer: 32 },
  accuracy: { sizes: [16], streams: 2, seed: SEED },
}
const RESULTS = new URL('results/', import.meta.url)
const FIGURE = new URL('../../docs/contracts.svg', import.meta.url)

export async function contracts(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      json: { type: 'boolean', default: false },
      quick: { type: 'boolean', default: false },
      write: { type: 'boolean', default: false },
      from: { type: 'string' },
      streams: { type: 'string' },
      seeds: { type: 'string' },
      model: { type: 'string', default: builtinModel() },
    },
  })
  const { from, model } = values
  const results = from === undefined ? await measure(model, optionsOf(values), args) : readBack(readFileSync(from, 'utf8'))
  if (values.write) write(results)
  if (!values.json) console.log(forTerminal(results).join('\n'))
  else console.log(JSON.stringify({ ...results, cells: cellsOf(results.folds), scores: scoresOf(results.answers) }))
}

interface Options {
  readonly grid: GridOptions
  readonly accuracy: AccuracyOptions
}

function optionsOf({ quick, streams, seeds }: { quick: boolean; streams?: string; seeds?: string }): Options {
  const { grid, accuracy } = quick ? QUICK : WHOLE
  return {
    grid: { ...grid, ...(seeds === undefined ? {} : { seeds: Number(seeds) }) },
    accuracy: { ...accuracy, ...(streams === undefined ? {} : { streams: Number(streams) }) },
  }
}

async function measure(model: string, options: Options, args: readonly string[]): Promise<Results> {
  const watch = new Watch()
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['contracts', ...args], model, native.backend.release, SETTINGS.threads)
  const answers = await measureAccuracy(native, model, options.accuracy, watch)
  const { folds, noise } = await measureGrid(native, model, options.grid, watch)
  watch.end()
  return {
    ...origin(),
    seconds: Math.round(watch.seconds),
    interrupted: watch.over(),
    folds,
    noise,
    answers,
    notMeasured: NOT_MEASURED,
  }
}

function write(results: Results): void {
  mkdirSync(RESULTS, { recursive: true })
  writeFileSync(new URL('contracts.json', RESULTS), written(results))
  writeFileSync(new URL('contracts.md', RESULTS), forMarkdown(results))
  if (results.answers.length > 0) writeFileSync(FIGURE, contractsFigure(scoresOf(results.answers), results.model.name))
}
