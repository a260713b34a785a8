/** Options that several commands share, and their conversion to options of the native library and the engine. */
import { sharedCells } from '../../fleet/cells/shared-cells-folder.js'
import { definedFields } from '../core/json.js'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { InvalidArgumentError, Option, type Command } from 'commander'
import { CONTRACT_CHOICES, type ContractChoice } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import { readToolTexts, type ToolTexts } from '../context/short-tools.js'
import { sharedSecret } from '../engine/cache-secret.js'
import type { AdapterFile } from '../engine/adapters.js'
import type { LlamaEngineOptions } from '../engine/llama.js'
import type { Sampling } from '../engine/engine.js'
import { SPECULATE_KINDS } from '../engine/speculate-terms.js'
import { BLEND_DEFAULT } from '../kv/plan/blend.js'
import type { CacheType, GpuChoice } from '../native/types.js'
import { ACM, acmAdapter, BUILTIN } from './builtin.js'

const GPUS: readonly GpuChoice[] = ['auto', 'cpu', 'cuda', 'vulkan', 'metal']
const CACHE_TYPES: readonly CacheType[] = ['f32', 'f16', 'bf16', 'q8_0', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'iq4_nl']

const MIB = 2 ** 20

export interface ModelFlags {
  readonly model: string
  readonly gpu: GpuChoice
  readonly gpuLayers?: number
  readonly lora?: readonly AdapterFile[]
  readonly context?: number
  readonly ubatch?: number
  readonly threads?: number
  readonly flashAttention: 'auto' | 'on' | 'off'
  readonly cacheTypeK?: CacheType
  readonly cacheTypeV?: CacheType
  readonly chatTemplate?: string
  readonly bareCalls: 'on' | 'off'
  readonly speculate: Pick<LlamaEngineOptions, 'speculate' | 'draft'>
  readonly contract: ContractChoice
  readonly blend?: number
  readonly hostCache?: number
  readonly diskCache?: string
  readonly diskCacheSize: number
  readonly sharedCache?: string
  readonly sharedCacheSize: number
  readonly sharedCacheSecret?: string
}

export function addModelOptions(command: Command): Command {
  return command
    .option(
      '-m, --model <model>',
      'GGUF file, name of `kvfold list`, model of the hub (hf:owner/repository:quant; also -hf owner/repository:quant) or `builtin`',
      BUILTIN,
    )
    .addOption(new Option('--gpu <backend>', 'where to compute').choices(GPUS).default('auto'))
    .option(
      '--lora <path[=scale]>',
      'LoRA adapter of the model, a GGUF file or `acm` (for Qwen2.5-Coder 0.5B), and how strongly it applies (default: 1); may be given several times',
      adapterOf,
    )
    .option('--gpu-layers <count>', 'layers to put on the GPU (default: as many as fit)', integer(0, 10_000))
    .option(
      '-c, --context <cells>',
      'cells of the KV cache, shared by all sequences (default: the trained context, at most 32768, or what fits)',
      integer(8, 1 << 30),
    )
    .option('--ubatch <tokens>', 'tokens computed at once', integer(1, 65_536))
    .option('--threads <count>', 'CPU threads', integer(1, 1024))
    .addOption(new Option('--flash-attention <mode>', 'flash attention kernels').choices(['auto', 'on', 'off']).default('auto'))
    .addOption(new Option('--cache-type-k <type>', 'number format of cached keys').choices(CACHE_TYPES))
    .addOption(
      new Option('--cache-type-v <type>', 'number format of cached values; quantised ones need flash attention').choices(
        CACHE_TYPES,
      ),
    )
    .option('--chat-template <file>', "Jinja chat template to use instead of the model's own")
    .addOption(
      new Option(
        '--bare-calls <switch>',
        'whether kvfold reads tool calls in another form than the chat template has, such as JSON without tags',
      )
        .choices(['on', 'off'])
        .default('on'),
    )
    .addOption(
      new Option(
        '--speculate <kind>',
        'draft tokens that the conversation repeats, hidden text included: ngram wherever they match, auto as far as it pays; with ' +
          'draft=MODEL a smaller model of the same family drafts, too, as far as it pays; or off',
      )
        .argParser(speculateOf)
        .default({ speculate: 'off' }, 'off'),
    )
    .addOption(
      new Option(
        '--contract <contract>',
        'what a fold recomputes: exact recomputes all text after it, splice nothing, blend a part; auto splices, and recomputes when idle',
      )
        .choices(CONTRACT_CHOICES)
        .default('exact'),
    )
    .option(
      '--host-cache <MiB>',
      'host memory for cells that the context has no room for (default: a quarter of the free memory)',
      integer(0, 1 << 30),
    )
    .option('--disk-cache <folder>', 'folder for cells that host memory has no room for; it is kept when the program ends')
    .option('--disk-cache-size <MiB>', 'largest size of that folder', integer(1, 1 << 30), 4096)
    .option(
      '--shared-cache <folder>',
      'folder on storage that several machines share, where each finds the cells that the others computed',
    )
    .option('--shared-cache-size <MiB>', 'largest size of that folder', integer(1, 1 << 30), 65_536)
    .option(
      '--shared-cache-secret <file>',
      'file with the secret that these machines share; without it no cell in that folder can be used',
    )
    .option(
      '--blend <share>',
      'largest share of the text after a fold that `--contract blend` computes again; beyond it the fold is exact (default: 0.4)',
      decimal(0, 1),
    )
}

export type SamplingFlags = Pick<
  Sampling,
  'temperature' | 'topK' | 'topP' | 'minP' | 'typicalP' | 'repeatPenalty' | 'frequencyPenalty' | 'presencePenalty' | 'seed'
>

export function addSamplingOptions(command: Command): Command {
  return command
    .option('-t, --temperature <value>', '0 always takes the likeliest token (default: 0)', decimal(0, 100))
    .option('--top-k <count>', 'sample among the k likeliest tokens, 0 for all', integer(0, 1_000_000))
    .option('--top-p <share>', 'sample among the likeliest tokens that together have this probability', decimal(0, 1))
    .option('--min-p <share>', 'drop tokens less likely than this share of the likeliest', decimal(0, 1))
    .option('--typical-p <share>', 'locally typical sampling, 1 for off', decimal(0, 1))
    .option('--repeat-penalty <factor>', 'divides logits of recent tokens, 1 for off', decimal(0.01, 100))
    .option('--frequency-penalty <value>', 'subtracted from the logit of a token for each occurrence', decimal(-100, 100))
    .option('--presence-penalty <value>', 'subtracted once a token has occurred', decimal(-100, 100))
    .option('--seed <number>', 'seed of the sampler', integer(0, 0xffffffff))
}

/** Makes a parser for commander: integers from `least` to `most`. */
export function integer(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (!/^-?\d+$/.test(text.trim()) || !Number.isSafeInteger(value) || value < least || value > most)
      throw new InvalidArgumentError(`It must be a whole number from ${least} to ${most}.`)
    return value
  }
}

/** Makes a parser for commander: numbers from `least` to `most`. */
export function decimal(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (text.trim() === '' || !Number.isFinite(value) || value < least || value > most)
      throw new InvalidArgumentError(`It must be a number from ${least} to ${most}.`)
    return value
  }
}

/** Makes a parser for commander: lists of integers such as `4,8,16`. Duplicates are dropped, and the numbers are sorted. */
export function integers(least: number, most: number): (text: string) => number[] {
  const one = integer(least, most)
  return (text) => [...new Set(text.split(',').map((part) => one(part.trim())))].sort((a, b) => a - b)
}

/** Parses an option that may be given several times, for commander. */
export const collect = (text: string, all: readonly string[] = []): readonly string[] => [...all, text]

/** Like `collect`, but refuses an empty value. */
export function collectFilled(text: string, all?: readonly string[]): readonly string[] {
  if (text === '') throw new InvalidArgumentError('It must not be empty.')
  return collect(text, all)
}

/** Parses `--lora`, for commander: `policy.gguf=0.5`, or `acm`. */
function adapterOf(text: string, before: readonly AdapterFile[] = []): readonly AdapterFile[] {
  const [, path = '', scale] = /^(.+?)(?:=([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?$/i.exec(text) ?? []
  if (path === '') throw new InvalidArgumentError('It must be the path of a GGUF file, `acm`, or either with =scale.')
  return [...before, { path: path === ACM ? acmAdapter() : path, ...(scale === undefined ? {} : { scale: Number(scale) }) }]
}

/** Parses `--speculate`, for commander. With a draft model, `auto` decides how many tokens are drafted. */
function speculateOf(text: string): ModelFlags['speculate'] {
  const [, path] = /^draft=(.+)$/s.exec(text) ?? []
  if (path !== undefined) return { speculate: 'auto', draft: { path } }
  const kind = SPECULATE_KINDS.find((each) => each === text)
  if (kind !== undefined && kind !== 'draft') return { speculate: kind }
  throw new InvalidArgumentError(
    'It must be auto, ngram, off, or draft=MODEL, with the GGUF file or the name of a smaller model.',
  )
}

/** Returns the flags without the draft model, for a command's further engines: a draft model fits only one model. */
export const withoutDraftModel = <Flags extends Pick<ModelFlags, 'speculate'>>(flags: Flags): Flags => ({
  ...flags,
  speculate: { speculate: flags.speculate.speculate ?? 'off' },
})

/** Returns the engine's options. @throws KvfoldError cli/bad-usage when the chat template cannot be read */
export function engineOptions(flags: ModelFlags): LlamaEngineOptions {
  return {
    ...definedFields({
      cells: flags.context,
      ubatch: flags.ubatch,
      threads: flags.threads,
      batchThreads: flags.threads,
      keyType: flags.cacheTypeK,
      valueType: flags.cacheTypeV,
      hostBytes: flags.hostCache === undefined ? undefined : flags.hostCache * MIB,
      disk: flags.diskCache === undefined ? undefined : { folder: flags.diskCache, bytes: flags.diskCacheSize * MIB },
      shared: sharedPlace(flags),
      model: flags.gpuLayers === undefined ? undefined : { gpuLayers: flags.gpuLayers },
      lora: flags.lora,
      chatTemplate: flags.chatTemplate === undefined ? undefined : readText(flags.chatTemplate, '--chat-template'),
    }),
    flashAttention: flags.flashAttention,
    bareCalls: flags.bareCalls === 'on',
    ...flags.speculate,
    contract: flags.contract,
    ...(flags.blend === undefined ? {} : { blend: { most: flags.blend } }),
  }
}

/**
 * Returns the flags that differ from their defaults and change a model's answers, beside the model, its context and the contract. They are
 * part of what identifies a run. The chat template is given as the hash of its text.
 * @throws KvfoldError cli/bad-usage when the template cannot be read
 */
export function answerSettings(flags: Omit<ModelFlags, 'contract'>) {
  const { blend, cacheTypeK, cacheTypeV, chatTemplate, bareCalls } = flags
  const template = chatTemplate === undefined ? undefined : readText(chatTemplate, '--chat-template')
  return definedFields({
    blend: blend === BLEND_DEFAULT.most ? undefined : blend,
    cacheTypeK: cacheTypeK === 'f16' ? undefined : cacheTypeK,
    cacheTypeV: cacheTypeV === 'f16' ? undefined : cacheTypeV,
    chatTemplate: template === undefined ? undefined : createHash('sha256').update(template).digest('hex'),
    bareCalls: bareCalls === 'off' ? bareCalls : undefined,
  })
}

/**
 * Returns the folder in which servers share cells; undefined without `--shared-cache`. @throws KvfoldError cli/bad-usage,
 * engine/bad-request
 */
function sharedPlace({ sharedCache: folder, sharedCacheSize, sharedCacheSecret }: ModelFlags): LlamaEngineOptions['shared'] {
  if (folder === undefined && sharedCacheSecret === undefined) return undefined
  if (folder === undefined || sharedCacheSecret === undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      '--shared-cache and --shared-cache-secret go together; give both, the folder and the file with its secret.',
    )
  return sharedCells({ folder, bytes: sharedCacheSize * MIB, secret: sharedSecret(sharedCacheSecret) })
}

export function sampling(flags: SamplingFlags): Sampling {
  const { temperature, topK, topP, minP, typicalP, repeatPenalty, frequencyPenalty, presencePenalty, seed } = flags
  return definedFields({ temperature, topK, topP, minP, typicalP, repeatPenalty, frequencyPenalty, presencePenalty, seed })
}

/** Makes the option `--tool-texts`: a file with descriptions of the six context tools. */
export const toolTextsOption = (): Option =>
  new Option(
    '--tool-texts <file>',
    'JSON with the words of the context tools: {"fold_fragment": {"description": "...", "arguments": {"fragment_id": "..."}}, ...} (default: those that suit the model)',
  )

export const toolTextsOf = ({ toolTexts }: { readonly toolTexts?: string }): ToolTexts | undefined =>
  toolTexts === undefined ? undefined : readToolTexts(readText(toolTexts, '--tool-texts'), toolTexts)

/** Reads a file that an option names. `option`: the option's name, for the error. @throws KvfoldError cli/bad-usage */
export function readText(path: string, option: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    const reason = error instanceof Error && 'code' in error ? String(error.code) : String(error)
    throw new KvfoldError('cli/bad-usage', `The file ${path} given to ${option} cannot be read (${reason}).`, { cause: error })
  }
}
