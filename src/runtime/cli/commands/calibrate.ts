/**
 * `kvfold calibrate`: measures once how fast this machine computes with a model, so that `kvfold plan` can predict times. With
 * `--fidelity`: measures how folds change the model's answers.
 */
import { Option, type Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { Adapters } from '../../engine/adapters.js'
import { calibrate, SEQUENCES } from '../../engine/calibrate.js'
import { measuredOn, saveCalibration } from '../../engine/calibration.js'
import { abilitiesOf } from '../../engine/model-facts.js'
import { decodeTime, prefillTime, type CostModel } from '../../kv/cost-model.js'
import { printable } from '../terminal.js'
import { fidelityNotice, measureFidelity, type ModelFidelity, saveFidelity } from '../../fidelity/model-fidelity.js'
import { bytes, count, percent, plural } from '../../figures/numbers.js'
import { addModelOptions, integer, type ModelFlags } from '../options.js'
import { enginePath, fidelitySubject, loadEngine, nativeLibrary, optionsOf, refuseUnpriced } from '../runtime.js'
import type { Shell } from '../shell.js'
import { left, right, table, terminal } from '../../figures/table.js'

interface CalibrateFlags extends ModelFlags {
  readonly quick?: true
  readonly fidelity?: true
  readonly questions?: number
  readonly json?: true
}

/** The context size of a calibration, in cells. It needs no more. */
const CELLS = 18_432
/** The default number of questions of each kind of case. */
const QUESTIONS = 6

export function addCalibrate(program: Command, shell: Shell): void {
  const command = program
    .command('calibrate')
    .description('measure how fast this machine computes with a model, for `kvfold plan`; takes about a minute')
    .addOption(new Option('--quick', 'take about 10 seconds, with a less exact result').conflicts('fidelity'))
    .option('--fidelity', "measure instead what folds cost this model's answers under splice and blend")
    .option(
      '--questions <count>',
      `with --fidelity: questions about each of three kinds of text (default: ${QUESTIONS})`,
      integer(1, 1000),
    )
    .option('--json', 'one JSON object: the cost model and the file it is in')
  addModelOptions(command).action((flags: CalibrateFlags) => run(flags, shell))
}

async function run(flags: CalibrateFlags, shell: Shell): Promise<void> {
  if (flags.fidelity === true) return runFidelity(flags, shell)
  if (flags.questions !== undefined)
    throw new KvfoldError('cli/bad-usage', '--questions needs --fidelity; add it, or leave --questions out.')
  const { out, notes, interrupt } = shell
  const settings = optionsOf(flags)
  const path = await enginePath(flags, {}, notes, interrupt.signal)
  const native = await nativeLibrary(flags.gpu)
  const model = await native.loadModel(path, settings.model)
  try {
    const { info } = model
    refuseUnpriced(abilitiesOf(info, settings))
    const adapters = await Adapters.load(model, settings.lora)
    const trained = info.trainedContext
    const context = await model.createContext({
      ...settings,
      cells: settings.cells ?? (trained > 0 ? Math.min(trained, CELLS) : CELLS),
      sequences: SEQUENCES,
      fullSlidingWindow: info.slidingWindow > 0,
    })
    context.useAdapters(adapters.set().applied)
    const subject = { info, settings, backend: native.backend }
    const cost = await calibrate(context, info.vocabulary, measuredOn(subject, context), {
      quick: flags.quick === true,
      signal: interrupt.signal,
      onProgress: (share, what) => {
        notes.frame([`Calibrating, ${percent(share, 0)}: ${what}`])
      },
    }).finally(() => {
      notes.close()
    })
    const file = await saveCalibration(subject, cost)
    if (flags.json === true) out.print(JSON.stringify({ ...cost, file }))
    else for (const line of report(cost, file, out.rule)) out.print(printable(line))
  } finally {
    await model.dispose()
  }
}

async function runFidelity(flags: CalibrateFlags, { out, notes, interrupt }: Shell): Promise<void> {
  const engine = await loadEngine({ ...flags, contract: 'exact', hostCache: 0 }, notes, interrupt.signal)
  try {
    const fidelity = await measureFidelity(engine, {
      ...(await fidelitySubject(engine, flags)),
      questions: flags.questions ?? QUESTIONS,
      signal: interrupt.signal,
      onProgress: (share, what) => {
        notes.frame([`Asking, ${percent(share, 0)}: ${what}`])
      },
    }).finally(() => {
      notes.close()
    })
    const file = await saveFidelity(fidelity)
    if (flags.json === true) out.print(JSON.stringify({ ...fidelity, file }))
    else for (const line of fidelityReport(fidelity, file, out.rule)) out.print(printable(line))
  } finally {
    await engine.dispose()
  }
}

function fidelityReport(fidelity: ModelFidelity, file: string, rule: string): string[] {
  const { model, questions, rows } = fidelity
  const names = { unfolded: 'nothing folded', exact: 'exact', splice: 'splice', blend: 'blend' }
  const columns = [left('folded under'), ...['right', 'outdated', 'lost', 'distance, nats', 'largest', 'computed'].map(right)]
  const texts = rows.map(({ way, distance, computed, ...counts }) => [
    ...[names[way], `${counts.right} of ${questions}`, String(counts.outdated), String(counts.lost)],
    ...[distance.mean.toFixed(3), distance.worst.toFixed(3), count(computed)],
  ])
  const verdicts = (['splice', 'blend'] as const).map((contract) => fidelityNotice(contract, fidelity)!)
  return [
    `${model}, ${plural(questions, 'question')} about texts whose older parts are folded`,
    '',
    ...terminal(table(columns, texts), rule),
    '',
    'outdated  answers that name a value which a later part of the text replaced',
    'lost      answers that are right under exact and wrong here',
    "distance  of the answer's first token from an exact prefill of the same text (KL divergence)",
    'computed  tokens that the step with the fold computed, on average',
    '',
    ...verdicts,
    `kept in  ${file}`,
  ]
}

/**
 * Returns the report of a calibration as lines. It gives predictions for round numbers of tokens, because those are easier to read than the
 * fitted rates.
 */
function report(cost: CostModel, file: string, rule: string): string[] {
  const { on, prefill, decode, books, host } = cost
  const off = ({ residual, samples }: CostModel['prefill' | 'decode' | 'books']) =>
    `off by ${percent(residual.median)} (median), ${percent(residual.worst)} (worst) of ${samples} measurements`
  const rows = [0, 1024, 4096, 16_384]
    .filter((depth) => depth <= cost.deepest)
    .map((depth) => {
      const at = { attended: depth, cells: depth }
      const chunk = prefillTime(cost, { tokens: on.ubatch, ...at })
      return [count(depth), count((1000 * on.ubatch) / chunk), decodeTime(cost, at).toFixed(2)]
    })
  return [
    `${on.model} on ${on.gpu === 'cpu' ? on.cpu : on.devices.join(', ')}, llama.cpp ${on.release}, flash attention ${on.flashAttention ? 'on' : 'off'}`,
    '',
    ...terminal(table(['after tokens', 'prefill tokens/s', 'decode ms/token'].map(right), rows), rule),
    '',
    `prefill  ${off(prefill)}`,
    `decode   ${off(decode)}`,
    `edits    ${off(books)}; ${(1000 * books.rates.moved).toFixed(2)} microseconds a cell that is folded or restored`,
    `host     ${bytes(host.saveBytesPerSecond)}/s out, ${bytes(host.loadBytesPerSecond)}/s in, ${bytes(host.bytesPerCell)} a cell`,
    `kept in  ${file}`,
  ]
}
