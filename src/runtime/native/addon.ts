/** Loads the C++ addon onto a llama.cpp library that node-llama-cpp ships, and declares the addon's raw functions. */
import { existsSync, readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { basename, dirname, join } from 'node:path'
import type { Llama } from 'node-llama-cpp'
import { KvfoldError, errorTable, type ErrorCode } from '../core/errors.js'
import { builtAddon, nodeLlamaCpp } from './built-addon.js'
import { backendOf, compiledPath, LIBRARY_KINDS, shippedLibrary, wantedLibrary } from './compiled-library.js'
import type { Device } from './devices.js'
import type { BackendInfo, Captured, DecodeStatus, LibraryFiles, GpuChoice, ModelInfo, SpecialTokens } from './values.js'

declare const kind: unique symbol
interface Handle<Name extends string> {
  readonly [kind]: Name
}
export type ModelHandle = Handle<'model'>
export type ContextHandle = Handle<'context'>
export type SamplerHandle = Handle<'sampler'>
export type CaptureHandle = Handle<'capture'>
export type GrammarHandle = Handle<'grammar'>
export type DryHandle = Handle<'dry'>
export type WordsHandle = Handle<'words'>
export type AdapterHandle = Handle<'adapter'>

/** Size of one block of a tensor type. [0, 0]: this release of ggml does not use the type's number. */
export type TensorBlock = readonly [bytes: number, elements: number]

export interface AddonFacts {
  readonly version: string
  readonly systemInfo: string
  readonly maxSequences: number
  readonly devices: readonly Device[]
  /** The block sizes of all tensor types. The index in the list is the ggml_type. */
  readonly tensorTypes: readonly TensorBlock[]
}

export interface RawModel extends Omit<ModelInfo, 'path' | 'architecture' | 'vocabulary' | 'vocabType'> {
  readonly vocabType: string
}

export interface RawVocabulary extends Omit<SpecialTokens, 'fill'> {
  /** Tokens of fill-in prompts (llama_vocab_fim_*); null if the vocabulary has no such token. */
  readonly fillPrefix: number | null
  readonly fillSuffix: number | null
  readonly fillMiddle: number | null
  readonly fillRepository: number | null
  readonly fillFile: number | null
  /** One entry for each token. Bit 0: it ends generation. Bit 1: it is a control token or an unknown one. */
  readonly flags: Uint8Array
  /** Bytes of the longest token. */
  readonly longestToken: number
}

export interface RawContext {
  readonly handle: ContextHandle
  readonly cells: number
  readonly batch: number
  readonly ubatch: number
  readonly sequences: number
  readonly canShift: boolean
  /**
   * Bytes of the cache and (next field) of the compute buffers, as llama.cpp logged them, to hundredths of a MiB; 0 if it logged nothing.
   */
  readonly cacheBytes: number
  readonly computeBytes: number
  readonly flashAttention: boolean
  /** How many heads the softmax of each layer has, 0 for a layer without a softmax; null if the context cannot capture attention. */
  readonly attention: Int32Array | null
}

/** The attention that a decode captures for one sequence (capture.ts). */
export interface RawWatched {
  readonly capture: CaptureHandle
  readonly sequence: number
  readonly queries: Int32Array
  readonly positions: Int32Array
  readonly atoms: Int32Array
}

/**
 * The addon's functions. They guard against freed handles and catch what llama.cpp throws, but they check no argument. The callers
 * (context.ts, model.ts, sampler.ts) must refuse arguments on which llama.cpp would assert.
 */
export interface Addon {
  about(): AddonFacts
  /** Loads the backends whose libraries are in this folder. Of several CPU libraries, ggml picks the best for this processor. */
  loadBackends(folder: string): void
  /** Replaces the backend that ggml names `backend` by the library at `path`. Call it before a model is loaded. */
  useLibrary(backend: string, path: string): void
  /** Converts tensor data to floats. `bytes` are whole blocks of this ggml_type that contain `count` numbers (ggml_type_traits, ggml.h). */
  dequantise(type: number, bytes: Uint8Array, count: number): Float32Array
  /**
   * Stops the loads and decodes of this Node environment (main thread or worker), and frees all its objects. All handles are then disposed.
   */
  shutdown(): void
  /** Makes a signal end the process within this many milliseconds (Native.endWithin). */
  endWithin(milliseconds: number): void
  modelLoad(path: string, options: object, progress: ((value: number) => void) | null): Promise<ModelHandle>
  modelFree(model: ModelHandle): Promise<void>
  modelDescribe(model: ModelHandle): RawModel
  /**
   * Loads an adapter (llama_adapter_lora_init in llama-adapter.cpp). No context of the model may exist, and no other adapter may be
   * loading.
   */
  adapterLoad(model: ModelHandle, path: string): Promise<AdapterHandle>
  /** Frees an adapter (llama_adapter_lora_free). No context of the model may exist. */
  adapterFree(adapter: AdapterHandle): void
  /** Sets the adapters that later decodes of the context apply, each with its scale (llama_set_adapters_lora). No other adapters apply. */
  useAdapters(context: ContextHandle, adapters: readonly AdapterHandle[], scales: Float32Array): void
  vocabularyDescribe(model: ModelHandle): RawVocabulary
  tokenize(model: ModelHandle, text: string, addSpecial: boolean, parseSpecial: boolean): Int32Array
  /** Tokenizes many texts on another thread. Returns the tokens of all texts, one after another, and how many each text has. */
  tokenizeAll(
    model: ModelHandle,
    texts: readonly string[],
    addSpecial: boolean,
    parseSpecial: boolean,
  ): Promise<{ readonly tokens: Int32Array; readonly counts: Int32Array }>
  piece(model: ModelHandle, token: number, special: boolean): Uint8Array
  contextCreate(model: ModelHandle, options: object): Promise<RawContext>
  contextFree(context: ContextHandle): Promise<void>
  decode(
    context: ContextHandle,
    tokens: Int32Array,
    positions: Int32Array,
    sequences: Int32Array,
    outputs: Uint8Array,
    captures: readonly RawWatched[] | null,
  ): Promise<DecodeStatus>
  abort(context: ContextHandle): void
  /**
   * Decodes and draws until a sequence ends, its limit is reached or `pause` is called. All arrays have one element per sequence. `heard`
   * receives finished steps meanwhile.
   */
  generate(
    context: ContextHandle,
    tokens: Int32Array,
    positions: Int32Array,
    sequences: Int32Array,
    samplers: readonly SamplerHandle[],
    limits: Int32Array,
    steps: number,
    heard: (drawn: RawDrawn) => void,
  ): Promise<RawRun>
  pause(context: ContextHandle): void
  submitted(context: ContextHandle): number
  logits(context: ContextHandle, index: number): Float32Array
  embedding(context: ContextHandle, at: number): Float32Array
  tag(context: ContextHandle, from: number, to: number, start: number, end: number): void
  untag(context: ContextHandle, seq: number, start: number, end: number): void
  shift(context: ContextHandle, seq: number, start: number, end: number, delta: number): void
  positions(context: ContextHandle, seq: number): readonly [min: number, max: number]
  clear(context: ContextHandle): void
  /** Returns, cell after cell, its position, the number of its sequences, and their ids. */
  readback(context: ContextHandle): Int32Array
  /** Returns the state of a sequence as bytes. Leaves the first `room` bytes free for the caller's header. */
  saveSequence(context: ContextHandle, seq: number, room: number): Uint8Array
  /** Loads a state that `saveSequence` returned, and skips its first `room` bytes. Returns false if the cache has no room. */
  loadSequence(context: ContextHandle, seq: number, state: Uint8Array, room: number): boolean
  /** Does the same as `saveSequence`, but off the event loop. */
  copyOut(context: ContextHandle, seq: number, room: number): Promise<Uint8Array>
  /** Does the same as `loadSequence`, but off the event loop. */
  copyIn(context: ContextHandle, seq: number, state: Uint8Array, room: number): Promise<boolean>
  captureCreate(options: object): CaptureHandle
  /** Moves the result of the last decode out of the capture. */
  captureTake(capture: CaptureHandle): Captured
  grammarCompile(model: ModelHandle, text: string): Promise<GrammarHandle>
  /**
   * Prepares a DRY sampler: finds its breakers in the vocabulary (llama_sampler_init_dry). With `lastN` 0, `multiplier` 0 or `base` below 1
   * the sampler does nothing.
   */
  dryPrepare(
    model: ModelHandle,
    multiplier: number,
    base: number,
    allowedLength: number,
    lastN: number,
    breakers: readonly string[],
  ): Promise<DryHandle>
  /** Finds the tokens whose own text contains one of these words. No word may be empty. */
  wordsPrepare(model: ModelHandle, words: readonly string[]): Promise<WordsHandle>
  samplerCreate(model: ModelHandle, options: object): SamplerHandle
  samplerSample(sampler: SamplerHandle, context: ContextHandle, index: number): number
  samplerAccept(sampler: SamplerHandle, token: number): void
  samplerEndReasoning(sampler: SamplerHandle): void
  samplerReset(sampler: SamplerHandle): void
  samplerFree(sampler: SamplerHandle): void
}

/**
 * Finished steps of a run that JavaScript has not received yet. `drawn`: the drawn tokens, step after step, one per sequence; -1 where no
 * token could be drawn. `milliseconds`: the time of each step.
 */
export interface RawDrawn {
  readonly drawn: Int32Array
  readonly milliseconds: Float64Array
}

export interface RawRun extends RawDrawn {
  readonly status: DecodeStatus | 'failed'
  /** The error of a failed decode as "code\nsentence"; empty if the decode did not fail. */
  readonly failure: string
  /**
   * For each sequence of the last step: why no token could be drawn, as "code\nsentence"; else empty. An empty array if all draws worked.
   */
  readonly refused: readonly string[]
}

export interface LoadedAddon {
  readonly addon: Addon
  /** The kind of device that the loaded library computes on. */
  readonly built: BackendInfo['gpu']
  /** The release of llama.cpp, e.g. `v0.5.0`. */
  readonly release: string
  readonly libraries: BackendInfo['libraries']
}

/**
 * Loads llama.cpp's library, makes its symbols global, and loads our addon on top.
 * @throws KvfoldError native/build-failed when the addon is not built, native/library-mismatch when headers and library differ or there is
 * no library for `gpu`.
 */
export async function loadAddon(gpu: GpuChoice): Promise<LoadedAddon> {
  const { file, release } = builtAddon()
  const isCpu = gpu === 'cpu' || (gpu === 'auto' && !GPU_FILES.some((path) => existsSync(path)))
  const shipped = isCpu ? shippedCpu(release) : null
  const built = shipped === null ? await openDetected(gpu, release) : 'cpu'
  const loaded: { exports: unknown } = { exports: {} }
  try {
    process.dlopen(loaded, file, constants.dlopen.RTLD_NOW)
  } catch (error) {
    throw new KvfoldError(
      'native/library-mismatch',
      `The native addon does not load with the installed llama.cpp library (${(error as Error).message}); install kvfold again (npm ci in a checkout).`,
      { cause: error },
    )
  }
  const addon = loaded.exports as Addon
  if (shipped !== null) addon.loadBackends(shipped)
  const libraries = useLibraries(addon)
  const { version } = addon.about()
  // The prebuilt libraries are built outside a release checkout and call themselves -dev of the same version.
  if (`v${version.replace(/-dev$/, '')}` !== release) throw mismatch(release, version)
  return { addon, built, release, libraries }
}

/** The files by which Linux gives programs a GPU: any kind, NVIDIA, WSL, AMD. If none exists, no driver can find a GPU. */
const GPU_FILES = ['/dev/dri', '/dev/nvidiactl', '/dev/nvidia0', '/dev/dxg', '/dev/kfd']

/**
 * Opens the CPU library that node-llama-cpp ships, and returns its folder. This skips node-llama-cpp's own start, which takes a second: it
 * imports all of its modules, and tries the library in another process. Returns null where that start is needed: on other systems than
 * Linux, if node-llama-cpp has compiled a library itself, or if the shipped one does not load.
 */
function shippedCpu(release: string): string | null {
  if (process.platform !== 'linux') return null
  const name = `linux-${process.arch}`
  const installed = nodeLlamaCpp()
  if (installed === null || existsSync(join(installed, 'llama', 'localBuilds'))) return null
  const folder = join(dirname(installed), '@node-llama-cpp', name, 'bins', name)
  try {
    const { buildOptions } = JSON.parse(readFileSync(join(folder, '_nlcBuildMetadata.json'), 'utf8')) as {
      readonly buildOptions: { readonly llamaCpp: { readonly release: string } }
    }
    if (buildOptions.llamaCpp.release !== release) return null
    openGlobally(join(folder, LIBRARY))
    return folder
  } catch {
    return null
  }
}

/** Opens the library that node-llama-cpp chooses. Returns the kind of device that it computes on. */
async function openDetected(gpu: GpuChoice, release: string): Promise<BackendInfo['gpu']> {
  const llama = await detect(gpu)
  const installed = llama.llamaCppRelease.release
  if (installed !== release) throw mismatch(release, installed)
  openGlobally(llamaLibrary())
  return llama.gpu === false ? 'cpu' : llama.gpu
}

/**
 * Replaces the shipped libraries by those that were compiled on this machine, or that `KVFOLD_CPU_LIBRARY` and the like name. Returns the
 * files in use.
 */
function useLibraries(addon: Addon): BackendInfo['libraries'] {
  const loaded = loadedLibraries()
  const used: Record<string, LibraryFiles> = {}
  for (const kind of LIBRARY_KINDS) {
    const shipped = shippedLibrary(kind, loaded)
    if (shipped === null) continue
    const compiled = compiledPath(kind, basename(shipped))
    const wanted = wantedLibrary(kind, compiled)
    if (wanted !== null)
      calling(() => {
        addon.useLibrary(backendOf(kind), wanted)
      })
    used[kind] = { shipped, compiled, used: wanted ?? shipped }
  }
  return used
}

function mismatch(built: string, found: string): KvfoldError {
  return new KvfoldError(
    'native/library-mismatch',
    `The native addon was built for llama.cpp ${built}, but the installed library is ${found}; install kvfold again (npm ci in a checkout).`,
  )
}

/** The file name of node-llama-cpp's addon. Opening it also loads llama.cpp's library. */
const LIBRARY = 'llama-addon.node'

/** node-llama-cpp keeps its library's symbols local. Opening the library once more makes them visible to libraries loaded later. */
function openGlobally(library: string): void {
  process.dlopen({ exports: {} }, library, constants.dlopen.RTLD_NOW | constants.dlopen.RTLD_GLOBAL)
}

/** Paths of the shared libraries in this process. */
export function loadedLibraries(): readonly string[] {
  // The @types/node of the oldest supported Node line lack this option. It keeps the report from resolving the names of open sockets.
  const report = process.report as (typeof process)['report'] & { excludeNetwork?: boolean }
  const before = report.excludeNetwork ?? false
  report.excludeNetwork = true
  const { sharedObjects } = report.getReport() as unknown as { readonly sharedObjects: readonly string[] }
  report.excludeNetwork = before
  return sharedObjects
}

/** The file of node-llama-cpp's addon in this process. The package does not say which of its variants it loaded. */
function llamaLibrary(): string {
  const library = loadedLibraries().find((path) => path.endsWith(LIBRARY))
  if (library === undefined)
    throw new KvfoldError(
      'native/library-mismatch',
      'node-llama-cpp did not load its own library; install kvfold again (npm ci in a checkout).',
    )
  return library
}

async function detect(gpu: GpuChoice): Promise<Llama> {
  // Importing node-llama-cpp is slow, so only this function does it: errors found earlier are thrown at once.
  const { getLlama } = await import('node-llama-cpp')
  try {
    return await getLlama({
      gpu: gpu === 'cpu' ? false : gpu,
      build: 'never',
      progressLogs: false,
      logger: () => undefined,
      skipDownload: true,
    })
  } catch (error) {
    const [reason = ''] = (error as Error).message.split('\n')
    throw new KvfoldError(
      'native/library-mismatch',
      `node-llama-cpp has no usable library for --gpu ${gpu} on this machine (${reason}); try --gpu cpu or auto.`,
      { cause: error },
    )
  }
}

// The addon throws errors with the message "code\nsentence". They become KvfoldErrors.

/** The most characters of an error's sentence. llama.cpp quotes text of a damaged file, which may have any length. */
const MOST = 1000

const isCode = (text: string): text is ErrorCode => Object.hasOwn(errorTable, text)

/** Turns an error of the addon into a KvfoldError. Returns any other error unchanged. */
export function translated(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const [code = '', ...sentence] = error.message.split('\n')
  return isCode(code) ? new KvfoldError(code, shortened(sentence.join(' ')), { cause: error }) : error
}

/** Shortens a text of more than MOST characters to its beginning and its end. */
export const shortened = (text: string): string =>
  text.length <= MOST ? text : `${text.slice(0, MOST / 2)} ... ${text.slice(-MOST / 2)}`

/** Returns the error that the addon's "code\nsentence" describes. */
export const meant = (words: string): Error => translated(new Error(words)) as Error

/** Runs a synchronous call into the addon, and throws its error as a KvfoldError. */
export function calling<T>(call: () => T): T {
  try {
    return call()
  } catch (error) {
    throw translated(error)
  }
}

/** Awaits an asynchronous call into the addon, and throws its error as a KvfoldError. */
export async function awaiting<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (error) {
    throw translated(error)
  }
}

/** Throws `native/bad-argument` with this sentence. */
export function refuse(sentence: string): never {
  throw new KvfoldError('native/bad-argument', sentence)
}

/** Throws `native/bad-argument` for a token outside of the vocabulary. */
export function refuseForeign(token: number, vocabulary: number): void {
  if (!Number.isInteger(token) || token < 0 || token >= vocabulary)
    refuse(`Token ${token} is not in the vocabulary of ${vocabulary}.`)
}
