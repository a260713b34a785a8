/** Owns the options of `kvfold eval`. */
import { InvalidArgumentError, Option, type Command } from 'commander'
import { CONTRACTS, type ContractChoice } from '../../core/contract.js'
import { agentKinds, type AgentKind } from '../../eval/agent.js'
import { piOrders } from '../../eval/pi-llm.js'
import { addEngineOptions, type EngineFlags } from '../engine-source.js'
import { addModelOptions, decimal, integer, integers, type ModelFlags } from '../options.js'

/** Options that belong to some tasks. */
export interface TaskFlags {
  readonly samples?: number
  readonly limit?: number
  readonly sizes?: readonly number[]
  readonly n?: readonly number[]
  readonly keys?: number
  readonly words?: string
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
  readonly json?: true
}

const CHOICES: readonly ContractChoice[] = [...CONTRACTS, 'auto']

export function addEvalOptions(command: Command): Command {
  command
    .option(
      '-a, --agent <list>',
      `who answers: ${agentKinds.join(', ')}, with commas, or all (default: plain,sculptor)`,
      oneOf(agentKinds, 'all'),
    )
    .option('--samples <count>', 'samples of every cell of generated tasks (default: 20)', integer(1, 100_000))
    .option('--seed <number>', 'what samples are made from, and what agents sample with', integer(0, 0xffff_ffff), 1)
    .option('--sizes <list>', 'tokens of a prompt as this model counts them, such as 1k,2k,4k (generated tasks)', tokens)
    .option('--n <list>', 'updates of every key, such as 4,16,64 (pi-llm)', integers(1, 10_000))
    .option('--keys <count>', 'keys of a stream (pi-llm; default: all, 46 of our own)', integer(1, 10_000))
    .option('--words <file>', 'keys and values from a JSON file {category: [value, ...]} (pi-llm)')
    .addOption(orderOption())
    .option('--tail <share>', 'only the last part of the stream is shown, such as 20% (pi-llm)', share)
    .option('--needles <list>', 'facts to be linked, or texts alike (needles, similar)', integers(1, 64))
    .option('--length <list>', 'tokens of the text, 4 characters each, such as 1k,8k (needles, similar)', tokens)
    .option('--depth <percent>', 'where the first needle stands (needles; default: 40)', decimal(0, 100))
    .option('--filler <file>', "text to hide needles in, instead of the project's own (needles)")
    .option(
      '--data <path>',
      'file of the task: JSONL, JSON, TSV, Parquet, or hf:datasets/owner/name/file; for several tasks task=path',
      collect,
    )
    .option('--limit <count>', 'only the first rows of the file', integer(1, 1_000_000_000))
    .option('--articles <path>', 'the articles that questions are about (frames)')
    .option(
      '--task-option <option>',
      'any other option of a task, such as babilong.lengths=["8k"]; may be given several times',
      collect,
    )
    .option(
      '--agent-option <option>',
      'an option of an agent, such as memagent.chunkTokens=2000; may be given several times',
      collect,
    )
    .option('-t, --temperature <value>', "instead of the tasks' own, most of which are 0", decimal(0, 100))
    .option('--max-tokens <count>', "longest step, where it is less than the task's own", integer(1, 1 << 20))
    .option(
      '--embedder <model>',
      'what makes vectors for rag-dense and mem0: GGUF, hub URI, folder of an ONNX model (default: the model itself)',
    )
    .option('--judge <url>', 'an OpenAI-compatible server whose model judges answers (default: the model judges itself)')
    .option('--judge-model <name>', 'which of its models (default: the first that it lists)')
    .option(
      '--slots <count>',
      'samples at once (default: 4; of the built-in model one a core, each in an engine of its own)',
      integer(1, 256),
    )
    .option('--log <file>', 'where records go; a run that was stopped goes on there (default: a file in kvfold-eval/)')
    .option('--json', 'a line of JSON at the end: accuracy, tokens and the rest')
  addEngineOptions(addModelOptions(command))
  adapt(command)
  return command
}

/** A new one every time: commands may change theirs. */
export const orderOption = (): Option => new Option('--order <order>', 'where the last updates stand (pi-llm)').choices(piOrders)

/** Options of all commands that mean something else here. */
function adapt(command: Command): void {
  const optionOf = (name: string): Option => command.options.find((option) => option.attributeName() === name)!
  const contract = optionOf('contract')
  delete contract.argChoices
  contract.argParser(oneOf(CHOICES)).description =
    `how folds are carried out, one or several of ${CHOICES.join(', ')}; agents that fold nothing run under the first`
  contract.default(['exact'], 'exact')
  command.setOptionValueWithSource('contract', ['exact'], 'default')
  optionOf('engine').description = 'evaluate the model of an OpenAI-compatible server: vLLM, SGLang, llama-server, kvfold'
}

/** A commander parser of lists of names, each once, in the order given. */
export function oneOf<Name extends string>(names: readonly Name[], all?: string): (text: string) => readonly Name[] {
  return (text) => {
    if (text === all) return names
    const asked = [...new Set(text.split(',').map((part) => part.trim()))]
    const wrong = asked.find((name) => !(names as readonly string[]).includes(name))
    if (wrong === undefined) return asked as Name[]
    const every = all === undefined ? '' : `, or ${all}`
    throw new InvalidArgumentError(
      `There is no ${wrong || 'empty name'}; give one or several of ${names.join(', ')}, with commas${every}.`,
    )
  }
}

/** A commander parser of lists of lengths; 8k is 8,000. Each once, in order of size. */
export function tokens(text: string): number[] {
  const one = (part: string): number => {
    const [, digits, unit] = /^(\d+(?:\.\d+)?)([km]?)$/i.exec(part.trim()) ?? []
    const value = Number(digits) * { '': 1, k: 1000, m: 1_000_000 }[(unit ?? '').toLowerCase() as '' | 'k' | 'm']
    if (digits === undefined || !Number.isSafeInteger(value) || value < 1)
      throw new InvalidArgumentError('It must be numbers of tokens with commas, such as 500,1k,2.5k.')
    return value
  }
  return [...new Set(text.split(',').map(one))].sort((a, b) => a - b)
}

/** `20%` or `0.2`. */
function share(text: string): number {
  const [, digits, percent] = /^(\d*\.?\d+)\s*(%?)$/.exec(text.trim()) ?? []
  const value = Number(digits) / (percent === '%' ? 100 : 1)
  if (digits === undefined || !(value > 0 && value <= 1)) throw new InvalidArgumentError('It must be a share such as 20% or 0.2.')
  return value
}

const collect = (text: string, all: readonly string[] | undefined): readonly string[] => [...(all ?? []), text]
