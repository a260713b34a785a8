/** Defines the options of `kvfold eval`: the names of its tasks, each task's options, and the task specs made of them. */
import { definedFields } from '../../../runtime/core/json.js'
import { dirname, join } from 'node:path'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { CONTRACT_CHOICES, type ContractChoice } from '../../../runtime/core/contract.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import { type AgentKind, agentKinds } from '../../agent.js'
import { piOrders } from '../../pi-llm.js'
import type { TaskName, TaskSpec } from '../../task.js'
import { listContracts, oneOf } from '../lists.js'
import { FOLLOW } from './follow.js'
import { addModelOptions, collect, decimal, integer, integers, type ModelFlags } from '../../../runtime/cli/options.js'
import { addOut } from '../../../runtime/cli/out-option.js'
import { addEngineOptions, type EngineFlags } from '../../../runtime/cli/remote-engines.js'

/** The options that only some tasks take. */
export interface TaskFlags {
  readonly samples?: number
  readonly limit?: number
  readonly sizes?: readonly number[]
  readonly n?: readonly number[]
  readonly keys?: number
  readonly words?: string
  readonly wordings?: string
  readonly prompts?: string
  readonly order?: string
  readonly tail?: number
  readonly needles?: readonly number[]
  readonly length?: readonly number[]
  readonly depth?: number
  readonly filler?: string
  readonly data?: readonly string[]
  readonly articles?: string
  readonly taskOption?: readonly string[]
}

export interface EvalFlags extends TaskFlags, Omit<ModelFlags, 'contract'>, EngineFlags {
  readonly agent?: readonly AgentKind[]
  readonly agentOption?: readonly string[]
  readonly contract: readonly ContractChoice[]
  readonly seed: number
  readonly temperature?: number
  readonly maxTokens?: number
  readonly slots?: number
  readonly embedder?: string
  readonly judge?: string
  readonly judgeModel?: string
  readonly log?: string
  readonly follow?: true
  readonly json?: true
}

export function addEvalOptions(command: Command): Command {
  command
    .option(
      '-a, --agent <list>',
      `agents, separated by commas, or all: ${agentKinds.join(', ')} (default: plain,sculptor)`,
      oneOf(agentKinds, 'all'),
    )
    .option('--samples <count>', 'samples of every cell of generated tasks (default: 20)', integer(1, 100_000))
    .option('--seed <number>', 'seed of the samples and of the agents', integer(0, 0xffff_ffff), 1)
    .option('--sizes <list>', "sizes of prompts in the model's tokens, such as 1k,2k,4k (generated tasks)", tokens)
  addTaskOptions(command)
    .option(
      '--prompts <folder>',
      "checkout of the authors' repository, for their own prompts; original: the checkout that has --words (pi-llm, needles, longbench-v2, frames, babilong; default: our prompts)",
    )
    .option('--tail <share>', 'show only the last part of the stream, such as 20% (pi-llm)', share)
    .option('--filler <file>', "text that hides the needles, instead of the project's own (needles)")
    .option(
      '--data <path>',
      'file of the task: JSONL, JSON, TSV, Parquet, or hf:datasets/owner/name/file; for several tasks task=path',
      collect,
    )
    .option('--articles <path>', 'the articles that questions are about (frames)')
    .option(
      '--task-option <option>',
      'any other option of a task, such as babilong.lengths=["8k"]; repeat it for more options',
      collect,
    )
    .option(
      '--agent-option <option>',
      'an option of an agent, such as memagent.chunkTokens=2000; repeat it for more options',
      collect,
    )
    .option('-t, --temperature <value>', "temperature, instead of the tasks' own, most of which are 0", decimal(0, 100))
    .option('--max-tokens <count>', "most tokens of a step, if that is less than the task's own limit", integer(1, 1 << 20))
    .option(
      '--embedder <model>',
      'model that makes vectors for rag-dense and mem0: GGUF, hub URI, folder of an ONNX model (default: the model itself)',
    )
    .option(
      '--judge <url>',
      'OpenAI-compatible server whose model judges the answers of tasks that need a judge; self: the evaluated model',
    )
    .option('--judge-model <name>', 'model of the --judge server (default: the first that it lists)')
    .option(
      '--slots <count>',
      'samples at once (default: 4; with the built-in model one per core, each in an engine of its own)',
      integer(1, 256),
    )
    .option('--follow', `${FOLLOW}, and log every step at once`)
    .option('--json', 'end with a line of JSON: accuracy, tokens and other numbers')
  addOut(command, '<file>', 'file for the records; a stopped run continues in it (default: a file in kvfold-eval/)', 'log')
  addEngineOptions(addModelOptions(command))
  const about = `contracts of the folds: one or several of ${CONTRACT_CHOICES.join(', ')}; agents that fold nothing run under the first`
  listContracts(command, about, CONTRACT_CHOICES, ['exact'])
  const engine = command.options.find((option) => option.attributeName() === 'engine')!
  engine.description = 'evaluate the model of an OpenAI-compatible server: vLLM, SGLang, llama-server, kvfold'
  return command
}

/** Adds the options of single tasks, which both `eval` and `collect` have. */
export function addTaskOptions(command: Command): Command {
  return command
    .option('--n <list>', 'updates of every key, such as 4,16,64 (pi-llm)', integers(1, 10_000))
    .option('--keys <count>', 'keys of a stream (pi-llm; default: all, 46 of our own)', integer(1, 10_000))
    .option('--words <file>', 'keys and values from a JSON file {category: [value, ...]} (pi-llm)')
    .option('--wordings <file>', 'prompts in other words, from a JSON file; each wording is a cell (pi-llm)')
    .addOption(new Option('--order <order>', 'place of the last updates in the stream (pi-llm)').choices(piOrders))
    .option('--needles <list>', 'number of facts in the chain, or of similar texts (needles, similar)', integers(1, 64))
    .option('--length <list>', 'length of the text in tokens of 4 characters, such as 1k,8k (needles, similar, logbook)', tokens)
    .option('--depth <percent>', 'depth of the first needle in percent (needles; default: 40)', decimal(0, 100))
    .option('--limit <count>', 'use only this many first rows of the file', integer(1, 1_000_000_000))
}

/** Parses a list of lengths such as `500,1k,8k`; 8k is 8,000. Returns the distinct lengths, the smallest first. */
export function tokens(text: string): number[] {
  const one = (part: string): number => {
    const [, digits, unit] = /^(\d+(?:\.\d+)?)([km]?)$/i.exec(part.trim()) ?? []
    const value = Number(digits) * { '': 1, k: 1000, m: 1_000_000 }[(unit ?? '').toLowerCase() as '' | 'k' | 'm']
    if (digits === undefined || !Number.isSafeInteger(value) || value < 1)
      throw new InvalidArgumentError('It must be numbers of tokens, separated by commas, such as 500,1k,2.5k.')
    return value
  }
  return [...new Set(text.split(',').map(one))].sort((a, b) => a - b)
}

/** Parses a share above 0 and up to 1, such as `20%` or `0.2`. */
function share(text: string): number {
  const [, digits, percent] = /^(\d*\.?\d+)\s*(%?)$/.exec(text.trim()) ?? []
  const value = Number(digits) / (percent === '%' ? 100 : 1)
  if (digits === undefined || !(value > 0 && value <= 1)) throw new InvalidArgumentError('It must be a share such as 20% or 0.2.')
  return value
}

// Below: the task names of the command line, the options that each task takes, and the task specs made of them.

/** A task name of the command line. It means a task with one source of samples: the generator, or a file. */
interface Called {
  readonly task: TaskName
  readonly about: string
  /** `must`: the user has to name a data file. `may`: the default is the hub's file. `never`: the samples are generated. */
  readonly data: 'must' | 'may' | 'never'
  readonly takes: readonly (keyof TaskFlags)[]
}

const GENERATED = ['samples', 'sizes'] as const
const LOADED = ['data', 'limit'] as const

const names = {
  'pi-llm': {
    task: 'pi-llm',
    about: 'the last values of keys that are updated again and again',
    data: 'never',
    takes: [...GENERATED, 'n', 'keys', 'words', 'wordings', 'prompts', 'order', 'tail'],
  },
  needles: {
    task: 'needles',
    about: 'a chain of kinship sentences in a long text (NeedleBench M-RS)',
    data: 'never',
    takes: [...GENERATED, 'needles', 'length', 'depth', 'filler', 'prompts'],
  },
  similar: {
    task: 'mrcr',
    about: 'the k-th of several similar texts, generated (MRCR)',
    data: 'never',
    takes: [...GENERATED, 'needles', 'length'],
  },
  logbook: {
    task: 'logbook',
    about: 'the current value in a log that an agent has read, after older ones or with a rule',
    data: 'never',
    takes: [...GENERATED, 'length'],
  },
  mrcr: { task: 'mrcr', about: "MRCR, from a file in OpenAI's form", data: 'must', takes: LOADED },
  'longbench-v2': { task: 'longbench-v2', about: 'LongBench v2', data: 'may', takes: [...LOADED, 'prompts'] },
  frames: {
    task: 'frames',
    about: 'FRAMES, judged by a model; needs --articles',
    data: 'may',
    takes: [...LOADED, 'articles', 'prompts'],
  },
  babilong: { task: 'babilong', about: 'BABILong, from files', data: 'must', takes: [...LOADED, 'prompts'] },
  'gsm-infinite': { task: 'gsm-infinite', about: 'GSM-Infinite, from a file', data: 'must', takes: LOADED },
} as const satisfies Record<string, Called>

export type CalledTask = keyof typeof names
export const calledTasks = Object.keys(names) as CalledTask[]

/** Returns the help text: one line per task. */
export const taskHelp = (): string => calledTasks.map((name) => `  ${name.padEnd(14)} ${names[name].about}`).join('\n')

/** A task as asked for on the command line. If `sizes` is not empty, `spec` lacks the lengths, which `sized` computes from the sizes. */
export interface AskedTask {
  readonly called: CalledTask
  readonly spec: TaskSpec
  /** Prompt sizes in tokens of the model. Empty if other options give the lengths. */
  readonly sizes: readonly number[]
}

/**
 * Parses the named tasks. @throws KvfoldError cli/bad-usage for an unknown task, an option that no named task takes, or a missing data file
 */
export function askedTasks(words: readonly string[], flags: TaskFlags & { readonly seed: number }): AskedTask[] {
  const called = [...new Set(words)].map((word) => {
    if (Object.hasOwn(names, word)) return word as CalledTask
    throw new KvfoldError(
      'cli/bad-usage',
      `${word} is not a task; the tasks are ${calledTasks.join(', ')}, and table for a whole table.`,
    )
  })
  refuseStrays(called, flags)
  const files = dataOf(called, flags.data ?? [])
  const further = namedOptions('--task-option', called, flags.taskOption ?? [])
  return called.map((name) => ({
    called: name,
    spec: { task: names[name].task, options: { ...optionsOf(name, flags, files.get(name)), ...further.get(name) } },
    sizes: flags.sizes ?? [],
  }))
}

const words: Readonly<Partial<Record<keyof TaskFlags, string>>> = { n: '--n', length: '--length' }
const option = (flag: keyof TaskFlags): string => words[flag] ?? `--${flag}`

function refuseStrays(called: readonly CalledTask[], flags: TaskFlags): void {
  const all = new Set<keyof TaskFlags>(calledTasks.flatMap((name) => names[name].takes))
  for (const flag of all) {
    if (flags[flag] === undefined || called.some((name) => takes(name, flag))) continue
    const owners = calledTasks.filter((name) => takes(name, flag))
    throw new KvfoldError(
      'cli/bad-usage',
      `${option(flag)} is an option of ${owners.join(', ')}, but you named ${called.join(', ')}.`,
    )
  }
  if (called.includes('frames') && flags.articles === undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      'frames asks about articles that it does not include. Give them with --articles: a folder of text files, or rows with title and text.',
    )
  for (const other of ['n', 'length'] as const)
    if (flags.sizes !== undefined && flags[other] !== undefined)
      throw new KvfoldError('cli/bad-usage', `--sizes and ${option(other)} both set the length of prompts; give one of them.`)
}

const takes = (name: CalledTask, flag: keyof TaskFlags): boolean => (names[name].takes as readonly string[]).includes(flag)

/** Returns the data file of each task that has one. `texts`: the values of `--data`. */
function dataOf(called: readonly CalledTask[], texts: readonly string[]): ReadonlyMap<CalledTask, string> {
  const loaded = called.filter((name) => names[name].data !== 'never')
  const files = new Map<CalledTask, string>()
  for (const text of texts) {
    const [, name, path] = /^([a-z0-9-]+)=(.+)$/.exec(text) ?? []
    if (name !== undefined && path !== undefined && Object.hasOwn(names, name)) {
      if (!loaded.includes(name as CalledTask))
        throw new KvfoldError(
          'cli/bad-usage',
          `--data names a file for ${name}, but you did not name this task or it takes no file.`,
        )
      files.set(name as CalledTask, path)
    } else if (loaded.length > 1)
      throw new KvfoldError(
        'cli/bad-usage',
        `--data ${text} does not name the task of the file; write ${loaded.map((one) => `--data ${one}=FILE`).join(' ')}.`,
      )
    else files.set(loaded[0]!, text)
  }
  const missing = loaded.find((name) => names[name].data === 'must' && !files.has(name))
  if (missing !== undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      `${missing} needs its file: --data PATH or --data hf:datasets/owner/name/file${missing === 'mrcr' ? '; the task similar generates texts of this form' : ''}.`,
    )
  return files
}

/**
 * Parses options of tasks or agents in the form `owner.option=value`. The value is JSON or plain text.
 * @throws KvfoldError cli/bad-usage
 */
export function namedOptions<Owner extends string>(
  flag: string,
  owners: readonly Owner[],
  texts: readonly string[],
): ReadonlyMap<Owner, Readonly<Record<string, unknown>>> {
  const found = new Map<Owner, Record<string, unknown>>()
  for (const text of texts) {
    const [, name = '', option = '', value = ''] = /^([\w-]+)\.(\w+)=(.*)$/s.exec(text) ?? []
    const owner = owners.find((one) => one === name)
    if (owner === undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `${flag} ${text} is wrong; write ${owners[0]!}.option=value, with one of ${owners.join(', ')}.`,
      )
    found.set(owner, { ...found.get(owner), [option]: plainOrJson(value) })
  }
  return found
}

function plainOrJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function optionsOf(
  name: CalledTask,
  flags: TaskFlags & { readonly seed: number },
  data: string | undefined,
): TaskSpec['options'] {
  const { samples, limit, n, keys, words, wordings, prompts, order, tail, needles, length, depth, filler, articles } = flags
  const common = names[name].data === 'never' ? { samples, seed: flags.seed } : { data, limit }
  switch (name) {
    case 'pi-llm':
      return definedFields({ ...common, updates: n, keys, words, wordings, prompts: checkoutOf(prompts, words), order, tail })
    case 'needles':
      return definedFields({ ...common, needles, lengths: length, depth, filler, prompts: checkoutOf(prompts) })
    case 'similar':
      return definedFields({ ...common, needles, lengths: length })
    case 'logbook':
      return definedFields({ ...common, lengths: length })
    case 'frames':
      return definedFields({ ...common, articles, prompts: checkoutOf(prompts) })
    case 'longbench-v2':
    case 'babilong':
      return definedFields({ ...common, prompts: checkoutOf(prompts) })
    case 'mrcr':
    case 'gsm-infinite':
      return definedFields(common)
  }
}

/**
 * Returns `prompts` unchanged. For `original`, returns the folder of the authors' checkout, which is the parent of the folder of `words`.
 * @throws KvfoldError cli/bad-usage for `original` without `words`
 */
function checkoutOf(prompts: string | undefined, words?: string): string | undefined {
  if (prompts !== 'original') return prompts
  if (words !== undefined) return join(dirname(words), '..')
  throw new KvfoldError(
    'cli/bad-usage',
    "--prompts original takes the prompts from the authors' checkout that has --words. Without --words, name the checkout: --prompts <folder>.",
  )
}
