/**
 * From how many generated tokens on a fold is cheaper than keeping a long context that is fully cached. The study times turns of both kinds
 * through the engine. It compares them with what the calibrated model predicts, and with what follows for the paper's 85.2K and 20.3K
 * tokens. "Before the fold" is the share of the remaining text that precedes the fold: at 0 %, `exact` computes all of it again. Ctrl-C
 * ends the study early with the measurements so far.
 * `npm run --silent bench -- acm [--model MODEL] [--threads 1] [--before 8k --after 2k] [--points 4k:1k,2k:500] [--out FOLDER] [--json]
 * [--write NAME]`;
 * `--help` lists the rest.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { freemem } from 'node:os'
import { join } from 'node:path'
import { Command, CommanderError, InvalidArgumentError, Option } from 'commander'
import { tokens as tokenList } from '../../src/lab/cli/eval/flags.js'
import { addModelOptions, decimal, integer, type ModelFlags } from '../../src/runtime/cli/options.js'
import { modelPath, nativeLibrary, optionsOf } from '../../src/runtime/cli/runtime.js'
import { openShell, type Shell } from '../../src/runtime/cli/shell.js'
import { printable, type Terminal } from '../../src/runtime/cli/terminal.js'
import { KvfoldError } from '../../src/runtime/core/errors.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { duration, percent } from '../../src/runtime/figures/numbers.js'
import { markdown, terminal } from '../../src/runtime/figures/table.js'
import type { ModelInfo } from '../../src/runtime/native/types.js'
import { turnFigure } from './acm/figure.js'
import {
  claimLines,
  costReport,
  type CostReport,
  extrapolatedTable,
  measuredTable,
  predictedTable,
  rounded,
} from './acm/report.js'
import { checkContext, type FoldSizes, foldedLike, longest, pointsOf, type ScheduleLimits } from './acm/schedule.js'
import type { ClockName } from './acm/stopwatch.js'
import { cellsFor, machineCosts, study } from './acm/study.js'
import { beginRecord, keep, type Origin } from '../record.js'

interface AcmFlags extends Omit<
  ModelFlags,
  'contract' | 'context' | 'hostCache' | 'diskCache' | 'diskCacheSize' | 'chatTemplate'
> {
  readonly before?: number
  readonly after?: number
  readonly points?: readonly FoldSizes[]
  readonly shares?: readonly number[]
  readonly rounds?: number
  readonly generate?: number
  readonly minutes?: number
  readonly calibration?: number
  readonly clock: ClockName
  readonly seed: number
  readonly quick?: true
  readonly out?: string
  readonly json?: true
  readonly write?: string
}

/** The study's report and its origin. */
export type AcmRecord = Origin & CostReport & { readonly seconds: number }

/** The shared options that this command sets itself. */
const DECIDED = ['--contract', '--context', '--host-cache', '--disk-cache', '--disk-cache-size', '--chat-template']

const WHOLE = { rounds: 3, generated: 24, shares: [0, 0.5, 0.9], minutes: 10 }
const QUICK = { rounds: 2, generated: 8, shares: [0, 0.5], minutes: 1 }
const DEFAULT_BLEND = 0.2
/** Sequences of the context: one for the text, one for the turn, one for what its fold parks, one as scratch, and some to spare. */
const SEQUENCES = 16
/** The share of free memory that the cache gets. */
const MEMORY = 0.5

/** `words`: the arguments behind the benchmark's name. */
export async function acm(words: readonly string[], shell: Shell = openShell()): Promise<void> {
  const command = new Command('acm')
    .exitOverride()
    .configureOutput({ writeErr: shell.notes.write.bind(shell.notes) })
    .option(
      '--before <tokens>',
      "tokens before the fold, such as 8.5k (default: what --minutes allow, at most the paper's)",
      oneSize,
    )
    .option('--after <tokens>', 'tokens after it (default: as many fewer as in the paper)', oneSize)
    .option('--points <list>', 'further contexts, before:after, such as 4k:1k,2k:500', contexts)
    .option('--shares <list>', 'shares (0 to 1) of what is left that stand before the fold (default: 0,0.5,0.9)', shareList)
    .option('--rounds <count>', `times each turn is timed (default: ${WHOLE.rounds})`, integer(1, 1000))
    .option('--generate <tokens>', `tokens generated in each turn (default: ${WHOLE.generated})`, integer(2, 10_000))
    .option(
      '--minutes <count>',
      `what the study may take where --before is not given (default: ${WHOLE.minutes})`,
      decimal(0.1, 10_000),
    )
    .addOption(
      new Option('--clock <clock>', 'what times are taken by; cpu: the process alone, for busy machines, with --threads 1')
        .choices(['wall', 'cpu'])
        .default('wall'),
    )
    .option('--seed <number>', 'of the random text', integer(0, 0x7fff_ffff), 1)
    .option(
      '--calibration <minutes>',
      'what the calibration may take, so that it reaches deeper (default: 50 seconds, 8 with --quick)',
      decimal(0.001, 10_000),
    )
    .option('--quick', 'a minute or two, less exact')
    .option('--out <folder>', 'writes result.json, tables.md and turns.svg there')
    .option('--json', 'one JSON object: everything that was measured and what follows')
    .option('--write <name>', 'keeps that as a record')
  addModelOptions(command)
  const all = command.options as unknown[]
  all.splice(0, all.length, ...command.options.filter(({ long }) => !DECIDED.includes(long ?? '')))
  try {
    command.parse(words, { from: 'user' })
  } catch (error) {
    if (error instanceof CommanderError && error.exitCode === 0) return
    throw error
  }
  await run(command.opts<AcmFlags>(), words, shell)
}

async function run(flags: AcmFlags, words: readonly string[], { out, notes, interrupt }: Shell): Promise<void> {
  const begun = performance.now()
  const { rounds, generated, blend, seed, minutes, shares, given } = asked(flags)
  const { clock, quick = false } = flags
  const settings = { ...optionsOf({ ...flags, contract: 'exact', diskCacheSize: 1 }) }
  const native = await nativeLibrary(flags.gpu)
  if (flags.clock === 'cpu' && (settings.threads !== 1 || native.backend.gpu !== 'cpu'))
    throw new KvfoldError('cli/bad-usage', '--clock cpu needs --threads 1, and --gpu cpu where there is another.')
  const path = await modelPath(flags.model, notes, interrupt.signal)
  const origin = beginRecord(['acm', ...words], path, native.backend.release, settings.threads)
  const progress = new BenchProgress(notes, flags.json === true)
  const trainedOf = ({ trainedContext }: ModelInfo): number | null => (trainedContext > 0 ? trainedContext : null)
  const { info, cost } = await machineCosts(native, path, settings, {
    check: (model) => {
      for (const context of given) checkContext(context, { trained: trainedOf(model), generated })
    },
    quick,
    ...(flags.calibration === undefined ? {} : { budget: flags.calibration * 60_000 }),
    signal: interrupt.signal,
    onProgress: (share, what) => {
      progress.say(`Calibrating, ${percent(share, 0)}: ${what}`)
    },
  }).finally(() => {
    notes.close()
  })
  const limits: ScheduleLimits = {
    cost,
    shares,
    rounds,
    generated,
    blend,
    budget: minutes * 60_000,
    trained: trainedOf(info),
    memory: MEMORY * freemem(),
  }
  const points = pointsOf([...(flags.before === undefined ? [longest(limits)] : []), ...given], shares)
  const engine = await LlamaEngine.load(native, path, {
    ...settings,
    cells: cellsFor(points, generated),
    sequences: SEQUENCES,
    slots: 1,
    hostBytes: 0,
  })
  try {
    engine.useCosts(cost)
    const options = { engine, cost, points, rounds, generated, blend, seed, clock, signal: interrupt.signal }
    const measured = await study({
      ...options,
      onProgress: (share, left, what) => {
        progress.say(`${percent(share, 0)}${left === null ? '' : `, about ${duration(left)} left`}: ${what}`)
      },
    }).finally(() => {
      notes.close()
    })
    const report = costReport(measured, cost, { points, rounds, generated, blend, seed, clock })
    const of = origin()
    const seconds = Math.round((performance.now() - begun) / 1000)
    const record = { ...report, ...of, model: { ...report.model, ...of.model }, seconds }
    show(record, flags, out)
    await keep(flags.write, record)
  } finally {
    await engine.dispose()
  }
}

/** Returns the values of the flags, with defaults for those that are not given. */
function asked({ quick, before, after, points = [], shares, rounds, generate, minutes, blend = DEFAULT_BLEND, seed }: AcmFlags) {
  if (before === undefined && after !== undefined) throw new KvfoldError('cli/bad-usage', '--after needs --before.')
  const main = before === undefined ? [] : [{ before, after: after ?? foldedLike(before) }]
  const usual = quick === true ? QUICK : WHOLE
  return {
    given: [...main, ...points],
    shares: shares ?? usual.shares,
    rounds: rounds ?? usual.rounds,
    generated: generate ?? usual.generated,
    minutes: minutes ?? usual.minutes,
    blend,
    seed,
  }
}

function show(report: AcmRecord, { out: folder, json }: AcmFlags, out: Terminal): void {
  const tables = [measuredTable(report), predictedTable(report), extrapolatedTable(report)].filter(
    ({ table }) => table.rows.length > 0,
  )
  if (report.measured.length === 0)
    throw new KvfoldError('engine/cancelled', 'The study was stopped before every kind of turn was timed once.')
  const claim = claimLines(report)
  if (folder !== undefined) {
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, 'result.json'), `${rounded(report)}\n`)
    writeFileSync(
      join(folder, 'tables.md'),
      [...tables.map(({ title, table }) => `### ${title}\n\n${markdown(table)}\n`), ...claim.map((line) => `${line}\n`)].join(
        '\n',
      ),
    )
    writeFileSync(join(folder, 'turns.svg'), turnFigure(report))
  }
  if (json === true) {
    out.print(JSON.stringify(JSON.parse(rounded(report))))
    return
  }
  const { model, machine, settings } = report
  out.print(
    printable(
      `${model.model} on ${model.gpu === 'cpu' ? model.cpu : model.devices.join(', ')}, llama.cpp ${model.release}, load ${machine.load.before} to ${machine.load.after}, ` +
        `${settings.rounds} rounds of ${settings.generated} tokens${report.interrupted ? ', INTERRUPTED' : ''}`,
    ),
  )
  for (const { title, table } of tables) {
    out.print(`\n${title}\n`)
    for (const line of terminal(table, out.unicode ? '─' : '-')) out.print(line)
  }
  out.print()
  for (const line of claim) out.prose(line)
  if (folder !== undefined) out.print(`\nKept in ${folder}: result.json, tables.md, turns.svg`)
}

/** A progress line. In a terminal it is redrawn in place; elsewhere a new line appears from time to time. */
class BenchProgress {
  #told = -Infinity

  constructor(
    private readonly notes: Terminal,
    private readonly quiet: boolean,
  ) {}

  say(text: string): void {
    if (this.notes.live) this.notes.frame([text])
    else if (!this.quiet && performance.now() - this.#told > 10_000) {
      this.#told = performance.now()
      this.notes.print(text)
    }
  }
}

function oneSize(text: string): number {
  const [size, ...more] = tokenList(text)
  if (size === undefined || more.length > 0) throw new InvalidArgumentError('It must be one number of tokens, such as 8.5k.')
  return size
}

function contexts(text: string): FoldSizes[] {
  return text.split(',').map((part) => {
    const [before = '', after = '', ...more] = part.split(':')
    if (after === '' || more.length > 0)
      throw new InvalidArgumentError('It must be pairs before:after with commas, such as 4k:1k,2k:500.')
    return { before: oneSize(before), after: oneSize(after) }
  })
}

function shareList(text: string): number[] {
  const one = decimal(0, 1)
  return [...new Set(text.split(',').map((part) => one(part)))].sort((a, b) => a - b)
}
