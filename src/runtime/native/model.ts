/**
 * A loaded model: its facts and vocabulary, and the contexts and samplers made from it, which are disposed before it. Also checks a
 * sampler's options and state before the addon draws.
 */
import { KvfoldError } from '../core/errors.js'
import { checkAdapter } from './adapter-file.js'
import {
  type AdapterHandle,
  type Addon,
  awaiting,
  calling,
  type DryHandle,
  type GrammarHandle,
  loadedLibraries,
  type ModelHandle,
  refuse,
  refuseForeign,
  type SamplerHandle,
  type WordsHandle,
} from './addon.js'
import { availableMemory, cellsThatFit, isCacheless, layersThatFit, planContext, refuseTooMuch } from './context-options.js'
import { adapterHandles, Context, samplerHandles } from './context.js'
import { refuseBrokenDriver, usable } from './devices.js'
import { checkGguf } from './gguf-file.js'
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
  NativeAdapter,
  NativeContext,
  NativeDry,
  NativeGrammar,
  NativeModel,
  NativeSampler,
  NativeWords,
  SamplerOptions,
  SamplerName,
  SpecialTokens,
  TokenizeOptions,
  VocabType,
} from './types.js'

/** How many prepared parts (DRY samplers and forbidden words) a model keeps for later samplers. */
const MOST_PARTS = 8
/** The most tokens among which the sampler `infill` may choose. */
const MOST_INFILLED = 1000
/** Texts across which DRY sees no repetition by default, the same as in llama.cpp. */
const BREAKERS = ['\n', ':', '"', '*']

const ENDS_GENERATION = 1
const CONTROL = 2

export class Model implements NativeModel {
  readonly info: ModelInfo
  readonly special: SpecialTokens
  /** How many of the model's layers are on a GPU. */
  readonly gpuLayers: number
  readonly #addon: Addon
  readonly #backend: BackendInfo
  readonly #vocabOnly: boolean
  /** For each token: a byte whose bits are ENDS_GENERATION and CONTROL. */
  readonly #flags: Uint8Array
  readonly #pieces = new Map<number, Uint8Array>()
  readonly #contexts = new Set<Context>()
  readonly #samplers = new Set<Sampler>()
  /** The prepared parts of samplers by their options, the last used one at the end. */
  readonly #parts = new Map<string, Promise<unknown>>()
  /** Calls that still use the model on another thread: they make contexts or grammars, or tokenize texts. */
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
   * Checks and loads the model's file.
   * @throws KvfoldError model/not-found, model/bad-file, memory/insufficient, native/bad-argument; an error of `onProgress` is thrown
   * unchanged.
   */
  static async load(addon: Addon, backend: BackendInfo, path: string, options: ModelOptions = {}): Promise<Model> {
    const { mmap = true, mlock = false, vocabOnly = false, checkTensors = false, onProgress } = options
    const { devices, tensorTypes } = addon.about()
    const file = checkGguf(path, tensorTypes)
    const fit = layersThatFit(file, usable(backend.gpu, devices))
    const { gpuLayers = fit } = options
    if (!Number.isInteger(gpuLayers) || gpuLayers < 0 || gpuLayers > 2 ** 31 - 1)
      refuse(`gpuLayers is ${gpuLayers}; give a whole number of layers from 0.`)
    // Check memory only without mmap: the system can drop mapped pages, but not copied weights. Weights for a GPU are copied through a
    // small buffer.
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
    // `hostOnly` keeps llama.cpp off the GPU: the loaded library may be one for GPUs, although the user chose the CPU.
    const raw = { gpuLayers, mmap, mlock, vocabOnly, checkTensors, hostOnly: backend.gpu === 'cpu' }
    const handle = await awaiting(() => addon.modelLoad(path, raw, onProgress === undefined ? null : report))
    // `report` may have assigned `failure` during the load, which the compiler does not see.
    const thrown = failure as { readonly error: unknown } | null
    if (thrown !== null) {
      await addon.modelFree(handle)
      throw thrown.error
    }
    return new Model(addon, backend, handle, path, gpuLayers, vocabOnly, file.scores)
  }

  /** The model's handle for calls into the addon. @throws KvfoldError native/disposed */
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

  /**
   * Refuses texts that cannot be tokenized. @throws KvfoldError model/unsupported without a vocabulary; model/bad-file if special tokens
   * are requested that have no id
   */
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

  /** Runs work that uses the model on another thread; `dispose` waits for it. */
  async #elsewhere<T>(work: () => Promise<T>): Promise<T> {
    const working = work()
    this.#using.add(working)
    try {
      return await working
    } finally {
      this.#using.delete(working)
    }
  }

  detokenize(tokens: Int32Array | readonly number[], special = false): string {
    const pieces = Array.from(tokens, (token) => this.piece(token, special))
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(pieces))
  }

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

  isEndOfGeneration(token: number): boolean {
    refuseForeign(token, this.info.vocabulary)
    return ((this.#flags[token] ?? 0) & ENDS_GENERATION) !== 0
  }

  isControl(token: number): boolean {
    refuseForeign(token, this.info.vocabulary)
    return ((this.#flags[token] ?? 0) & CONTROL) !== 0
  }

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
      const context = new Context(this.#addon, this.info, made, plan, identity, (closed) => this.#contexts.delete(closed))
      this.#contexts.add(context)
      return context
    })
  }

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
      return new Adapter(adapter, { path, ignored }, () => {
        // llama.cpp frees adapters with their model, on another thread.
        if (this.#disposing !== null) return
        this.#refuseUsed('disposed')
        this.#addon.adapterFree(adapter)
      })
    })
  }

  /**
   * Refuses to load or free an adapter now. @throws KvfoldError native/busy while anything reads llama.cpp's list of the model's adapters
   */
  #refuseUsed(what: string): void {
    if (this.#contexts.size + this.#using.size > 0)
      throw new KvfoldError('native/busy', `An adapter can only be ${what} while its model has no context and is not in use.`)
  }

  async compileGrammar(text: string): Promise<NativeGrammar> {
    const { handle } = this
    this.#refuseWithoutVocabulary()
    checkGrammar(text)
    return this.#elsewhere(async () => new Grammar(text, await awaiting(() => this.#addon.grammarCompile(handle, text))))
  }

  prepareDry(options: DryOptions): Promise<NativeDry> {
    const { handle } = this
    checkDry(options)
    this.#refuseWithoutVocabulary()
    const { multiplier, base = 1.75, allowedLength = 2, lastN = 64, breakers = BREAKERS } = options
    return this.#prepared(JSON.stringify(['dry', multiplier, base, allowedLength, lastN, breakers]), async () => {
      const made = await awaiting(() => this.#addon.dryPrepare(handle, multiplier, base, allowedLength, lastN, breakers))
      return new Dry(options, made)
    })
  }

  prepareWords(words: readonly string[]): Promise<NativeWords> {
    const { handle } = this
    checkWords(words)
    this.#refuseWithoutVocabulary()
    return this.#prepared(
      JSON.stringify(['words', ...words]),
      async () => new Words(words, await awaiting(() => this.#addon.wordsPrepare(handle, words))),
    )
  }

  /** Returns the part that `make` made for this key before, or makes it now. Keeps the last few parts, but no failures. */
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
    const sampler = new Sampler(this.#addon, this.handle, this.info.vocabulary, options, (closed) =>
      this.#samplers.delete(closed),
    )
    this.#samplers.add(sampler)
    return sampler
  }

  dispose(): Promise<void> {
    this.#disposing ??= this.#dispose()
    return this.#disposing
  }

  /**
   * Refuses the sampler `infill` where it takes minutes, because llama.cpp compares all of its tokens with each other. Also refuses it where it
   * could end an answer that must not end.
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

class Adapter implements NativeAdapter {
  readonly path: string
  readonly ignored: number
  #handle: AdapterHandle | null

  constructor(
    handle: AdapterHandle,
    { path, ignored }: Pick<NativeAdapter, 'path' | 'ignored'>,
    private readonly free: () => void,
  ) {
    this.path = path
    this.ignored = ignored
    this.#handle = handle
    adapterHandles.set(this, () => {
      if (this.#handle === null) throw new KvfoldError('native/disposed', 'The adapter was disposed; load it again.')
      return this.#handle
    })
  }

  dispose(): void {
    if (this.#handle === null) return
    this.free()
    this.#handle = null
  }
}

// A sampler. It checks its options and its state before the addon draws.

class Grammar implements NativeGrammar {
  constructor(
    readonly text: string,
    readonly handle: GrammarHandle,
  ) {}
}

class Dry implements NativeDry {
  constructor(
    readonly options: DryOptions,
    readonly handle: DryHandle,
  ) {}
}

class Words implements NativeWords {
  constructor(
    readonly words: readonly string[],
    readonly handle: WordsHandle,
  ) {}
}

/** Returns a sampler's options in the addon's form: with handles in place of prepared parts. @throws KvfoldError native/bad-argument */
function rawOptions({ grammar, dry, limits, ...rest }: SamplerOptions): object {
  const { badWords, ...others } = limits ?? {}
  if (dry !== undefined && !(dry instanceof Dry)) refuse('dry must come from prepareDry.')
  if (badWords !== undefined && !(badWords instanceof Words)) refuse('limits.badWords must come from prepareWords.')
  return {
    ...rest,
    ...(grammar === undefined ? {} : { grammar: grammar instanceof Grammar ? grammar.handle : grammar }),
    ...(dry === undefined ? {} : { dry: dry.handle }),
    ...(limits === undefined ? {} : { limits: { ...others, ...(badWords === undefined ? {} : { badWords: badWords.handle }) } }),
  }
}

class Sampler implements NativeSampler {
  #handle: SamplerHandle | null

  /** Checks the options and makes the sampler. @throws KvfoldError native/bad-argument, engine/bad-grammar */
  constructor(
    private readonly addon: Addon,
    model: ModelHandle,
    private readonly vocabulary: number,
    options: SamplerOptions,
    private readonly onDispose: (closed: Sampler) => void,
  ) {
    checkOptions(options, vocabulary)
    const raw = rawOptions(options)
    this.#handle = calling(() => addon.samplerCreate(model, raw))
    samplerHandles.set(this, () => this.#alive())
  }

  sample(context: NativeContext, index: number): number {
    const handle = this.#alive()
    if (!(context instanceof Context)) refuse('A sampler needs a context that this addon created.')
    const { idle } = context
    return calling(() => this.addon.samplerSample(handle, idle, index))
  }

  accept(token: number): void {
    const handle = this.#alive()
    refuseForeign(token, this.vocabulary)
    calling(() => {
      this.addon.samplerAccept(handle, token)
    })
  }

  endReasoning(): void {
    const handle = this.#alive()
    calling(() => {
      this.addon.samplerEndReasoning(handle)
    })
  }

  reset(): void {
    const handle = this.#alive()
    calling(() => {
      this.addon.samplerReset(handle)
    })
  }

  dispose(): void {
    const handle = this.#handle
    if (handle === null) return
    this.#handle = null
    this.addon.samplerFree(handle)
    this.onDispose(this)
  }

  #alive(): SamplerHandle {
    if (this.#handle === null) throw new KvfoldError('native/disposed', 'The sampler was disposed; create another.')
    return this.#handle
  }
}

/** Checks that an option lies within its bounds, or is undefined. @throws KvfoldError native/bad-argument */
function within(name: string, value: number | undefined, low: number, high: number, whole = false): void {
  if (value === undefined || (value >= low && value <= high && (!whole || Number.isInteger(value)))) return
  refuse(`${name} is ${String(value)}; give a ${whole ? 'whole ' : ''}number from ${low} to ${high}.`)
}

/**
 * The most breakers of DRY and the most bytes of each. Each breaker is searched for in every token, and llama.cpp would cut longer ones.
 */
const MOST_BREAKERS = { count: 32, bytes: 40 }

/** Checks the options of DRY. @throws KvfoldError native/bad-argument */
function checkDry({ multiplier, base, allowedLength, lastN, breakers = [] }: DryOptions): void {
  within('dry.multiplier', multiplier, 0, 100)
  within('dry.base', base, 1, 100)
  within('dry.allowedLength', allowedLength, 0, 2 ** 20, true)
  within('dry.lastN', lastN, 0, 2 ** 20, true)
  const { count, bytes } = MOST_BREAKERS
  if (breakers.length > count) refuse(`dry.breakers has ${breakers.length} texts; give ${count} at most.`)
  for (const text of breakers)
    if (text === '' || text.includes('\0') || Buffer.byteLength(text) > bytes)
      refuse(`dry.breakers has a text that is empty, has a NUL or is longer than ${bytes} bytes; shorten it or leave it out.`)
}

/** The most forbidden words and the most bytes of each. Each is searched for in every token. */
const MOST_WORDS = { count: 64, bytes: 256 }

/** Checks a list of forbidden words. @throws KvfoldError native/bad-argument */
function checkWords(words: readonly string[]): void {
  const { count, bytes } = MOST_WORDS
  if (words.length === 0 || words.length > count) refuse(`There are ${words.length} forbidden words; give 1 to ${count}.`)
  for (const word of words)
    if (word === '' || word.includes('\0') || Buffer.byteLength(word) > bytes)
      refuse(`A forbidden word is empty, has a NUL or is longer than ${bytes} bytes; shorten it or leave it out.`)
}

/** The names that a sampler's option `order` may contain. */
const CHAIN_PARTS = {
  ...{ penalties: true, dry: true, top_n_sigma: true, top_k: true, typ_p: true, top_p: true, min_p: true, xtc: true },
  ...{ temperature: true, adaptive_p: true, infill: true },
} satisfies Record<SamplerName, true>

/** The most names in a sampler's option `order`. A part that is named twice is used twice. */
const MOST_CHAINED = 32

/** Checks the options for the parts of a sampler's chain. @throws KvfoldError native/bad-argument */
function checkChain({ topNSigma, xtc, dynatemp, adaptive, minKeep, order = [] }: SamplerOptions): void {
  within('topNSigma', topNSigma, 0, 1000)
  within('xtc.probability', xtc?.probability, 0, 1)
  within('xtc.threshold', xtc?.threshold, 0, 1)
  within('dynatemp.range', dynatemp?.range, 0, 100)
  within('dynatemp.exponent', dynatemp?.exponent, 0, 100)
  within('adaptive.target', adaptive?.target, 0, 1)
  within('adaptive.decay', adaptive?.decay, 0, 0.99)
  within('minKeep', minKeep, 0, 2 ** 31 - 1, true)
  if (order.length > MOST_CHAINED) refuse(`order has ${order.length} parts; give ${MOST_CHAINED} at most.`)
  for (const name of order)
    if (!Object.hasOwn(CHAIN_PARTS, name)) refuse(`order has ${JSON.stringify(name)}, which does not exist.`)
}

/** Checks the limits of an answer and the tokens before it. @throws KvfoldError native/bad-argument */
function checkLimits({ seen = new Int32Array(), limits = {} }: SamplerOptions, vocabulary: number): void {
  const { minTokens, stopTokens = [], allowedTokens } = limits
  within('limits.minTokens', minTokens, 0, 2 ** 31 - 1, true)
  for (const token of seen) within('seen', token, 0, vocabulary - 1, true)
  for (const token of stopTokens) within('limits.stopTokens', token, 0, vocabulary - 1, true)
  for (const token of allowedTokens ?? []) within('limits.allowedTokens', token, 0, vocabulary - 1, true)
  if (allowedTokens?.length === 0) refuse('limits.allowedTokens is empty; name a token or leave it out.')
}

function checkOptions(options: SamplerOptions, vocabulary: number): void {
  within('temperature', options.temperature, 0, 100)
  within('topK', options.topK, 0, 2 ** 31 - 1, true)
  within('topP', options.topP, 0, 1)
  within('minP', options.minP, 0, 1)
  within('typicalP', options.typicalP, 0, 1)
  within('repeatPenalty', options.repeatPenalty, 0.001, 100)
  within('frequencyPenalty', options.frequencyPenalty, -100, 100)
  within('presencePenalty', options.presencePenalty, -100, 100)
  within('penaltyLastN', options.penaltyLastN, 0, 2 ** 20, true)
  // The largest seed is left out, because the last number of 32 bits means "any seed" to llama.cpp.
  within('seed', options.seed, 0, 2 ** 32 - 2, true)
  if (options.mirostat !== undefined) {
    within('mirostat.version', options.mirostat.version, 1, 2, true)
    within('mirostat.tau', options.mirostat.tau, 0.001, 100)
    within('mirostat.eta', options.mirostat.eta, 0.0001, 1)
  }
  checkChain(options)
  checkLimits(options, vocabulary)
  for (const { token, bias } of options.logitBias ?? []) {
    within('logitBias.token', token, 0, vocabulary - 1, true)
    if (Number.isNaN(bias) || bias === Infinity)
      refuse(`The logit bias of token ${token} is ${bias}; give a number or -Infinity.`)
  }
  if (typeof options.grammar === 'string') checkGrammar(options.grammar)
  else if (options.grammar !== undefined && !(options.grammar instanceof Grammar))
    refuse('grammar must be a text in GBNF, or a grammar from compileGrammar.')
  if (options.budget !== undefined) {
    const { tokens, open, close, forced } = options.budget
    within('budget.tokens', tokens, 0, 2 ** 31 - 1, true)
    for (const token of forced) within('budget.forced', token, 0, vocabulary - 1, true)
    if (open === '' || close === '' || forced.length === 0)
      refuse(
        'A reasoning budget needs the tag that opens reasoning, the tag that closes it, and the tokens to force; give all three.',
      )
  }
  const { lazy } = options
  if (lazy === undefined) return
  const { spaced = [] } = lazy
  if (options.grammar === undefined || lazy.triggers.length + spaced.length === 0)
    refuse('lazy needs a grammar and at least one trigger; give both.')
  const tags = [...lazy.triggers, ...lazy.reasoning.flatMap(({ open, close }) => [open, close])]
  if (tags.some((tag) => tag === '')) refuse('A trigger or a tag of a lazy grammar is empty; leave it out.')
  if (spaced.some((trigger) => /^(?: |$)/.test(trigger)))
    refuse('A spaced trigger of a lazy grammar is empty or begins with a space; give the text from its first other character on.')
}

const LONGEST_GRAMMAR = 4_000_000

/** Checks a grammar's length and characters. The addon checks how large the grammar becomes when written out, and how deep it nests. */
function checkGrammar(grammar: string): void {
  if (grammar.length > LONGEST_GRAMMAR)
    throw new KvfoldError(
      'engine/bad-grammar',
      `The grammar has ${grammar.length} characters, but at most ${LONGEST_GRAMMAR} are allowed; make it simpler.`,
    )
  if (grammar.includes('\0')) throw new KvfoldError('engine/bad-grammar', 'The grammar contains a NUL character; write \\x00.')
}
