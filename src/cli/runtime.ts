/** Owns the way from command-line options to an engine: one loaded here, or `--engine`, a model that another server computes. */
import { stat } from 'node:fs/promises'
import { resolve } from 'node:path'
import { type Command, Option } from 'commander'
import { KvfoldError } from '../core/errors.js'
import { loadCalibration } from '../engine/calibration.js'
import { Embedder, type EmbedderOptions } from '../engine/embedder.js'
import { LlamaEngine, type LlamaEngineOptions } from '../engine/llama.js'
import { KEY_VARIABLE, readKey } from '../engine/remote/endpoint.js'
import { RemoteEngine } from '../engine/remote/remote.js'
import { proveModel, type TrialOptions } from '../engine/tried-models.js'
import { bytes, percent } from '../figures/numbers.js'
import { isModelUri, resolveModel } from '../native/binding.js'
import type { GpuChoice, Native } from '../native/types.js'
import { BUILTIN, builtinModel } from './builtin.js'
import { decimal, engineOptions, given, integer, type ModelFlags } from './options.js'
import type { Terminal } from './terminal.js'

/** The file that `--model` names; shows the progress of a download on `notes`. @throws KvfoldError model/not-found, engine/cancelled */
export async function modelPath(model: string, notes: Terminal, signal?: AbortSignal): Promise<string> {
  if (model === BUILTIN) {
    const path = builtinModel()
    if ((await stat(path).catch(() => null)) === null)
      throw new KvfoldError(
        'model/not-found',
        `The built-in model is missing (${path}); install kvfold again or name a GGUF file with --model.`,
      )
    return path
  }
  if (isModelUri(model)) notes.print(`Looking for ${model} ...`)
  try {
    return await resolveModel(model, {
      ...(signal === undefined ? {} : { signal }),
      onProgress: (done, total) => {
        notes.frame([`Downloading ${model}: ${bytes(done)} of ${bytes(total)} (${percent(total > 0 ? done / total : 0, 0)})`])
      },
    })
  } finally {
    notes.close()
  }
}

/** The native library, loaded only when a command needs it: help and bad usage should not wait for it. */
export async function nativeLibrary(gpu: GpuChoice): Promise<Native> {
  const { openNative } = await import('../native/binding.js')
  return openNative({ gpu })
}

/**
 * A model this small is computed faster than threads can agree: two threads gain little on two free cores, and on busy ones they spend
 * a hundred times as long waiting for each other (measured: 0.6 s with one, 89 s with two, beside a load of 5 on 2 cores).
 */
const BUILTIN_OPTIONS = { threads: 1, batchThreads: 1 } as const

/** The options that an engine runs with for these flags. */
export function optionsOf(flags: ModelFlags): LlamaEngineOptions {
  return { ...(flags.model === BUILTIN ? BUILTIN_OPTIONS : {}), ...engineOptions(flags) }
}

/**
 * Tries the model the flags name in a process of its own, with what it will be loaded with, unless it was tried before.
 * @param version of kvfold
 * @throws KvfoldError as openNative, modelPath and proveModel
 */
export async function tryFirst(
  flags: ModelFlags,
  uses: Pick<TrialOptions, 'attention' | 'embeddings'>,
  version: string,
  notes: Terminal,
  signal?: AbortSignal,
): Promise<void> {
  const { model, ubatch, threads, batchThreads, flashAttention, keyType, valueType } = optionsOf(flags)
  const path = await modelPath(flags.model, notes, signal)
  const { backend } = await nativeLibrary(flags.gpu)
  const options = given({ ...uses, model, ubatch, threads, batchThreads, flashAttention, keyType, valueType })
  await proveModel({ path: resolve(path), backend, version, options, ...given({ signal }) })
}

/** Loads the model the flags name, with the machine's calibration for it if there is one, and says what cannot be done with it. The caller disposes the engine. @throws KvfoldError as openNative, modelPath and LlamaEngine.load */
export async function loadEngine(
  flags: ModelFlags,
  notes: Terminal,
  signal?: AbortSignal,
  extra: Pick<LlamaEngineOptions, 'slots' | 'maxGap' | 'sequences' | 'attention'> = {},
): Promise<LlamaEngine> {
  const settings = optionsOf(flags)
  const path = await modelPath(flags.model, notes, signal)
  const native = await nativeLibrary(flags.gpu)
  const tell = (sentence: string) => {
    notes.prose(sentence, notes.colours.yellow)
  }
  const engine = await LlamaEngine.load(native, path, { ...settings, ...extra, tell })
  const calibration = await loadCalibration({ info: engine.modelInfo, settings, backend: native.backend })
  if (calibration.kind === 'found') engine.useCosts(calibration.model)
  for (const note of engine.notes) notes.prose(note, notes.colours.dim)
  return engine
}

/** The options that an embedder runs with for these flags. */
export function embedderOptions(flags: ModelFlags): EmbedderOptions {
  const { threads, batchThreads } = optionsOf(flags)
  return given({ threads, batchThreads })
}

/** Loads the model the flags name for embeddings alone. The caller disposes the embedder. @throws KvfoldError as openNative, modelPath and Embedder.load */
export async function loadEmbedder(flags: ModelFlags, notes: Terminal, signal?: AbortSignal): Promise<Embedder> {
  const path = await modelPath(flags.model, notes, signal)
  const { model } = optionsOf(flags)
  const native = await nativeLibrary(flags.gpu)
  return Embedder.load(native, path, { ...embedderOptions(flags), ...given({ model }) })
}

// `--engine`: a model that another server computes, from its options to the engine.

/** What commander hands to a command that called `addEngineOptions`. */
export interface EngineFlags {
  readonly engine?: string
  readonly engineModel?: string
  readonly engineKeyEnv?: string
  readonly engineKeyFile?: string
  readonly engineContext?: number
  readonly engineTimeout: number
  /** True: at the price of a cached token that is usual. */
  readonly deferEdits?: number | true
}

/** What a remote engine is asked for, whoever asks. */
export interface EngineSource {
  readonly name: string
  readonly slots: number
  readonly load: () => Promise<RemoteEngine>
}

export function addEngineOptions(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--engine <url>',
        'serve the model of another OpenAI-compatible server: vLLM, SGLang, llama-server, kvfold',
      ).conflicts('model'),
    )
    .option('--engine-model <name>', 'which of its models (default: the first that it lists)')
    .option('--engine-key-env <variable>', `environment variable that holds its key (default: ${KEY_VARIABLE}, if set)`)
    .option('--engine-key-file <file>', 'file whose first line is its key')
    .option('--engine-context <tokens>', 'tokens that a conversation may have there, if it does not say', integer(1, 1 << 30))
    .option('--engine-timeout <seconds>', 'how long it may be silent', decimal(0.1, 86_400), 600)
    .option(
      '--defer-edits [price]',
      'keep folds back until they pay for the cache that they cost there; price: a cached token as a share of a computed one (0.1)',
      decimal(0, 1),
    )
}

/**
 * The source of the model behind `--engine`, under the name that it has there; null without the option. What is wrong with the endpoint is
 * said now, not to the first client.
 * @throws KvfoldError cli/bad-usage for options that belong to it without it; remote/*, model/not-found
 */
export async function engineSource(
  flags: EngineFlags,
  slots: number,
  notes: Terminal,
  signal: AbortSignal,
): Promise<EngineSource | null> {
  const { engine: url, engineModel, engineKeyEnv, engineKeyFile, engineContext, engineTimeout, deferEdits } = flags
  if (url === undefined) {
    const alone = Object.entries({ engineModel, engineKeyEnv, engineKeyFile, engineContext, deferEdits }).find(
      ([, value]) => value !== undefined,
    )
    if (alone === undefined) return null
    const option = alone[0].replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
    throw new KvfoldError('cli/bad-usage', `--${option} belongs to --engine, which names another server; add it.`)
  }
  const key = readKey(given({ variable: engineKeyEnv, file: engineKeyFile }))
  const connect = () =>
    RemoteEngine.connect({
      url,
      key,
      signal,
      patience: { idle: engineTimeout * 1000 },
      ...given({
        model: engineModel,
        context: engineContext,
        deferEdits: deferEdits === undefined ? undefined : deferEdits === true ? {} : { cachedPrice: deferEdits },
      }),
    })
  let first: RemoteEngine | null = await connect()
  for (const note of first.notes) notes.prose(note, notes.colours.dim)
  const load = () => {
    const engine = first
    first = null
    return engine === null ? connect() : Promise.resolve(engine)
  }
  return { name: first.info.model, slots, load }
}
