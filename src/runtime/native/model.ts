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
  type GrammarHandle,
  loadedLibraries,
  type ModelHandle,
  refuse,
  refuseForeign,
  type SamplerHandle,
} from './addon.js'
import { availableMemory, isCacheless, layersThatFit, planContext, refuseTooMuch } from './context-options.js'
import { adapterHandles, Context, samplerHandles } from './context.js'
import { refuseBrokenDriver, usable } from './devices.js'
import { checkGguf } from './gguf-file.js'
import { identityOf } from './sequence-state.js'
import { AT_ONCE, tokenizing } from './tokenizing.js'
import type {
  BackendInfo,
  ContextOptions,
  ModelInfo,
  ModelOptions,
  NativeAdapter,
  NativeContext,
  NativeGrammar,
  NativeModel,
  NativeSampler,
  SamplerOptions,
  SpecialTokens,
  TokenizeOptions,
  VocabType,
} from './types.js'

const ENDS_GENERATION = 1
const CONTROL = 2

export class Model implements NativeModel {
  readonly info: ModelInfo
  readonly special: SpecialTokens
  /** Layers on a GPU. */
  readonly gpuLayers: number
  readonly #addon: Addon
  readonly #backend: BackendInfo
  readonly #vocabOnly: boolean
  /** For each token: its flags, a bit set. */
  readonly #flags: Uint8Array
  readonly #pieces = new Map<number, Uint8Array>()
  readonly #contexts = new Set<Context>()
  readonly #samplers = new Set<Sampler>()
  /** Work that uses the model on another thread: contexts and grammars that are being made, texts that are being tokenized. */
  readonly #using = new Set<Promise<unknown>>()
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
    const { flags, longestToken, ...special } = calling(() => addon.vocabularyDescribe(handle))
    const { vocabType, ...rest } = calling(() => addon.modelDescribe(handle))
    this.#addon = addon
    this.#backend = backend
    this.#handle = handle
    this.#vocabOnly = vocabOnly
    this.#flags = flags
    this.special = special
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
    // `hostOnly`: the loaded library may be one for GPUs, although the CPU is to compute.
    const raw = { gpuLayers, mmap, mlock, vocabOnly, checkTensors, hostOnly: backend.gpu === 'cpu' }
    const handle = await awaiting(() => addon.modelLoad(path, raw, onProgress === undefined ? null : report))
    // A callback assigns it, which the compiler does not see.
    const thrown = failure as { readonly error: unknown } | null
    if (thrown !== null) {
      await addon.modelFree(handle)
      throw thrown.error
    }
    return new Model(addon, backend, handle, path, gpuLayers, vocabOnly, file.scores)
  }

  /** @throws KvfoldError native/disposed */
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

  /** @throws KvfoldError model/unsupported without a vocabulary; model/bad-file if special tokens are requested that have no id */
  #refuseUntokenizable({ addSpecial = false }: TokenizeOptions): void {
    this.#refuseWithoutVocabulary()
    const { addBos, bos, addEos, eos } = this.special
    // llama.cpp would end the process.
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

  /** @throws KvfoldError native/bad-argument, native/unsupported, model/unsupported, memory/insufficient, native/disposed, native/failed */
  async createContext(options: ContextOptions = {}): Promise<NativeContext> {
    const { handle } = this
    if (this.#vocabOnly)
      throw new KvfoldError('model/unsupported', 'The model was loaded with vocabOnly and has no weights; load it whole.')
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
    return this.#elsewhere(async () => {
      const adapter = await awaiting(() => this.#addon.adapterLoad(handle, path))
      return new Adapter(this.#addon, adapter, { path, ignored }, () => {
        this.#refuseUsed('disposed')
      })
    })
  }

  /** @throws KvfoldError native/busy while anything reads llama.cpp's list of the model's adapters */
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

  /** @throws KvfoldError native/bad-argument, engine/bad-grammar, native/disposed */
  createSampler(options: SamplerOptions = {}): NativeSampler {
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
    await awaiting(() => this.#addon.modelFree(handle))
  }
}

class Adapter implements NativeAdapter {
  readonly path: string
  readonly ignored: number
  #handle: AdapterHandle | null

  constructor(
    private readonly addon: Addon,
    handle: AdapterHandle,
    { path, ignored }: Pick<NativeAdapter, 'path' | 'ignored'>,
    private readonly refuseUsed: () => void,
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
    const handle = this.#handle
    if (handle === null) return
    this.refuseUsed()
    this.#handle = null
    this.addon.adapterFree(handle)
  }
}

// A sampler. It checks its options and its state before the addon draws.

class Grammar implements NativeGrammar {
  constructor(
    readonly text: string,
    readonly handle: GrammarHandle,
  ) {}
}

class Sampler implements NativeSampler {
  #handle: SamplerHandle | null

  /** @throws KvfoldError native/bad-argument, engine/bad-grammar */
  constructor(
    private readonly addon: Addon,
    model: ModelHandle,
    private readonly vocabulary: number,
    options: SamplerOptions,
    private readonly onDispose: (closed: Sampler) => void,
  ) {
    checkOptions(options, vocabulary)
    const { grammar } = options
    const raw = grammar instanceof Grammar ? { ...options, grammar: grammar.handle } : options
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

function checkOptions(options: SamplerOptions, vocabulary: number): void {
  const within = (name: string, value: number | undefined, low: number, high: number, whole = false) => {
    if (value === undefined || (value >= low && value <= high && (!whole || Number.isInteger(value)))) return
    refuse(`${name} is ${String(value)}; give a ${whole ? 'whole ' : ''}number from ${low} to ${high}.`)
  }
  within('temperature', options.temperature, 0, 100)
  within('topK', options.topK, 0, 2 ** 31 - 1, true)
  within('topP', options.topP, 0, 1)
  within('minP', options.minP, 0, 1)
  within('typicalP', options.typicalP, 0, 1)
  within('repeatPenalty', options.repeatPenalty, 0.001, 100)
  within('frequencyPenalty', options.frequencyPenalty, -100, 100)
  within('presencePenalty', options.presencePenalty, -100, 100)
  within('penaltyLastN', options.penaltyLastN, 0, 2 ** 20, true)
  // The last number of 32 bits means "any seed" to llama.cpp.
  within('seed', options.seed, 0, 2 ** 32 - 2, true)
  if (options.mirostat !== undefined) {
    within('mirostat.version', options.mirostat.version, 1, 2, true)
    within('mirostat.tau', options.mirostat.tau, 0.001, 100)
    within('mirostat.eta', options.mirostat.eta, 0.0001, 1)
  }
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

/** Checks a grammar's length and characters. The addon checks how large it becomes when written out, and how deep it nests. */
function checkGrammar(grammar: string): void {
  if (grammar.length > LONGEST_GRAMMAR)
    throw new KvfoldError(
      'engine/bad-grammar',
      `The grammar has ${grammar.length} characters, but at most ${LONGEST_GRAMMAR} are allowed; make it simpler.`,
    )
  if (grammar.includes('\0')) throw new KvfoldError('engine/bad-grammar', 'The grammar contains a NUL character; write \\x00.')
}
