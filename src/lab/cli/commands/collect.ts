/** The command `kvfold collect`: collects trajectories of agents for training. Each marks the tokens or messages that have loss. */
import { definedFields } from '../../../runtime/core/json.js'
import { createHash } from 'node:crypto'
import { Option, type Command } from 'commander'
import { systemPrompts } from '../../../runtime/agents/sculptor.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import type { TrajectoryFile } from '../../collect/collect.js'
import type { Format } from '../../collect/formats.js'
import type { TaughtPrompt, TrajectorySource } from '../../collect/sources.js'
import { type TaughtAgent, taughtAgents } from '../../collect/trajectory.js'
import { type Relation, relations } from '../../memtool/companies.js'
import { type WayName, wayNames } from '../../memtool/session.js'
import { type FrameworkName, frameworkNames } from '../../service/frameworks.js'
import { addTaskOptions, askedTasks, type TaskFlags } from '../eval/flags.js'
import { toolCount } from '../lists.js'
import {
  addModelOptions,
  answerSettings,
  collect,
  decimal,
  integer,
  type ModelFlags,
  withoutDraftModel,
} from '../../../runtime/cli/options.js'
import { addEngineOptions, type EngineFlags, engineSource, isRemote } from '../../../runtime/cli/remote-engines.js'
import { loadEngine, weightsOf } from '../../../runtime/cli/runtime.js'
import type { Shell } from '../../../runtime/cli/shell.js'

/** The default seed. It differs from that of `kvfold eval`, so that a model is not tested on the samples that it was trained on. */
const SEED = 3_000_000_001

interface CollectFlags extends ModelFlags, TaskFlags, EngineFlags {
  readonly seed: number
  readonly agent: TaughtAgent
  readonly systemPrompt?: TaughtPrompt
  readonly teacher?: 'script' | 'model'
  readonly rollouts: number
  readonly temperature: number
  readonly maxTokens?: number
  readonly maxCalls?: number
  readonly stumble?: true
  readonly turns: number
  readonly way: WayName
  readonly tools: number
  readonly relation: Relation
  readonly framework: FrameworkName
  readonly fields: number
  readonly format: Format
  readonly tokenizer?: string
  readonly out?: string
  readonly json?: true
}

const HELP = `
Tasks: in pi-llm, needles and similar a script or a model can act. In logbook, mrcr, longbench-v2, babilong and gsm-infinite a model
  acts, and for all but logbook --data names the file. chat has answers without calls, so that a model learns when it needs no tool: a
  script takes them from the file, a model answers without seeing the tools. memtool has sessions in which tools come and go; service has dialogues at an order
  desk. A script or a model can act in both. A session is one trajectory.

Each row is a snapshot (Sculptor, algorithm 1). Every call that changes the context makes one, and the end of the trajectory makes one.
  id, rollout   the trajectory; snapshot, snapshots: the number of this row and of all its rows; tries at one prompt share a group
  steps         the completions with loss in this snapshot; over a trajectory every completion has loss once
  outcomes      the calls of each of them: done, failed, or malformed (not JSON), and whether a later call recovered it
  logprobs      log-probabilities of the tokens of each, under the model that acted: before temperature, filters and grammar
  reward        1: right; -1: a failed call that was not recovered, too many calls, a cut-off answer or a full context; else 0; points: 0 to 1
  parts         the counts that decide the reward
  sampling      settings and seed of the model that acted

Formats (--format):
  tokens             tokens: the prompt and the last completion; loss: half-open spans of tokens with loss
  messages           messages and tools as the model saw them; loss: whether an assistant's message has loss (ms-swift reads this form)
  prompt-completion  the same, cut before the first completion with loss (TRL: SFTTrainer with assistant_only_loss)
  verl               Parquet: input_ids, labels, loss_mask, old_log_probs; prompt, data_source, reward_model, extra_info; TRL reads it, too

An engine (--engine) that reports no token ids gives messages with log-probabilities of pieces of text. The tokens are then those of
--tokenizer, without probabilities. Without --tokenizer the rows have no tokens.

Examples:
  $ kvfold collect pi-llm --n 4,16,64 --samples 100            a script acts
  $ kvfold collect pi-llm --order middle-last --n 16           the script returns to earlier text
  $ kvfold collect pi-llm --teacher model --temperature 1 --rollouts 8 --model qwen3-4b-q8_0.gguf --format verl
  $ kvfold collect babilong --data qa1_4k.jsonl --engine http://127.0.0.1:8000 --format messages
  $ kvfold collect memtool --turns 20 --way autonomous --samples 10`

export function addCollect(program: Command, shell: Shell): void {
  const command = program
    .command('collect')
    .description('collect trajectories of agents that use context tools, for training (JSON Lines, Parquet)')
    .argument('<task>', 'the task; see below')
    .addOption(
      new Option(
        '--teacher <who>',
        'a script that knows the answer acts, or the model itself (default: script; with --engine: model)',
      ).choices(['script', 'model']),
    )
    .addOption(
      new Option('--format <form>', 'the format of the rows; see below')
        .choices(['tokens', 'messages', 'prompt-completion', 'verl'] satisfies Format[])
        .default('tokens'),
    )
    .option(
      '--tokenizer <model>',
      'a GGUF file whose vocabulary and chat template make the tokens of the snapshots (with --engine)',
    )
    .option('--samples <count>', 'samples of every size, or sessions (default: 20)', integer(1, 1_000_000))
    .option('--seed <number>', 'seed of the samples and of the model; not that of `kvfold eval`', integer(0, 0xffff_ffff), SEED)
  addTaskOptions(command)
    .option('--data <path>', 'file of the task: JSONL, JSON, TSV, Parquet, or hf:datasets/owner/name/file', (path) => [path])
    .option('--prompts <folder>', "the authors' own prompts, from a checkout of their repository (default: ours)")
    .option(
      '--task-option <option>',
      'any other option of a task, such as babilong.tasks=["qa1"]; repeat it for more options',
      collect,
    )
    .addOption(
      new Option('-a, --agent <agent>', 'the agent: sculptor has the context tools, plain has no tools')
        .choices(taughtAgents)
        .default('sculptor'),
    )
    .addOption(
      new Option('--system-prompt <name>', "system prompt of the agent sculptor (default: the task's)").choices([
        ...Object.keys(systemPrompts),
        'none',
      ]),
    )
    .option('--turns <count>', 'turns of a session (memtool, service)', integer(1, 1000), 12)
    .addOption(new Option('--way <name>', 'the way of managing tools (memtool)').choices(wayNames).default('hybrid'))
    .option('--tools <count>', 'tools in the catalogue, five for each company (memtool)', toolCount, 500)
    .addOption(
      new Option('--relation <kind>', 'relation of a turn to the one before (memtool)').choices(relations).default('mixed'),
    )
    .addOption(
      new Option('--framework <name>', 'the framework that runs the order desk (service)')
        .choices(frameworkNames)
        .default('sculptor'),
    )
    .option('--fields <count>', 'unneeded fields in every record of a result (service)', integer(0, 1000), 0)
    .option('--rollouts <count>', 'tries at every sample', integer(1, 10_000), 1)
    .option('-t, --temperature <value>', 'temperature of the model that acts', decimal(0, 100), 0)
    .option('--max-tokens <count>', "most tokens of a step (default: the task's)", integer(1, 1_000_000))
    .option('--max-calls <count>', 'most calls of a turn (default: 20)', integer(1, 10_000))
    .option('--stumble', 'begin every try with a failed call in place of the model, so that it learns to recover')
    .option(
      '-o, --out <file>',
      'the file; an unfinished file of the same run is continued (default: trajectories.jsonl or .parquet)',
    )
    .option('--json', 'end with a line of JSON')
  addEngineOptions(addModelOptions(command))
    .addHelpText('after', HELP)
    .action((task: string, flags: CollectFlags) => {
      refuseStrays(task, command)
      return collectTo(task, flags, shell)
    })
}

/**
 * `TAKES`: for each source besides the tasks, which of the options below it takes. `SESSIONS`, `SAMPLES`: all options that only some
 * sources take.
 */
const TAKES = {
  chat: ['agent', 'systemPrompt', 'maxTokens', 'data', 'limit'],
  memtool: ['samples', 'turns', 'way', 'tools', 'relation'],
  service: ['samples', 'turns', 'framework', 'fields', 'maxTokens'],
} as const satisfies Readonly<Record<string, readonly (keyof CollectFlags)[]>>
const SESSIONS = ['turns', 'way', 'tools', 'relation', 'framework', 'fields'] as const satisfies readonly (keyof CollectFlags)[]
const SAMPLES = [
  ...['samples', 'n', 'keys', 'words', 'wordings', 'prompts', 'order', 'needles', 'length', 'depth'],
  ...['data', 'limit', 'taskOption', 'agent', 'systemPrompt', 'maxTokens', 'maxCalls', 'stumble'],
] as const satisfies readonly (keyof CollectFlags)[]

/**
 * @throws KvfoldError cli/bad-usage for a given option that the source does not take. Options of single tasks are checked by `askedTasks`.
 */
function refuseStrays(name: string, command: Command): void {
  const takes: readonly string[] = Object.hasOwn(TAKES, name) ? TAKES[name as keyof typeof TAKES] : SAMPLES
  const strays: readonly string[] = [...SESSIONS, ...SAMPLES].filter((option) => !takes.includes(option))
  const stray = command.options.find((option) => {
    const key = option.attributeName()
    return strays.includes(key) && command.getOptionValueSource(key) === 'cli'
  })
  if (stray !== undefined)
    throw new KvfoldError('cli/bad-usage', `${stray.long!} does nothing in trajectories of ${name}; leave it out.`)
}

async function collectTo(name: string, flags: CollectFlags, shell: Shell): Promise<void> {
  const { out, notes, interrupt } = shell
  const { rollouts, format, out: path = format === 'verl' ? 'trajectories.parquet' : 'trajectories.jsonl' } = flags
  refuseMisfits(flags)
  // Imported here, so that other commands do not load its libraries.
  const { collect, TrajectoryFile: Trajectories } = await import('../../collect/collect.js')
  const source = await sourceOf(name, flags, shell)
  const cast = await castOf(flags, shell)
  let file: TrajectoryFile | null = null
  try {
    const { acting, tokens: whose, model } = cast
    file = await Trajectories.open(path, { source, rollouts, acting, model, format })
    const total = source.size * rollouts
    const sum = { trajectories: 0, snapshots: 0, tokens: 0, learned: 0, points: 0 }
    const from = file.begun
    if (from > 0) notes.print(`${path} has ${from} of ${total} trajectories; the run continues.`)
    const { signal } = interrupt
    for await (const one of collect({ source, acting, format, tokens: whose, model, rollouts, signal }, from)) {
      await file.add(one)
      sum.trajectories++
      sum.snapshots += one.rows.length
      sum.points += one.points
      sum.tokens += one.tokens
      sum.learned += one.learned
      notes.frame([`${one.number + 1} of ${total} trajectories, ${sum.snapshots} snapshots`])
    }
    await file.finish()
    notes.close()
    const points = sum.trajectories === 0 ? null : sum.points / sum.trajectories
    if (flags.json === true) out.print(JSON.stringify({ ...sum, points, file: path }))
    else
      out.print(
        `${sum.trajectories} trajectories, ${sum.snapshots} snapshots` +
          (sum.tokens === 0 ? '' : `, ${sum.tokens} tokens, ${sum.learned} of them with loss`) +
          `, in ${path}.` +
          (points === null ? '' : ` Points: ${(points * 100).toFixed(1)} %.`),
      )
  } catch (error) {
    notes.close()
    if (interrupt.interrupted) notes.print(`${path} has the finished trajectories; the same command continues the run.`)
    throw error
  } finally {
    await file?.close()
    await cast.dispose()
    source.close?.()
  }
}

/** @throws KvfoldError cli/bad-usage for options that contradict each other */
function refuseMisfits(flags: CollectFlags): void {
  const remote = isRemote(flags)
  if (remote && flags.teacher === 'script')
    throw new KvfoldError(
      'cli/bad-usage',
      'A script needs the chat format of a model that is loaded here; leave out --engine, or --teacher script.',
    )
  if (remote && flags.stumble === true)
    throw new KvfoldError(
      'cli/bad-usage',
      '--stumble makes a call in place of a model that is loaded here; leave out --engine, or --stumble.',
    )
  if (!remote && flags.tokenizer !== undefined)
    throw new KvfoldError('cli/bad-usage', '--tokenizer needs --engine; a model that is loaded here has tokens of its own.')
}

/** Opens the source of trajectories with this name. @throws KvfoldError cli/bad-usage, eval/bad-data */
async function sourceOf(
  name: string,
  flags: CollectFlags,
  { interrupt }: Shell,
): Promise<TrajectorySource & { readonly close?: () => void }> {
  const { samples = 20, seed, turns, agent, contract } = flags
  const { taskSource, openChatSource, openMemToolSource, deskSource } = await import('../../collect/sources.js')
  const { systemPrompt: prompt, data, limit } = flags
  if (name === 'chat') {
    if (data?.[0] === undefined)
      throw new KvfoldError('cli/bad-usage', 'chat needs --data, a file with a field `messages` in every row.')
    const { maxTokens = 512 } = flags
    return openChatSource({ data: data[0], agent, maxTokens, ...definedFields({ prompt, limit }) }, { signal: interrupt.signal })
  }
  if (name === 'memtool') {
    const { way, tools, relation } = flags
    return openMemToolSource({ way, tools, turns, relation, samples, seed, contract }, interrupt.signal)
  }
  if (name === 'service') {
    const { deskScenarios } = await import('../../service/dialogue.js')
    const { framework, fields, maxTokens = 1024, teacher = isRemote(flags) ? 'model' : 'script' } = flags
    const speaker = teacher === 'script' ? 'taught' : 'model'
    const scenarios = deskScenarios({ turns: [turns], fields: [fields], samples, seed, agent: speaker })
    return deskSource({ scenarios, framework, maxTokens, contract })
  }
  const { openTask } = await import('../../tasks/open.js')
  const [asked] = askedTasks([name], flags)
  const task = await openTask(asked!.spec)
  if (task.judging !== undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      `A model judges the answers of ${name}, but a reward needs exact rules; choose another task.`,
    )
  return taskSource({
    task,
    agent,
    ...definedFields({
      prompt,
      maxTokens: flags.maxTokens,
      maxCalls: flags.maxCalls,
      stumble: flags.stumble,
    }),
  })
}

/** Returns the teacher that acts, where the rows' tokens come from, and the name and fingerprint of the model whose tokens they are. */
async function castOf(flags: CollectFlags, { notes, interrupt }: Shell) {
  const { temperature, seed, tokenizer, maxTokens, maxCalls } = flags
  const remote = await engineSource(flags, 1, notes, interrupt.signal, { tokens: true })
  const settings = (endpoint?: { readonly model: string; readonly release: string }) => {
    const contract = flags.contract === 'exact' ? undefined : flags.contract
    const given = { ...answerSettings(flags), ...definedFields({ contract, maxTokens, maxCalls, endpoint }) }
    return Object.keys(given).length === 0 ? {} : { settings: given }
  }
  if (remote === null) {
    const engine = await loadEngine(flags, notes, interrupt.signal)
    const acting =
      flags.teacher === 'model'
        ? ({ teacher: 'model', engine, sampling: { temperature, seed }, model: engine } as const)
        : ({ teacher: 'script', model: engine } as const)
    const fingerprint = await weightsOf(engine)
    const dispose = () => engine.dispose()
    return { acting, tokens: wordingOf(engine), model: { name: engine.info.model, fingerprint, ...settings() }, dispose }
  }
  const engine = await remote.load()
  const own =
    tokenizer === undefined ? null : await loadEngine({ ...withoutDraftModel(flags), model: tokenizer }, notes, interrupt.signal)
  const { model: name, release } = engine.info
  const takes = engine.flavour.sampling
  // Send neutral values for filters, because engines have their own defaults for options that are left out.
  const neutral = { topP: 1, ...('topK' in takes ? { topK: 0 } : {}), ...('minP' in takes ? { minP: 0 } : {}) }
  const sampling = { temperature, seed, ...neutral }
  const fingerprint =
    own === null
      ? createHash('sha256')
          .update(JSON.stringify([name, release]))
          .digest('hex')
      : await weightsOf(own)
  return {
    acting: { teacher: 'model', engine, sampling } as const,
    tokens: own === null ? ('engine' as const) : wordingOf(own),
    // With a tokenizer, the fingerprint is that of the tokenizer's model. So the endpoint is recorded as a setting.
    model:
      own === null
        ? { name, fingerprint, ...settings() }
        : { name: own.info.model, fingerprint, ...settings({ model: name, release }) },
    dispose: async () => {
      await engine.dispose()
      await own?.dispose()
    },
  }
}

const wordingOf = (engine: LlamaEngine) => ({
  format: engine.format,
  isEndOfGeneration: (token: number) => engine.model.isEndOfGeneration(token),
})
