/** A loaded model: its facts and vocabulary, and the contexts and samplers made from it, which are disposed before it. */
import { KvfoldError } from '../core/errors.js'
import { checkAdapter } from './adapter-file.js'
import { NativeAdapter } from './adapter.js'
import { type Addon, awaiting, calling, loadedLibraries, type ModelHandle, refuse, refuseForeign } from './addon.js'
import { availableMemory, cellsThatFit, isCacheless, layersThatFit, planContext, refuseTooMuch } from './context-options.js'
import { NativeContext } from './context.js'
import { refuseBrokenDriver, usable } from './devices.js'
import { checkGguf } from './gguf-file.js'
import {
  checkDry,
  checkGrammar,
  checkWords,
  NativeDry,
  NativeGrammar,
  NativeSampler,
  NativeWords,
  type SamplerOptions,
} from './sampler.js'
import { identityOf } from './sequence-state.js'
import { AT_ONCE, tokenizing } from './tokenizing.js'
import type {
  BackendInfo,
  ContextOptions,
  FitOptions,
  FittingCells,
  DryOptions,
  ModelInfo,
  ModelOptions,
  SpecialTokens,
  TokenizeOptions,
  VocabType,
} from './values.js'

/** How many prepared DRY samplers and word lists a model keeps for later samplers. */
const MOST_PARTS = 8
/** The most tokens among which the sampler `infill` may choose. */
const MOST_INFILLED = 1000
/** The default breakers of DRY, the same as in llama.cpp: texts that end a repetition. */
const BREAKERS = ['\n', ':', '"', '*']

const ENDS_GENERATION = 1
const CONTROL = 2

/**
 * A loaded model. Two rules hold for all native objects: after dispose() every call throws `native/disposed`. While a decode runs, calls
 * that use its context throw `native/busy`.
 */
export class NativeModel {
  readonly info: ModelInfo
  readonly special: SpecialTokens
  /** How many of the model's layers are on a GPU. */
  readonly gpuLayers: number
  readonly #addon: Addon
  readonly #backend: BackendInfo
  readonly #vocabOnly: boolean
  /** One byte per token, with the bits ENDS_GENERATION and CONTROL. */
  readonly #flags: Uint8Array
  readonly #pieces = new Map<number, Uint8Array>()
  readonly #contexts = new Set<NativeContext>()
  readonly #samplers = new Set<NativeSampler>()
  /** The prepared DRY samplers and word lists, by their options; the last used one at the end. */
  readonly #parts = new Map<string, Promise<unknown>>()
  /** Calls that use the model on another thread: they make contexts or grammars, or tokenize texts. `dispose` waits for them. */
  readonly #using = new Set<Promise<unknown>>()
  /** How many adapters are being loaded. */
  #loading = 0
  #handle: ModelHandle | null
  #disposing: Promise<void> | null = null

  private constructor(
    addon: Addon,
    backend: BackendInfo,
    handle: ModelHandle,
    path: string,
    gpuLayers: number,
    vocabOnly: boolean,
    scores: boolean,
  ) {
    const described = calling(() => addon.vocabularyDescribe(handle))
    const { flags, longestToken, fillPrefix, fillSuffix, fillMiddle, fillRepository, fillFile, ...special } = described
    const { vocabType, ...rest } = calling(() => addon.modelDescribe(handle))
    this.#addon = addon
    this.#backend = backend
    this.#handle = handle
    this.#vocabOnly = vocabOnly
    this.#flags = flags
    const fill =
      fillPrefix === null || fillSuffix === null || fillMiddle === null
        ? null
        : { prefix: fillPrefix, suffix: fillSuffix, middle: fillMiddle, repository: fillRepository, file: fillFile }
    this.special = { ...special, fill }
    this.gpuLayers = gpuLayers
    const architecture = rest.metadata['general.architecture'] ?? 'unknown'
    this.info = {
      ...rest,
      path,
      architecture,
      vocabulary: flags.length,
      longestToken,
      vocabType: vocabType as VocabType,
      encoder: rest.encoder || isCacheless(architecture),
      scores,
    }
  }

  /**
   * Checks and loads the model's file. @internal
   * @throws KvfoldError model/not-found, model/bad-file, memory/insufficient, native/bad-argument; an error of `onProgress` is thrown
   * unchanged.
   */
  static async load(addon: Addon, backend: BackendInfo, path: string, options: ModelOptions = {}): Promise<NativeModel> {
    const { mmap = true, mlock = false, vocabOnly = false, checkTensors = false, onProgress } = options
    const { devices, tensorTypes } = addon.about()
    const file = checkGguf(path, tensorTypes)
    const fit = layersThatFit(file, usable(backend.gpu, devices))
    const { gpuLayers = fit } = options
    if (!Number.isInteger(gpuLayers) || gpuLayers < 0 || gpuLayers > 2 ** 31 - 1)
      refuse(`gpuLayers is ${gpuLayers}; give a whole number of layers from 0.`)
    // Memory is checked only without mmap: the system can drop mapped pages, but not copied weights. Weights for a GPU pass through a small
    // buffer, so they need no host memory.
    if (!mmap && !vocabOnly && gpuLayers === 0)
      refuseTooMuch(
        `Loading ${path} without mmap`,
        file.tensorBytes,
        availableMemory(),
        'memory',
        'use mmap, a smaller model or a smaller quantisation',
      )
    let failure: { readonly error: unknown } | null = null
    const report = (progress: number) => {
      try {
        if (failure === null) onProgress?.(progress)
      } catch (error) {
        failure = { error }
      }
    }
    // `hostOnly` keeps llama.cpp off the GPU, because the loaded library may support GPUs although the user chose the CPU.
    const raw = { gpuLayers, mmap, mlock, vocabOnly, checkTensors, hostOnly: backend.gpu === 'cpu' }
    const handle = await awaiting(() => addon.modelLoad(path, raw, onProgress === undefined ? null : report))
    // `report` may have assigned `failure` during the load, which the compiler does not see.
    const thrown = failure as { readonly error: unknown } | null
    if (thrown !== null) {
      await addon.modelFree(handle)
      throw thrown.error
    }
    return new NativeModel(addon, backend, handle, path, gpuLayers, vocabOnly, file.scores)
  }

  /** The model's handle for calls into the addon. @throws KvfoldError native/disposed @internal */
  get handle(): ModelHandle {
    if (this.#handle === null || this.#disposing !== null)
      throw new KvfoldError('native/disposed', 'The model was disposed; load it again.')
    return this.#handle
  }

  tokenize(text: string, options: TokenizeOptions = {}): Int32Array {
    const { addSpecial = false, parseSpecial = false } = options
    const { handle } = this
    this.#refuseUntokenizable(options)
    return calling(() => this.#addon.tokenize(handle, text, addSpecial, parseSpecial))
  }

  /**
   * Tokenizes each text on another thread, so that the event loop stays free. If all texts together are short, it tokenizes them at once,
   * on this thread. At most two such calls run in a process at a time; the rest wait.
   * @throws KvfoldError native/bad-argument for a text of more than a GiB; as `tokenize`
   */
  async tokenizeAll(texts: readonly string[], options: TokenizeOptions = {}): Promise<readonly Int32Array[]> {
    const { addSpecial = false, parseSpecial = false } = options
    const size = texts.reduce((sum, text) => sum + text.length + 1, 0)
    if (size <= AT_ONCE) return texts.map((text) => this.tokenize(text, options))
    const { handle } = this
    this.#refuseUntokenizable(options)
    return this.#elsewhere(async () => {
      const leave = await tokenizing.enter(size)
      try {
        const { tokens, counts } = await awaiting(() => this.#addon.tokenizeAll(handle, texts, addSpecial, parseSpecial))
        let at = 0
        // Slices are copies, so a short text does not keep the tokens of all texts in memory.
        return Array.from(counts, (count) => tokens.slice(at, (at += count)))
      } finally {
        leave()
      }
    })
  }

  /** @throws KvfoldError model/unsupported without a vocabulary; model/bad-file if the model asks for BOS or EOS but has no such token */
  #refuseUntokenizable({ addSpecial = false }: TokenizeOptions): void {
    this.#refuseWithoutVocabulary()
    const { addBos, bos, addEos, eos } = this.special
    // llama.cpp would end the process if it had to add a token that has no id.
    if (addSpecial && ((addBos && bos === null) || (addEos && eos === null)))
      throw new KvfoldError(
        'model/bad-file',
        `${this.info.path} asks for a BOS or EOS token but defines none; tokenize without addSpecial.`,
      )
  }

  /** Runs work that uses the model on another thread. `dispose` waits for it. */
  async #elsewhere<T>(work: () => Promise<T>): Promise<T> {
    const working = work()
    this.#using.add(working)
    try {
      return await working
    } finally {
      this.#using.delete(working)
    }
  }

  /**
   * Returns the tokens' bytes as UTF-8 text; invalid sequences become U+FFFD. Control tokens are left out unless `special` is true (default
   * false).
   */
  detokenize(tokens: Int32Array | readonly number[], special = false): string {
    const pieces = Array.from(tokens, (token) => this.piece(token, special))
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(pieces))
  }

  /** Returns the bytes of one token's text. They are empty for control tokens if `special` is false (default for this function: true). */
  piece(token: number, special = true): Uint8Array {
    const { handle } = this
    refuseForeign(token, this.info.vocabulary)
    this.#refuseWithoutVocabulary()
    if (!special && this.isControl(token)) return new Uint8Array(0)
    let piece = this.#pieces.get(token)
    if (piece === undefined) {
      piece = calling(() => this.#addon.piece(handle, token, true))
      this.#pieces.set(token, piece)
    }
    return piece.slice()
  }

  /** Whether the token ends generation: EOS, EOT and the like. */
  isEndOfGeneration(token: number): boolean {
    refuseForeign(token, this.info.vocabulary)
    return ((this.#flags[token] ?? 0) & ENDS_GENERATION) !== 0
  }

  /** Whether the token is a control token or the unknown token. Plain text never tokenizes to such a token. */
  isControl(token: number): boolean {
    refuseForeign(token, this.info.vocabulary)
    return ((this.#flags[token] ?? 0) & CONTROL) !== 0
  }

  /**
   * Returns how many cells a context with these options gets by default: `usual`, or fewer where these do not fit, at least 4,096. With
   * `grows` and the whole model on GPUs it may be more, up to the trained context.
   */
  cellsThatFit(usual: number, options: Omit<ContextOptions, 'cells'>, fit: FitOptions): FittingCells {
    return cellsThatFit(usual, options, fit, this, usable(this.#backend.gpu, this.#addon.about().devices))
  }

  /**
   * Makes a context of this model.
   * @throws KvfoldError native/bad-argument, native/unsupported, model/unsupported, memory/insufficient, native/disposed, native/failed
   */
  async createContext(options: ContextOptions = {}): Promise<NativeContext> {
    const { handle } = this
    if (this.#vocabOnly)
      throw new KvfoldError('model/unsupported', 'The model was loaded with vocabOnly and has no weights; load it whole.')
    if (this.#loading > 0) throw new KvfoldError('native/busy', 'An adapter is being loaded; make a context when it is there.')
    const devices = usable(this.#backend.gpu, this.#addon.about().devices)
    const plan = planContext(options, this, devices)
    refuseBrokenDriver(devices, loadedLibraries)
    return this.#elsewhere(async () => {
      const made = await awaiting(() => this.#addon.contextCreate(handle, plan.raw))
      const identity = identityOf(this.#backend.release, this.info, plan, made.flashAttention)
      const context = new NativeContext(this.#addon, this.info, made, plan, identity, (closed) => this.#contexts.delete(closed))
      this.#contexts.add(context)
      return context
    })
  }

  /**
   * Loads a LoRA adapter of this model. llama.cpp plans the graphs of a context for the adapters that are loaded when the context is made.
   * So load adapters before the first context, one after another. They are freed with the model.
   * @throws KvfoldError native/busy while the model has contexts or is used on another thread; model/not-found; model/bad-file for a file
   * that is no adapter of this model; native/unsupported; memory/insufficient; native/disposed
   */
  async loadAdapter(path: string): Promise<NativeAdapter> {
    const { handle } = this
    if (this.#vocabOnly)
      throw new KvfoldError('model/unsupported', 'The model was loaded with vocabOnly and has no weights; load it whole.')
    this.#refuseUsed('loaded')
    const { bytes, ignored } = checkAdapter(path, this.info.path, this.#addon.about().tensorTypes)
    refuseTooMuch(`The adapter ${path}`, bytes, availableMemory(), 'memory', 'use a smaller one')
    this.#loading++
    return this.#elsewhere(async () => {
      const adapter = await awaiting(() => this.#addon.adapterLoad(handle, path)).finally(() => this.#loading--)
      return new NativeAdapter(adapter, path, ignored, () => {
        // Once the model is being disposed, llama.cpp frees its adapters with it, on another thread.
        if (this.#disposing !== null) return
        this.#refuseUsed('disposed')
        this.#addon.adapterFree(adapter)
      })
    })
  }

  /** @throws KvfoldError native/busy while something may read llama.cpp's list of the model's adapters, which loading and freeing change */
  #refuseUsed(what: string): void {
    if (this.#contexts.size + this.#using.size > 0)
      throw new KvfoldError('native/busy', `An adapter can only be ${what} while its model has no context and is not in use.`)
  }

  /**
   * Compiles GBNF off the event loop. Refuses a grammar that is too large or too ambiguous.
   * @throws KvfoldError engine/bad-grammar, native/disposed
   */
  async compileGrammar(text: string): Promise<NativeGrammar> {
    const { handle } = this
    this.#refuseWithoutVocabulary()
    checkGrammar(text)
    return this.#elsewhere(async () => new NativeGrammar(text, await awaiting(() => this.#addon.grammarCompile(handle, text))))
  }

  /**
   * Prepares a DRY sampler off the event loop. The last MOST_PARTS results are kept, so equal options need not be prepared again.
   * @throws KvfoldError native/bad-argument, native/disposed
   */
  prepareDry(options: DryOptions): Promise<NativeDry> {
    const { handle } = this
    checkDry(options)
    this.#refuseWithoutVocabulary()
    const { multiplier, base = 1.75, allowedLength = 2, lastN = 64, breakers = BREAKERS } = options
    return this.#prepared(JSON.stringify(['dry', multiplier, base, allowedLength, lastN, breakers]), async () => {
      const made = await awaiting(() => this.#addon.dryPrepare(handle, multiplier, base, allowedLength, lastN, breakers))
      return new NativeDry(options, made)
    })
  }

  /**
   * Searches the vocabulary for tokens that contain forbidden words, off the event loop. The last MOST_PARTS results are kept.
   * @throws KvfoldError native/bad-argument, native/disposed, model/unsupported without a vocabulary
   */
  prepareWords(words: readonly string[]): Promise<NativeWords> {
    const { handle } = this
    checkWords(words)
    this.#refuseWithoutVocabulary()
    return this.#prepared(
      JSON.stringify(['words', ...words]),
      async () => new NativeWords(words, await awaiting(() => this.#addon.wordsPrepare(handle, words))),
    )
  }

  /** Returns the kept result of `make` for this key, or calls `make`. Keeps the last MOST_PARTS results, but no failures. */
  #prepared<T>(key: string, make: () => Promise<T>): Promise<T> {
    const known = this.#parts.get(key)
    this.#parts.delete(key)
    const making = known ?? this.#elsewhere(make)
    this.#parts.set(key, making)
    making.catch(() => this.#parts.delete(key))
    for (const oldest of this.#parts.keys()) if (this.#parts.size > MOST_PARTS) this.#parts.delete(oldest)
    return making as Promise<T>
  }

  /** Makes a sampler for this model. @throws KvfoldError native/bad-argument, engine/bad-grammar, native/disposed */
  createSampler(options: SamplerOptions = {}): NativeSampler {
    if (options.grammar !== undefined || options.budget !== undefined) this.#refuseWithoutVocabulary()
    this.#refuseInfill(options)
    const sampler = new NativeSampler(this.#addon, this.handle, this.info.vocabulary, options, (closed) =>
      this.#samplers.delete(closed),
    )
    this.#samplers.add(sampler)
    return sampler
  }

  /** Disposes the model's contexts and samplers first, then the model. Further calls do nothing. */
  dispose(): Promise<void> {
    this.#disposing ??= this.#dispose()
    return this.#disposing
  }

  /**
   * Refuses the sampler `infill` where it would take minutes: llama.cpp compares all of its candidates with each other. Also refuses it
   * where it could end an answer that must not end.
   */
  #refuseInfill({ order = [], topK = 0, grammar, limits }: SamplerOptions): void {
    const at = order.indexOf('infill')
    if (at < 0) return
    this.#refuseWithoutVocabulary()
    const first = order.indexOf('top_k')
    if (first < 0 || first > at || topK < 1 || topK > MOST_INFILLED)
      refuse(`The sampler infill needs top_k before it, with 1 to ${MOST_INFILLED} tokens.`)
    if (grammar !== undefined || limits !== undefined)
      refuse('The sampler infill may end an answer at any token; leave out the grammar and the limits of the answer.')
    if (this.special.eot === null && this.special.eos === null)
      refuse('The sampler infill needs a model with a token that ends a text.')
  }

  #refuseWithoutVocabulary(): void {
    if (this.info.vocabType === 'none')
      throw new KvfoldError('model/unsupported', 'This model has no vocabulary, so there is no text for its tokens.')
  }

  async #dispose(): Promise<void> {
    const handle = this.#handle
    if (handle === null) return
    await Promise.allSettled(this.#using)
    await Promise.all([...this.#contexts].map((context) => context.dispose()))
    for (const sampler of [...this.#samplers]) sampler.dispose()
    this.#handle = null
    this.#pieces.clear()
    this.#parts.clear()
    await awaiting(() => this.#addon.modelFree(handle))
  }
}
