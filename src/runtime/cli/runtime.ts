/** Loads an engine in this process from command-line options. */
import { definedFields } from '../core/json.js'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { resolve } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { calibrationFolder, loadCalibration } from '../engine/calibration.js'
import { Embedder, type EmbedderOptions } from '../engine/embedder.js'
import type { Engine } from '../engine/engine.js'
import { LlamaEngine, type LlamaEngineOptions } from '../engine/llama.js'
import { modelFingerprint } from '../engine/model-facts.js'
import type { Reranker } from '../engine/reranker.js'
import { proveModel, type ModelTrialOptions } from '../engine/tried-models.js'
import { bytes, percent } from '../figures/numbers.js'
import { isModelUri, resolveModel } from '../native/binding.js'
import type { GpuChoice, ModelOptions, Native } from '../native/types.js'
import { BUILTIN, builtinModel } from './builtin.js'
import { engineOptions, type ModelFlags } from './options.js'
import type { Terminal } from './terminal.js'

/**
 * Returns the file that `--model` names; shows the progress of a download on `notes`. @throws KvfoldError model/not-found,
 * engine/cancelled
 */
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

/** The native library. It is loaded only when a command needs it, so that help and usage errors do not wait for it. */
export async function nativeLibrary(gpu: GpuChoice): Promise<Native> {
  const { openNative } = await import('../native/binding.js')
  return openNative({ gpu })
}

/**
 * One thread for a model this small: it is computed faster than threads can synchronise. Two threads gain little on two free cores. On busy
 * cores they wait for each other, which takes a hundred times as long. Beside a load of 5 on 2 cores we measured 0.6 s with one thread, and
 * 89 s with two.
 */
const BUILTIN_OPTIONS = { threads: 1, batchThreads: 1 } as const

/** Returns the engine's options for these flags. */
export function optionsOf(flags: ModelFlags): LlamaEngineOptions {
  return { ...(flags.model === BUILTIN ? BUILTIN_OPTIONS : {}), ...engineOptions(flags) }
}

type TrialUses = Pick<ModelTrialOptions, 'attention' | 'embeddings'>

/**
 * Returns the file that `model` names, after a trial: a process of its own loads and uses it as `options` say, now or earlier. So a
 * damaged file ends only that process. The built-in model is tried only on GPUs, and with adapters.
 * @throws KvfoldError like openNative, modelPath and proveModel
 */
export async function provenModel(
  { model, gpu }: Pick<ModelFlags, 'model' | 'gpu'>,
  options: ModelTrialOptions,
  notes: Terminal,
  signal?: AbortSignal,
): Promise<string> {
  const path = await modelPath(model, notes, signal)
  const { backend } = await nativeLibrary(gpu)
  if (model === BUILTIN && backend.gpu === 'cpu' && options.lora === undefined) return path
  const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as { version: string }
  const onTrial = () => {
    notes.frame([`Trying ${model} in a process of its own, once for this file and these options ...`])
  }
  try {
    await proveModel({ path: resolve(path), backend, version, options, onTrial, ...definedFields({ signal }) })
  } finally {
    notes.close()
  }
  return path
}

/** The options that affect loading the model, for its trial. */
function trialOptions(flags: ModelFlags, uses: TrialUses): ModelTrialOptions {
  const { model, lora, ubatch, threads, batchThreads, flashAttention, keyType, valueType } = optionsOf(flags)
  const adapters = lora?.map(({ path }) => resolve(path))
  return definedFields({ ...uses, model, lora: adapters, ubatch, threads, batchThreads, flashAttention, keyType, valueType })
}

/** Like `provenModel`, for an engine with these flags. `uses`: further uses to try. `off`: no trial. */
export const enginePath = (flags: ModelFlags, uses: TrialUses | 'off', notes: Terminal, signal?: AbortSignal): Promise<string> =>
  uses === 'off' ? modelPath(flags.model, notes, signal) : provenModel(flags, trialOptions(flags, uses), notes, signal)

export interface Loading extends Pick<LlamaEngineOptions, 'slots' | 'maxGap' | 'sequences' | 'attention'> {
  /** Further uses of the model to try. `off`: no trial. */
  readonly trial?: TrialUses | 'off'
}

/**
 * Loads the model that the flags name, after its trial. Uses the machine's calibration for it if there is one, and reports unavailable
 * features. The caller disposes the engine.
 * @throws KvfoldError like enginePath and LlamaEngine.load
 */
export async function loadEngine(
  flags: ModelFlags,
  notes: Terminal,
  signal?: AbortSignal,
  { trial = {}, ...extra }: Loading = {},
): Promise<LlamaEngine> {
  const settings = optionsOf(flags)
  const path = await enginePath(flags, trial, notes, signal)
  const native = await nativeLibrary(flags.gpu)
  const tell = (sentence: string) => {
    notes.prose(sentence, notes.colours.yellow)
  }
  const engine = await LlamaEngine.load(native, path, { ...settings, ...extra, calibrations: calibrationFolder(), tell })
  const calibration = await loadCalibration({ info: engine.modelInfo, settings, backend: native.backend })
  if (calibration.kind === 'found') engine.useCosts(calibration.model)
  for (const note of engine.notes) notes.prose(note, notes.colours.dim)
  return engine
}

/** Returns the fingerprint of the engine's weights in hex, with the adapters that it applies; null for a remote engine. */
export async function weightsOf(engine: LlamaEngine): Promise<string>
export async function weightsOf(engine: Engine): Promise<string | null>
export async function weightsOf(engine: Engine): Promise<string | null> {
  if (!(engine instanceof LlamaEngine)) return null
  const weights = (await modelFingerprint(engine.modelInfo.path)).toString('hex')
  const { adapterKey } = engine
  return adapterKey === '' ? weights : createHash('sha256').update(weights).update(adapterKey).digest('hex')
}

/** Returns the options of an embedder for these flags. */
export function embedderOptions(flags: ModelFlags): EmbedderOptions {
  const { threads, batchThreads } = optionsOf(flags)
  return definedFields({ threads, batchThreads })
}

/**
 * Loads the model that the flags name, only for embeddings or rankings and without adapters, after its trial. The caller disposes the
 * result.
 * @param isTried false: no trial
 * @throws KvfoldError like enginePath, Embedder.load and Reranker.load
 */
export async function loadReader<R extends Embedder | Reranker>(
  kind: { load(native: Native, path: string, options: EmbedderOptions & { readonly model?: ModelOptions }): Promise<R> },
  { lora: _, ...flags }: ModelFlags,
  notes: Terminal,
  signal?: AbortSignal,
  isTried = true,
): Promise<R> {
  const path = await enginePath(flags, isTried ? { embeddings: 'alone' } : 'off', notes, signal)
  const { model } = optionsOf(flags)
  const native = await nativeLibrary(flags.gpu)
  return kind.load(native, path, { ...embedderOptions(flags), ...definedFields({ model }) })
}
