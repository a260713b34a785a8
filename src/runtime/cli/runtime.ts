/** Loads an engine in this process, as command-line options say. */
import { definedFields } from '../core/json.js'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { resolve } from 'node:path'
import { type ContractChoice, contractOfStep } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import { packageFacts } from '../core/package.js'
import { calibrationFolder, loadCalibration } from '../engine/calibration.js'
import { Embedder, type EmbedderOptions } from '../engine/embedder.js'
import type { Engine } from '../engine/engine.js'
import { LlamaEngine, type LlamaEngineOptions } from '../engine/llama.js'
import { type Abilities, modelFingerprint } from '../engine/model-facts.js'
import type { Reranker } from '../engine/reranker.js'
import { proveModel, type ModelTrialOptions } from '../engine/tried-models.js'
import { fidelityNotice, type FidelitySubject, loadFidelity } from '../fidelity/model-fidelity.js'
import { bytes, percent } from '../figures/numbers.js'
import { modelCalled, modelsFolder, modelsIn, noModel, pull, type PullOptions } from '../models/folder.js'
import { isFileUrl, isModelUri } from '../models/names.js'
import type { GpuChoice, ModelOptions, Native } from '../native/types.js'
import { BUILTIN, builtinModel } from './builtin.js'
import { answerSettings, engineOptions, type ModelFlags } from './options.js'
import type { Terminal } from './terminal.js'

/**
 * Returns the file that `--model` names: a path, a model in the models folder, or a model of the hub. The latter is downloaded into the
 * models folder once, with its progress on `notes`. @throws KvfoldError model/not-found, model/download-failed, engine/cancelled, or as
 * modelCalled
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
  const folder = modelsFolder()
  const isRemote = isModelUri(model)
  if (!isRemote && existsSync(model)) return resolve(model)
  const models = modelsIn(folder)
  const known = isFileUrl(model) ? null : modelCalled(model, models)
  if (known !== null) return known.path
  if (!isRemote) throw new KvfoldError('model/not-found', `${notHere(model)} ${noModel(model, models, folder)}`)
  return pulled(model, notes, definedFields({ folder, signal }))
}

/** Returns the error for a name that is neither a file nor a model in the folder. It says what to give instead. */
const notHere = (model: string): string =>
  /[\\/]|\.gguf$/i.test(model)
    ? `There is no file ${resolve(model)}; give the path of a GGUF file, or hf:owner/repository:quant.`
    : `${JSON.stringify(model)} is neither a file nor a model that is here; give the path of a GGUF file, or hf:owner/repository:quant.`

/**
 * Downloads a model and shows the progress: on a terminal in one line that is redrawn, elsewhere in a new line after each tenth. @throws
 * KvfoldError like pull
 */
export async function pulled(name: string, notes: Terminal, options: PullOptions): Promise<string> {
  notes.print(`Looking for ${name} ...`)
  let told = ''
  try {
    return await pull(name, {
      ...options,
      onProgress: (progress) => {
        if (progress.kind === 'looking') return
        if (progress.kind === 'checking') {
          notes.frame([`Checking the hash of ${progress.file} ...`], true)
          return
        }
        const { file, done, total } = progress
        const share = total === null || total === 0 ? null : done / total
        notes.frame([
          `Downloading ${file}: ${bytes(done)}${total === null ? '' : ` of ${bytes(total)}`}${share === null ? '' : ` (${percent(share, 0)})`}`,
        ])
        const tenth = `${file} ${share === null ? '' : Math.floor(share * 10)}`
        if (!notes.live && tenth !== told)
          notes.print(`Downloading ${file}: ${share === null ? bytes(done) : `${percent(share, 0)} of ${bytes(total ?? 0)}`}`)
        told = tenth
      },
    })
  } finally {
    notes.close()
  }
}

/** Loads the native library. Commands call this only when they need it, so that help and usage errors come without delay. */
export async function nativeLibrary(gpu: GpuChoice): Promise<Native> {
  const { openNative } = await import('../native/binding.js')
  return openNative({ gpu })
}

/**
 * The built-in model gets one thread. It is so small that synchronising threads takes longer than computing: two threads gain little on two
 * free cores, and wait for each other on busy ones. Measured beside a load of 5 on 2 cores: 0.6 s with one thread, 89 s with two.
 */
const BUILTIN_OPTIONS = { threads: 1, batchThreads: 1 } as const

export function optionsOf(flags: ModelFlags): LlamaEngineOptions {
  return { ...(flags.model === BUILTIN ? BUILTIN_OPTIONS : {}), ...engineOptions(flags) }
}

type TrialUses = Pick<ModelTrialOptions, 'attention' | 'embeddings'>

/** Shows what is being done. By default, a line on the terminal that disappears again; a server prints lines that stay. */
export type Saying = (doing: string) => void

const inPassing =
  (notes: Terminal): Saying =>
  (doing) => {
    notes.frame([`${doing} ...`])
  }

/**
 * Returns the file that `model` names, after a trial: another process loads and uses it with these options first, so that a damaged file
 * crashes only that process. A trial that passed earlier counts. The built-in model is tried only on GPUs and with adapters.
 * @throws KvfoldError like openNative, modelPath and proveModel
 */
export async function provenModel(
  { model, gpu }: Pick<ModelFlags, 'model' | 'gpu'>,
  options: ModelTrialOptions,
  notes: Terminal,
  signal?: AbortSignal,
  say: Saying = inPassing(notes),
): Promise<string> {
  const path = await modelPath(model, notes, signal)
  const { backend } = await nativeLibrary(gpu)
  if (model === BUILTIN && backend.gpu === 'cpu' && options.lora === undefined) return path
  const { version } = packageFacts()
  const onTrial = () => {
    say(`Trying ${model} in a process of its own, once for this file and these options`)
  }
  try {
    await proveModel({ path: resolve(path), backend, version, options, onTrial, ...definedFields({ signal }) })
  } finally {
    notes.close()
  }
  return path
}

/** Returns those options that affect how the model is loaded. The trial uses them. */
function trialOptions(flags: ModelFlags, uses: TrialUses): ModelTrialOptions {
  const { model, lora, ubatch, threads, batchThreads, flashAttention, keyType, valueType } = optionsOf(flags)
  const adapters = lora?.map(({ path }) => resolve(path))
  return definedFields({ ...uses, model, lora: adapters, ubatch, threads, batchThreads, flashAttention, keyType, valueType })
}

/** Like `provenModel`, for the engine of these flags. `uses`: what the trial does beyond loading; `off`: no trial. */
export const enginePath = (
  flags: ModelFlags,
  uses: TrialUses | 'off',
  notes: Terminal,
  signal?: AbortSignal,
  say?: Saying,
): Promise<string> =>
  uses === 'off' ? modelPath(flags.model, notes, signal) : provenModel(flags, trialOptions(flags, uses), notes, signal, say)

export interface Loading extends Pick<LlamaEngineOptions, 'slots' | 'maxGap' | 'sequences' | 'attention' | 'blocks' | 'fits'> {
  /** What the model's trial does beyond loading it. `off`: no trial. */
  readonly trial?: TrialUses | 'off'
  /** Shows progress. Default: a line on the terminal that disappears again. */
  readonly say?: Saying
}

/** For a process with one model: its context is fitted to the free memory. */
export const FITTING: Loading = { fits: { grows: true, copies: false } }

/**
 * Loads the model that the flags name, after its trial. Uses this machine's calibration for it, if there is one, and prints notes on
 * unavailable features. The caller must dispose the engine.
 * @throws KvfoldError like enginePath and LlamaEngine.load
 */
export async function loadEngine(
  flags: ModelFlags,
  notes: Terminal,
  signal?: AbortSignal,
  { trial = {}, say = inPassing(notes), ...extra }: Loading = {},
): Promise<LlamaEngine> {
  const settings = optionsOf(flags)
  const path = await enginePath(flags, trial, notes, signal, say)
  say(`Loading ${flags.model}`)
  const native = await nativeLibrary(flags.gpu)
  const tell = (sentence: string) => {
    notes.prose(sentence, notes.colours.yellow)
  }
  const draft = settings.draft && {
    ...definedFields({ model: settings.model }),
    path: await draftPath(flags, settings.draft.path, trial, notes, signal, say),
  }
  const options = { ...settings, ...extra, ...definedFields({ draft }), calibrations: calibrationFolder(), tell }
  const engine = await LlamaEngine.load(native, path, options).finally(() => {
    notes.close()
  })
  const calibration = await loadCalibration({ info: engine.modelInfo, settings, backend: native.backend })
  if (calibration.kind === 'found') engine.useCosts(calibration.model)
  for (const note of engine.notes) notes.prose(note, notes.colours.dim)
  if (engine.sizedBy !== null) notes.prose('--context sets another number of cells.', notes.colours.dim)
  return engine
}

/** Returns the file of the draft model, after a trial like that of the main model. */
function draftPath(
  { lora: _, ...flags }: ModelFlags,
  model: string,
  trial: TrialUses | 'off',
  ...rest: [Terminal, AbortSignal | undefined, Saying]
): Promise<string> {
  return enginePath({ ...flags, model }, trial === 'off' ? 'off' : {}, ...rest)
}

/** Refuses a model whose edits start from checkpoints, because cost models do not cover those. @throws KvfoldError model/unsupported */
export function refuseUnpriced({ edits, refusal }: Abilities): void {
  if (edits === 'tags') return
  throw new KvfoldError('model/unsupported', `kvfold cannot predict the costs of folds here: ${refusal}. Choose another model.`)
}

/**
 * Prints how an approximate contract changes this model's answers. Prints nothing if the engine does not support the contract.
 * @param flags the flags that the engine was loaded with
 */
export async function warnOfContract(
  contract: ContractChoice,
  engine: LlamaEngine,
  flags: ModelFlags,
  notes: Terminal,
): Promise<void> {
  if (contract === 'exact' || !engine.abilities.contracts.includes(contractOfStep(contract))) return
  const notice = fidelityNotice(contract, await loadFidelity(await fidelitySubject(engine, flags)))
  if (notice !== null) notes.prose(notice, notes.colours.yellow)
}

/** Returns the key under which the fidelity of an engine with these flags is stored. */
export async function fidelitySubject(engine: LlamaEngine, flags: ModelFlags): Promise<FidelitySubject> {
  // The questions of the measurement use no tools, so `bareCalls` makes no difference.
  return { weights: await weightsOf(engine), settings: answerSettings({ ...flags, bareCalls: 'on' }) }
}

/** Returns the fingerprint of the engine's weights in hex, with the adapters that it applies. Returns null for a remote engine. */
export async function weightsOf(engine: LlamaEngine): Promise<string>
export async function weightsOf(engine: Engine): Promise<string | null>
export async function weightsOf(engine: Engine): Promise<string | null> {
  if (!(engine instanceof LlamaEngine)) return null
  const weights = (await modelFingerprint(engine.modelInfo.path)).toString('hex')
  const { adapterKey } = engine
  return adapterKey === '' ? weights : createHash('sha256').update(weights).update(adapterKey).digest('hex')
}

export function embedderOptions(flags: ModelFlags): EmbedderOptions {
  const { threads, batchThreads } = optionsOf(flags)
  return definedFields({ threads, batchThreads })
}

/**
 * Loads a model that only embeds or ranks texts, without adapters, after its trial. The caller must dispose the result.
 * @param isTried false: no trial
 * @throws KvfoldError like enginePath, Embedder.load and Reranker.load
 */
export async function loadReader<R extends Embedder | Reranker>(
  kind: { load(native: Native, path: string, options: EmbedderOptions & { readonly model?: ModelOptions }): Promise<R> },
  { lora: _, ...flags }: ModelFlags,
  notes: Terminal,
  signal?: AbortSignal,
  isTried = true,
  more: Pick<EmbedderOptions, 'tokens'> = {},
): Promise<R> {
  const path = await enginePath(flags, isTried ? { embeddings: 'alone' } : 'off', notes, signal)
  const { model } = optionsOf(flags)
  const native = await nativeLibrary(flags.gpu)
  return kind.load(native, path, { ...embedderOptions(flags), ...definedFields({ model }), ...more })
}
