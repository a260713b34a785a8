/** The command `kvfold attention`: measures how folding changes a model's attention, on PI-LLM or on a transcript. */
import { hash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { Option, type Command } from 'commander'
import { RunFolder } from '../../run-folder.js'
import type { StudySummary } from '../../attention/findings.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { runOptions, studyValues, type ValueStudyOptions } from '../../attention-study.js'
import { wordsFrom } from '../../pi-llm.js'
import { kvfoldVersion } from '../../run/plan.js'
import { addFile } from '../attention/file.js'
import { addHeads } from '../attention/heads.js'
import { addStudyOptions, findingLines, loadForLooking, machineFinding, type StudyFlags } from '../attention/study.js'
import { ProgressLine } from '../progress.js'
import { answerSettings, integer, integers } from '../../../runtime/cli/options.js'
import { weightsOf } from '../../../runtime/cli/runtime.js'
import { commandOf, type Shell } from '../../../runtime/cli/shell.js'

interface PiFlags extends StudyFlags {
  readonly n: number
  readonly seeds: number
  readonly seed: number
  readonly keys?: number
  readonly words?: string
  readonly mode: 'teacher' | 'generated'
  readonly updates?: readonly number[]
  readonly episode?: true
}

const FOLDER = 'kvfold-attention'

const PI_HELP = `
The command measures how much attention the current value of every key of a PI-LLM stream gets. It compares the complete prompt with one
where three quarters of the stream are folded (Sculptor, section 4.3). The folder gets summary.json, Parquet tables, SVG figures and
report.html. A stopped run continues there.
In Python:

  import pandas as pd                                   # with pyarrow or fastparquet
  pairs = pd.read_parquet('${FOLDER}/pairs.parquet')
  print(pairs[pairs.status == 'measured'].groupby(['n', 'contract']).change.describe())`

export function addAttention(program: Command, shell: Shell): void {
  const command = program
    .command('attention')
    .description('measure how folding changes where a model looks: weights, statistics, figures')
  const pi = command
    .command('pi-llm')
    .description('measure attention to the current values of a PI-LLM stream, complete and folded')
    .option('--n <updates>', 'updates of every key', integer(1, 400), 32)
    .option('--seeds <count>', 'prompts', integer(1, 10_000), 20)
    .option('--seed <number>', 'seed of the first prompt; the others follow', integer(0, 0xffff_ffff), 2026)
    .option('--keys <count>', 'keys of a prompt; each makes one pair (default: all, 46 of our own)', integer(1, 10_000))
    .option('--words <file>', "keys and values from a JSON file {category: [value, ...]} instead of the project's own")
    .addOption(
      new Option('--mode <mode>', "the answer that looks: the right one (teacher), or the model's own (generated)")
        .choices(['teacher', 'generated'])
        .default('teacher'),
    )
    .option(
      '--updates <list>',
      'also draw interference against these numbers of updates, such as 2,4,8,16,32,64',
      integers(1, 400),
    )
    .option('--episode', 'also watch a whole turn of the sculptor agent')
  addStudyOptions(pi, FOLDER)
    .addHelpText('after', PI_HELP)
    .action((flags: PiFlags) => study(flags, shell))
  addFile(command, shell)
  addHeads(command, shell)
}

async function study(flags: PiFlags, shell: Shell): Promise<void> {
  const { out, notes, interrupt } = shell
  const json = flags.json === true
  const words = wordsFrom(flags.words)
  const engine = await loadForLooking(flags, shell)
  try {
    const options: ValueStudyOptions = {
      engine,
      words,
      n: flags.n,
      seeds: Array.from({ length: flags.seeds }, (_, index) => flags.seed + index),
      contracts: flags.contract,
      mode: flags.mode === 'teacher' ? 'given' : 'generated',
      updates: flags.updates ?? [],
      episode: flags.episode === true,
      signal: interrupt.signal,
      ...(flags.keys === undefined ? {} : { keys: flags.keys }),
      ...(flags.blend === undefined ? {} : { blend: { most: flags.blend } }),
      ...(flags.layers === undefined ? {} : { layers: flags.layers }),
    }
    const model = await modelOf(engine)
    const versions = versionsOf(engine)
    const depends = {
      ...answerSettings(flags),
      ...runOptions(options),
      ...{
        model: model.fingerprint,
        words: flags.words === undefined ? 'own' : hash('sha256', readFileSync(flags.words), 'hex'),
      },
      ...versions,
    }
    const keep = await RunFolder.open(flags.out, depends)
    const progress = new ProgressLine(notes, json)
    const onProgress = (done: number, total: number, what: string) => {
      progress.say(done, total, { what })
    }
    const records = await studyValues({ ...options, keep, onProgress })
      .catch((error: unknown) => {
        if (interrupt.interrupted) notes.print(`${keep.path} has the finished prompts; the same command continues the run.`)
        throw error
      })
      .finally(async () => {
        notes.close()
        await keep.close()
      })
    // The drawing code takes long to load, so it is imported only here.
    const { publish } = await import('../../attention/report.js')
    const { summary, report } = publish(keep.path, {
      model,
      versions,
      date: new Date().toISOString(),
      command: commandOf(shell),
      options: { ...depends, seeds: options.seeds, updates: options.updates },
      n: flags.n,
      contracts: flags.contract,
      records,
    })
    if (json) out.print(JSON.stringify(machineView(summary, report)))
    else {
      for (const line of findingLines(summary, out.rule)) out.print(line)
      out.print()
      out.print(`Report: ${report}`)
    }
  } finally {
    await engine.dispose()
  }
}

/** Returns the object that `--json` prints. Its top level has the first contract's finding with the value's tokens as queries. */
function machineView(summary: StudySummary, report: string): object {
  const { findings, model, n, interference } = summary
  const [first] = findings
  if (first === undefined) throw new KvfoldError('internal/invariant', 'A study has no findings.')
  return { ...machineFinding(first), n, model: model.name, findings: findings.map(machineFinding), interference, report }
}

async function modelOf(engine: LlamaEngine) {
  const { info, modelInfo } = engine
  return { name: info.model, fingerprint: await weightsOf(engine), layers: modelInfo.layers, heads: modelInfo.heads }
}

const versionsOf = ({ info }: LlamaEngine): Readonly<Record<string, string>> => ({
  kvfold: kvfoldVersion(),
  'llama.cpp': info.release,
})
