/** The command `kvfold eval`: runs agents on tasks, scores their answers, and writes all records to a log that needs no other file. */
import { definedFields } from '../../../runtime/core/json.js'
import { basename } from 'node:path'
import { type Command, Option } from 'commander'
import { CONTRACT_CHOICES } from '../../../runtime/core/contract.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import type { Engine } from '../../../runtime/engine/engine.js'
import { readKey } from '../../../fleet/engines/endpoint.js'
import { RemoteEngine } from '../../../fleet/engines/remote.js'
import type { AgentKind } from '../../agent.js'
import { type FrameworkName, frameworkNames, frameworkTitles } from '../../service/frameworks.js'
import { readDialogues, replayScenarios } from '../../service/replay.js'
import { rowsOf, runService, SERVICE_NOTES, serviceTable } from '../../service/run.js'
import { deskScenarios, type Manner, manners } from '../../service/dialogue.js'
import { plural } from '../../../runtime/figures/numbers.js'
import { terminal } from '../../../runtime/figures/table.js'
import { addEvalOptions, askedTasks, type EvalFlags, taskHelp } from '../eval/flags.js'
import { FOLLOW, Follower } from '../eval/follow.js'
import { addMemTool } from '../eval/memtool.js'
import { oneOf } from '../lists.js'
import {
  addModelOptions,
  answerSettings,
  decimal,
  integer,
  integers,
  type ModelFlags,
  readText,
  withoutDraftModel,
} from '../../../runtime/cli/options.js'
import { addEngineOptions, type EngineFlags, engineSource } from '../../../runtime/cli/remote-engines.js'
import { loadEngine, weightsOf } from '../../../runtime/cli/runtime.js'
import { addOut } from '../../../runtime/cli/out-option.js'
import { commandOf, type Shell } from '../../../runtime/cli/shell.js'

/** The tasks and default options of `kvfold eval table`. The low `maxTokens` ends a model soon that does not stop by itself. */
const TABLE = {
  tasks: ['pi-llm', 'needles', 'similar'],
  // The agents of the Sculptor paper. The remaining agents fold or summarise earlier messages, which these tasks do not have.
  agent: ['plain', 'sculptor', 'rag-bm25', 'rag-dense', 'memagent', 'mem0'],
  samples: 20,
  sizes: [2000, 4000],
  needles: [4],
  maxTokens: 512,
} as const satisfies { readonly agent: readonly AgentKind[] } & Readonly<Record<string, unknown>>

const HELP = `
Tasks:
${taskHelp()}
  table          ${TABLE.tasks.join(', ')} by six agents, prompts of 2,000 and 4,000 tokens:
                 --agent ${TABLE.agent.join(',')} --samples ${TABLE.samples} --sizes 2k,4k --needles 4 --max-tokens ${TABLE.maxTokens}

Examples:
  $ kvfold eval pi-llm --n 4,16,64 --agent plain,sculptor
  $ kvfold eval needles similar --needles 4 --length 8k --model qwen3-4b-q8_0.gguf
  $ kvfold eval logbook --agent plain,policy,summary --model qwen3-4b-q8_0.gguf
  $ kvfold eval mrcr --data 2needle.parquet --limit 100 --engine http://127.0.0.1:8000/v1
  $ kvfold eval table                          the built-in model, six agents; you may stop it and continue later

The same command continues a stopped run. The log (JSON Lines, docs/eval-log.schema.json) has every message, call and step.
kvfold report makes tables and figures of it.

Sessions of many turns have commands of their own: see kvfold eval memtool --help.`

export function addEval(program: Command, shell: Shell): void {
  const command = program
    .command('eval')
    .description('measure how well agents answer, from how much context and at what cost: accuracy, tokens and time, with a log')
    .argument('<task...>', 'the tasks; see below')
  // The subcommands have options with the same names.
  addEvalService(command.enablePositionalOptions(), shell)
  addMemTool(command, shell)
  addEvalOptions(command)
    .addHelpText('after', HELP)
    .action(async (words: string[], flags: EvalFlags) => {
      const { tasks, options } = words.includes('table') ? table(words, flags) : { tasks: words, options: flags }
      const asked = askedTasks(tasks, options)
      // Imported here, so that other commands do not load its libraries.
      const { evaluate } = await import('../eval/evaluate.js')
      await evaluate(asked, options, shell)
    })
}

/** Returns the tasks and options of `kvfold eval table`. @throws KvfoldError cli/bad-usage if another task is named too */
function table(words: readonly string[], flags: EvalFlags): { readonly tasks: readonly string[]; readonly options: EvalFlags } {
  if (words.length > 1)
    throw new KvfoldError('cli/bad-usage', 'The table is a list of tasks itself; name only the table, or only tasks.')
  const { agent, sizes, needles, samples, maxTokens, tasks } = TABLE
  const lengths = flags.n === undefined && flags.length === undefined ? { sizes } : {}
  return { tasks, options: { agent, samples, needles, maxTokens, ...lengths, ...flags } }
}

// The command `kvfold eval service`: agents with different kinds of context management run an order desk. Compares their rewards, tokens
// and context sizes, all from the ledger.

interface ServiceFlags extends ModelFlags, EngineFlags {
  readonly agent: Manner | 'model'
  readonly framework: readonly FrameworkName[]
  readonly turns: readonly number[]
  readonly fields: readonly number[]
  readonly samples?: number
  readonly replay?: string
  readonly seed: number
  readonly window?: number
  readonly foldFrom?: number
  readonly rebuildEvery?: number
  readonly results?: 'lines' | 'all'
  readonly notes: boolean
  readonly principles?: true
  readonly folder?: string
  readonly temperature: number
  readonly maxTokens: number
  readonly log: string
  readonly report?: string
  readonly follow?: true
  readonly json?: true
}

const SERVICE_HELP = `
Frameworks:
${frameworkNames.map((name) => `  ${name.padEnd(18)} ${frameworkTitles[name]}`).join('\n')}

Examples:
  $ kvfold eval service --agent taught --framework react,u-fold --turns 12
  $ kvfold eval service --framework react,u-fold --model qwen3-4b-q8_0.gguf --samples 10 --report desk
  $ kvfold eval service --agent taught --fields 0,8,32 --framework all --report desk
  $ kvfold eval service --replay tau-bench/historical_trajectories/gpt-4o-airline.json --framework all

The scripted agents (${manners.join(', ')}) follow a script that reads what the context shows. The engine computes every prompt, so tokens
and context are real; the reward says nothing about a model. The same command continues a stopped run.`

function addEvalService(evaluation: Command, shell: Shell): void {
  const command = evaluation
    .command('service')
    .description(
      'compare frameworks at an order desk, where a customer makes one request after another: reward, tokens and context',
    )
    .addOption(
      new Option('-a, --agent <who>', 'the speaker: the model, or a script on the real engine')
        .choices([...manners, 'model'])
        .default('model'),
    )
    .option('-f, --framework <list>', 'names separated by commas, or all; see below', oneOf(frameworkNames, 'all'), [
      'react',
      'u-fold',
    ])
    .option('--turns <list>', 'turns of a dialogue', integers(1, 1000), [12])
    .option('--fields <list>', 'unneeded fields in every record of a result', integers(0, 1000), [0])
    .option('--samples <count>', 'dialogues of each length (default: 1; with --replay: all)', integer(1, 10_000))
    .addOption(
      new Option(
        '--replay <file>',
        "replay recorded dialogues instead of the order desk: tau-bench's historical_trajectories, or results of tau2",
      ).conflicts(['agent', 'turns', 'fields']),
    )
    .option('--seed <number>', 'seed of the first dialogue', integer(0, 0xffff_ffff), 1)
    .option('--window <tokens>', "context that a framework may use (default: the engine's)", integer(512, 1 << 30))
    .option(
      '--fold-from <tokens>',
      'u-fold: fold only from this many tokens on (default: 8,192, or a quarter of the window)',
      integer(0, 1 << 30),
    )
    .option(
      '--rebuild-every <folds>',
      'u-fold: after this many folds, write the notes anew from the whole log (default: 4)',
      integer(1, 10_000),
    )
    .addOption(
      new Option('--results <what>', 'u-fold: which results stay visible: chosen lines, or all of them as an ablation').choices([
        'lines',
        'all',
      ]),
    )
    .option('--no-notes', 'u-fold, an ablation: messages stay visible, and no helper writes a summary')
    .option('--principles', "u-fold: the extractor's prompt includes the paper's principles about tasks")
    .option('--folder <model>', 'u-fold: another model for the two helpers: a GGUF, or the URL of an OpenAI-compatible server')
    .option('-t, --temperature <value>', 'temperature of a model', decimal(0, 100), 0)
    .option('--max-tokens <count>', 'longest step', integer(1, 1 << 20), 1024)
    .option('--report <folder>', 'folder for a page with figures')
    .option('--follow', FOLLOW)
    .option('--json', 'end with a line of JSON')
  addOut(command, '<folder>', 'folder for the files of dialogues', 'log', 'kvfold-eval')
  addEngineOptions(addModelOptions(command))
  const contract = command.options.find((option) => option.attributeName() === 'contract')!
  contract.argChoices = [...CONTRACT_CHOICES]
  command.addHelpText('after', SERVICE_HELP).action((flags: ServiceFlags) => service(flags, shell))
}

async function service(flags: ServiceFlags, shell: Shell): Promise<void> {
  const { notes, out, interrupt } = shell
  const open: Engine[] = []
  try {
    const remote = await engineSource(flags, 1, notes, interrupt.signal)
    if (remote !== null && (flags.agent !== 'model' || flags.replay !== undefined))
      throw new KvfoldError(
        'cli/bad-usage',
        `A script needs an engine in this process; leave out --engine, or ${flags.replay === undefined ? `--agent ${flags.agent}` : '--replay'}.`,
      )
    const engine = remote === null ? await loadEngine(flags, notes, interrupt.signal, { slots: 1 }) : await remote.load()
    open.push(engine)
    const folder = flags.folder === undefined ? undefined : await folderOf(flags.folder, flags, shell)
    if (folder !== undefined) open.push(folder)
    const { framework, seed, contract, temperature, maxTokens, log, principles, replay } = flags
    const agent = replay === undefined ? flags.agent : 'recorded'
    const scenarios =
      replay === undefined
        ? deskScenarios({ ...flags, samples: flags.samples ?? 1 })
        : replayScenarios(readDialogues(readText(replay, '--replay'), replay).slice(0, flags.samples))
    const command = commandOf(shell)
    const fold = definedFields({
      foldFrom: flags.foldFrom,
      rebuildEvery: flags.rebuildEvery,
      results: flags.results,
      principles,
      notes: flags.notes ? undefined : false,
    })
    const follower = flags.follow === true ? new Follower(notes) : null
    const dialogues = await runService({
      ...{
        engine,
        weights: await Promise.all([engine, ...(folder === undefined ? [] : [folder])].map(weightsOf)),
        settings: answerSettings(flags),
        frameworks: framework,
        scenarios,
        contract,
        temperature,
        maxTokens,
        fold,
        log,
        command,
      },
      ...(folder === undefined ? {} : { folder }),
      window: flags.window ?? engine.info.context,
      signal: interrupt.signal,
      onResumed: (path, turns) => {
        if (flags.json !== true) notes.prose(`${path} has ${plural(turns, 'turn')} already; delete it to play them again.`)
      },
      onTurn: (cell, of, turn) => {
        if (flags.json !== true)
          notes.frame([`${cell.framework}, ${cell.turns} turns, ${cell.fields} fields, seed ${of}: turn ${turn}`])
      },
      ...(follower === null
        ? {}
        : {
            onStep: ({ framework: name, turns, fields }, of, step) => {
              follower.say(`${name}, ${turns} turns, ${fields} fields, seed ${of}`, step)
            },
          }),
    })
    notes.close()
    const rows = rowsOf(dialogues)
    const whose =
      replay !== undefined
        ? `a replay of ${basename(replay)}, with its words, calls and results`
        : agent === 'model'
          ? 'its own words'
          : `words of a script (${agent}), which say nothing about the model`
    const about = {
      task: 'service',
      model: engine.info.model,
      agent,
      contract,
      window: flags.window ?? engine.info.context,
      seed,
      fold,
      folder: folder?.info.model ?? null,
    }
    if (flags.report !== undefined) {
      // The drawing code takes long to load, so it is imported only here.
      const { publishService } = await import('../../service/report.js')
      const page = publishService(flags.report, { rows, dialogues, command, about: `${engine.info.model}, ${whose}` })
      notes.print(`Report: ${page}`)
    }
    if (flags.json === true) {
      out.print(JSON.stringify({ ...about, frameworks: rows, logs: dialogues.map(({ path }) => path) }))
      return
    }
    out.print(`${engine.info.model}: ${whose}`)
    for (const line of terminal(serviceTable(rows), out.rule)) out.print(line)
    for (const note of SERVICE_NOTES) out.prose(note, out.colours.dim)
  } finally {
    notes.close()
    for (const engine of open.reverse()) await engine.dispose()
  }
}

/**
 * Opens the engine of the model that writes notes (`--folder`): a remote one for a URL, else a model loaded here. @throws KvfoldError
 * model/*, remote/*
 */
function folderOf(name: string, flags: ServiceFlags, { notes, interrupt }: Shell): Promise<Engine> {
  return /^https?:\/\//.test(name)
    ? RemoteEngine.connect({ url: name, key: readKey({}), signal: interrupt.signal })
    : loadEngine({ ...withoutDraftModel(flags), model: name }, notes, interrupt.signal, { slots: 1 })
}
