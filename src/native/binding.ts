/** Owns the native objects: validates every argument and guards every state before the addon sees it, because llama.cpp asserts. */
import { availableParallelism } from 'node:os'
import { resolve } from 'node:path'
import { LlamaJsonSchemaGrammar, type Llama } from 'node-llama-cpp'
import { KvfoldError } from '../core/errors.js'
import type { SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import { loadAddon, translated, type Addon, type ContextHandle, type ModelHandle, type RawDescription, type SamplerHandle } from './addon.js'
import { checkGguf } from './gguf-file.js'
import { availableMemory, bytesPerCell, cacheTypes, refuseTooMuch } from './memory-estimate.js'
import type {
  BackendInfo,
  Batch,
  Cell,
  ContextOptions,
  DecodeStatus,
  GpuChoice,
  MemoryFigures,
  ModelInfo,
  ModelOptions,
  Native,
  NativeContext,
  NativeModel,
  NativeSampler,
  SamplerOptions,
  SpecialTokens,
  TokenizeOptions,
  VocabType,
} from './types.js'

let opened: { readonly gpu: GpuChoice; readonly native: Promise<Native> } | null = null

/**
 * The process's llama.cpp: backend chosen by node-llama-cpp's detection unless `gpu` says otherwise. One per process.
 * @throws KvfoldError native/unsupported, native/build-failed, native/library-mismatch
 */
export async function openNative({ gpu = 'auto' }: { readonly gpu?: GpuChoice } = {}): Promise<Native> {
  if (opened !== null && opened.gpu !== gpu) {
    const { backend } = await opened.native
    if (gpu !== 'auto' && gpu !== backend.gpu)
      throw new KvfoldError('native/unsupported', `This process already runs llama.cpp on ${backend.gpu}; start another process for ${gpu}.`)
    return opened.native
  }
  opened ??= { gpu, native: open(gpu) }
  try {
    return await opened.native
  } catch (error) {
    opened = null
    throw error
  }
}

async function open(gpu: GpuChoice): Promise<Native> {
  if (process.platform === 'win32') throw new KvfoldError('native/unsupported', 'kvfold runs on Linux and macOS; on Windows use WSL.')
  const { addon, llama, release } = await loadAddon(gpu)
  const { devices, systemInfo } = addon.about()
  const backend: BackendInfo = {
    gpu: llama.gpu === false ? 'cpu' : llama.gpu,
    release,
    devices: devices.map(({ name, description }) => `${name}: ${description}`),
    systemInfo,
  }
  return {
    backend,
    loadModel: (path, options) => Model.load(addon, backend, resolve(path), options ?? {}),
    grammarFromSchema: (schema) => Promise.resolve(schemaGrammar(llama, schema)),
  }
}

function schemaGrammar(llama: Llama, schema: unknown): string {
  if (typeof schema !== 'object' || schema === null) throw new KvfoldError('engine/bad-grammar', 'A JSON schema is an object; give one.')
  refuseSchemaKeywords(schema)
  try {
    // node-llama-cpp ends such a grammar with blank lines as its own stop signal; an answer of ours ends with the value.
    return new LlamaJsonSchemaGrammar(llama, schema as never).grammar.replace(/ "\\n\\n\\n\\n" \[\\n\]\*$/m, '')
  } catch (error) {
    throw new KvfoldError('engine/bad-grammar', `This JSON schema cannot be made a grammar: ${(error as Error).message}`, { cause: error })
  }
}

/** Keywords that node-llama-cpp turns into grammar rules; others would be ignored in silence, so they are refused. */
const SCHEMA_KEYWORDS = new Set(
  'type properties required additionalProperties items prefixItems minItems maxItems enum const oneOf anyOf allOf $ref $defs minLength maxLength format description title default $schema minProperties maxProperties examples'.split(
    ' ',
  ),
)

function refuseSchemaKeywords(schema: unknown, path = '#'): void {
  if (typeof schema !== 'object' || schema === null) return
  for (const [keyword, value] of Object.entries(schema)) {
    if (!SCHEMA_KEYWORDS.has(keyword))
      throw new KvfoldError(
        'engine/bad-grammar',
        `The JSON schema keyword ${keyword} at ${path} is not supported; supported: ${[...SCHEMA_KEYWORDS].join(', ')}.`,
      )
    const below = `${path}/${keyword}`
    if (keyword === 'properties' || keyword === '$defs')
      for (const [name, inner] of Object.entries(value as object)) refuseSchemaKeywords(inner, `${below}/${name}`)
    else if (Array.isArray(value) && keyword !== 'enum' && keyword !== 'required' && keyword !== 'examples' && keyword !== 'type')
      value.forEach((inner, index) => {
        refuseSchemaKeywords(inner, `${below}/${index}`)
      })
    else if (keyword === 'items' || keyword === 'additionalProperties') refuseSchemaKeywords(value, below)
  }
}

class Model implements NativeModel {
  readonly info: ModelInfo
  readonly special: SpecialTokens
  readonly #flags: Uint8Array
  readonly #contexts = new Set<Context>()
  readonly #samplers = new Set<Sampler>()
  readonly #pieces = new Map<number, Uint8Array>()
  #handle: ModelHandle | null
  #disposing: Promise<void> | null = null

  private constructor(
    private readonly addon: Addon,
    private readonly backend: BackendInfo,
    handle: ModelHandle,
    description: RawDescription,
    path: string,
  ) {
    const { flags, special, vocabType, metadata, ...info } = description
    this.#handle = handle
    this.#flags = flags
    this.special = special
    this.info = { ...info, path, metadata, vocabType: vocabType as VocabType, architecture: metadata['general.architecture'] ?? 'unknown' }
  }

  static async load(addon: Addon, backend: BackendInfo, path: string, options: ModelOptions): Promise<Model> {
    const { gpuLayers = backend.gpu === 'cpu' ? 0 : -1, mmap = true, mlock = false, vocabOnly = false, checkTensors = false } = options
    if (!Number.isInteger(gpuLayers)) throw new KvfoldError('native/bad-argument', `gpuLayers is ${gpuLayers}; give a whole number of layers.`)
    const { bytes } = checkGguf(path)
    // Mapped pages can be dropped again; copied weights cannot.
    if (!mmap && !vocabOnly) refuseTooMuch(`Loading ${path}`, bytes, availableMemory(), 'use mmap, a smaller model, or a smaller quantisation')
    try {
      const handle = await addon.modelLoad(path, { gpuLayers, mmap, mlock, vocabOnly, checkTensors }, options.onProgress ?? null)
      return new Model(addon, backend, handle, addon.modelDescribe(handle), path)
    } catch (error) {
      throw translated(error)
    }
  }

  get handle(): ModelHandle {
    if (this.#handle === null || this.#disposing !== null) throw new KvfoldError('native/disposed', 'The model was disposed; load it again.')
    return this.#handle
  }

  tokenize(text: string, { addSpecial = false, parseSpecial = false }: TokenizeOptions = {}): Int32Array {
    const { handle } = this
    if (this.info.vocabType === 'none') throw new KvfoldError('model/unsupported', 'This model has no vocabulary; its text cannot be tokenized.')
    return calling(() => this.addon.tokenize(handle, text, addSpecial, parseSpecial))
  }

  detokenize(tokens: Int32Array | readonly number[], special = false): string {
    const pieces = [...tokens].map((token) => (this.isControl(token) && !special ? new Uint8Array(0) : this.piece(token, special)))
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(pieces))
  }

  piece(token: number, special = true): Uint8Array {
    const { handle } = this
    this.#refuseForeign(token)
    if (!special) return calling(() => this.addon.piece(handle, token, false))
    let piece = this.#pieces.get(token)
    if (piece === undefined) this.#pieces.set(token, (piece = calling(() => this.addon.piece(handle, token, true))))
    return piece
  }

  isEndOfGeneration(token: number): boolean {
    this.#refuseForeign(token)
    return (this.#flags[token]! & 1) !== 0
  }

  isControl(token: number): boolean {
    this.#refuseForeign(token)
    return (this.#flags[token]! & 2) !== 0
  }

  async createContext(options: ContextOptions = {}): Promise<NativeContext> {
    const { handle, info } = this
    const trained = info.trainedContext > 0 ? info.trainedContext : 4096
    const { cells = trained, sequences = 64, batch = 2048, ubatch = 512, threads = Math.min(8, availableParallelism()) } = options
    const { batchThreads = threads, flashAttention = 'auto', keyType = 'f16', valueType = 'f16', embeddings = false, fullSlidingWindow = false } = options
    const whole = { cells, sequences, batch, ubatch, threads, batchThreads }
    for (const [name, value] of Object.entries(whole))
      if (!Number.isInteger(value) || value < 1) throw new KvfoldError('native/bad-argument', `${name} is ${value}; give a whole number above 0.`)
    if (sequences > 256) throw new KvfoldError('native/bad-argument', `sequences is ${sequences}; llama.cpp has at most 256.`)
    if (cells > 2 ** 31 - 257) throw new KvfoldError('native/bad-argument', `cells is ${cells}; positions end at 2147483391.`)
    if (ubatch > batch) throw new KvfoldError('native/bad-argument', `ubatch ${ubatch} is larger than batch ${batch}; make it smaller.`)
    const [keyWidth, valueWidth] = this.#widths()
    const perHead = (width: number) => width / Math.max(1, info.kvHeads)
    for (const [name, type, width] of [['keyType', keyType, keyWidth], ['valueType', valueType, valueWidth]] as const) {
      if (!(type in cacheTypes)) throw new KvfoldError('native/bad-argument', `${name} ${type} is unknown; use one of ${Object.keys(cacheTypes).join(', ')}.`)
      if (perHead(width) % cacheTypes[type].elements !== 0)
        throw new KvfoldError('native/bad-argument', `${name} ${type} needs heads of a multiple of ${cacheTypes[type].elements}, this model's have ${perHead(width)}.`)
    }
    if (cacheTypes[valueType].elements > 1 && flashAttention === 'off')
      throw new KvfoldError('native/bad-argument', `valueType ${valueType} needs flash attention; turn it on or use f16.`)
    const quantised = cacheTypes[valueType].elements > 1
    // llama.cpp rounds the cell count up to its own granularity.
    const padded = Math.ceil(cells / 256) * 256
    const cache = info.recurrent ? 0 : padded * bytesPerCell({ layers: info.layers, keyWidth, valueWidth, keyType, valueType })
    const compute =
      4 * (ubatch * (info.vocabulary + 8 * info.embedding) + batch * info.vocabulary) +
      (flashAttention === 'off' ? 4 * ubatch * padded * Math.max(1, info.heads) : 2 * ubatch * padded)
    // On a GPU build the cache lies in device memory, where llama.cpp itself reports failure; host memory must hold it on CPU.
    if (this.backend.gpu === 'cpu')
      refuseTooMuch(`A context of ${cells} cells`, cache + compute, availableMemory(), 'ask for fewer cells, a smaller ubatch, or a quantised cache')
    const raw = {
      ...whole,
      cells: padded,
      flashAttention: { auto: quantised ? 1 : -1, on: 1, off: 0 }[flashAttention],
      keyType: cacheTypes[keyType].ggml,
      valueType: cacheTypes[valueType].ggml,
      embeddings,
      fullSlidingWindow,
    }
    try {
      const context = new Context(
        this.addon,
        this,
        await this.addon.contextCreate(handle, raw),
        { cache, compute, model: info.size },
        // `auto` resolves to on wherever the backend has the kernel, which the CPU always does; llama.cpp has no way to ask.
        flashAttention !== 'off',
        (closed) => this.#contexts.delete(closed),
      )
      this.#contexts.add(context)
      return context
    } catch (error) {
      throw translated(error)
    }
  }

  createSampler(options: SamplerOptions = {}): NativeSampler {
    const { handle } = this
    checkSampling(options, this.info.vocabulary)
    const sampler = new Sampler(this.addon, this, calling(() => this.addon.samplerCreate(handle, options)), (closed) => this.#samplers.delete(closed))
    this.#samplers.add(sampler)
    return sampler
  }

  dispose(): Promise<void> {
    const handle = this.#handle
    if (handle === null) return Promise.resolve()
    this.#disposing ??= (async () => {
      await Promise.all([...this.#contexts].map((context) => context.dispose()))
      for (const sampler of [...this.#samplers]) sampler.dispose()
      this.#handle = null
      await this.addon.modelFree(handle)
    })()
    return this.#disposing
  }

  /** Elements of one cell's key and value row in one layer (the widest layer where they differ). */
  #widths(): readonly [key: number, value: number] {
    const { architecture, metadata, embedding, heads, kvHeads } = this.info
    const entry = (name: string, fallback: number) => Number(metadata[`${architecture}.attention.${name}`] ?? fallback) || fallback
    const head = heads > 0 ? embedding / heads : embedding
    return [entry('key_length', head) * Math.max(1, kvHeads), entry('value_length', head) * Math.max(1, kvHeads)]
  }

  #refuseForeign(token: number): void {
    if (!Number.isInteger(token) || token < 0 || token >= this.info.vocabulary)
      throw new KvfoldError('native/bad-argument', `Token ${token} is not in the vocabulary of ${this.info.vocabulary}.`)
  }
}

class Context implements NativeContext {
  readonly cells: number
  readonly sequences: number
  readonly batch: number
  readonly ubatch: number
  readonly canShift: boolean
  #handle: ContextHandle | null
  #decoding: Promise<unknown> | null = null
  #disposing: Promise<void> | null = null

  constructor(
    private readonly addon: Addon,
    private readonly model: Model,
    handle: ContextHandle,
    readonly memory: MemoryFigures,
    readonly flashAttention: boolean,
    private readonly onDispose: (closed: Context) => void,
  ) {
    this.#handle = handle
    const { cells, batch, ubatch, sequences, canShift } = addon.contextSizes(handle)
    this.cells = cells
    this.batch = batch
    this.ubatch = ubatch
    this.sequences = sequences
    const { rope, recurrent, hybrid } = model.info
    this.canShift = canShift && !recurrent && !hybrid && !['mrope', 'imrope', 'vision'].includes(rope)
  }

  get submitted(): number {
    return this.addon.submitted(this.#alive())
  }

  /** The handle, when no decode is running on it. */
  get idle(): ContextHandle {
    const handle = this.#alive()
    if (this.#decoding !== null) throw new KvfoldError('native/busy', 'A decode is running on this context; wait for it or abort it.')
    return handle
  }

  async decode({ tokens, positions, sequences, outputs }: Batch): Promise<DecodeStatus> {
    const handle = this.idle
    this.#check({ tokens, positions, sequences, outputs })
    const running = this.addon.decode(handle, tokens, positions, sequences, outputs)
    this.#decoding = running
    try {
      return await running
    } catch (error) {
      throw translated(error)
    } finally {
      this.#decoding = null
    }
  }

  abort(): void {
    if (this.#decoding !== null && this.#handle !== null) this.addon.abort(this.#handle)
  }

  logits(index: number): Float32Array {
    const handle = this.idle
    return calling(() => this.addon.logits(handle, index))
  }

  tag(from: SeqId, to: SeqId, { start, end }: Span): void {
    const handle = this.idle
    this.#checkSequence(from)
    this.#checkSequence(to)
    this.#checkSpan(start, end)
    this.#refusePartial(from, start, end, 'tag')
    if (from !== to && start < end)
      calling(() => {
        this.addon.tag(handle, from, to, start, end)
      })
  }

  untag(seq: SeqId, { start, end }: Span): void {
    const handle = this.idle
    this.#checkSequence(seq)
    this.#checkSpan(start, end)
    this.#refusePartial(seq, start, end, 'untag')
    if (start < end)
      calling(() => {
        this.addon.untag(handle, seq, start, end)
      })
  }

  shift(seq: SeqId, { start, end }: Span, delta: number): void {
    const handle = this.idle
    this.#checkSequence(seq)
    this.#checkSpan(start, end)
    if (!this.canShift) throw new KvfoldError('model/unsupported', `The positions of a ${this.model.info.architecture} model cannot be shifted.`)
    if (!Number.isInteger(delta) || start + delta < 0)
      throw new KvfoldError('native/bad-argument', `A shift of [${start}, ${end}) by ${delta} leaves the positions; they begin at 0.`)
    if (start < end && delta !== 0)
      calling(() => {
        this.addon.shift(handle, seq, start, end, delta)
      })
  }

  positions(seq: SeqId): { readonly min: number; readonly max: number } | null {
    const handle = this.idle
    this.#checkSequence(seq)
    const [min, max] = calling(() => this.addon.positions(handle, seq))
    return max < 0 ? null : { min, max }
  }

  readback(): readonly Cell[] {
    const handle = this.idle
    if (!/^(none|norm|neox)$/.test(this.model.info.rope) || this.model.info.recurrent || this.model.info.hybrid || this.model.info.slidingWindow > 0)
      throw new KvfoldError('model/unsupported', 'Cells are read back from plain unified caches only.')
    const raw = calling(() => this.addon.readback(handle))
    const cells: Cell[] = []
    for (let at = 0; at < raw.length; ) {
      const count = raw[at + 1]!
      cells.push({ position: raw[at]!, sequences: [...raw.subarray(at + 2, at + 2 + count)] as SeqId[] })
      at += 2 + count
    }
    return cells
  }

  clear(): void {
    const handle = this.idle
    calling(() => {
      this.addon.clear(handle)
    })
  }

  saveSequence(seq: SeqId): Uint8Array {
    const handle = this.idle
    this.#checkSequence(seq)
    return calling(() => this.addon.saveSequence(handle, seq))
  }

  loadSequence(seq: SeqId, state: Uint8Array): boolean {
    const handle = this.idle
    this.#checkSequence(seq)
    if (this.positions(seq) !== null)
      throw new KvfoldError('native/bad-argument', `Sequence ${seq} is not empty; a state loads into an empty one only, for llama.cpp empties it first.`)
    return calling(() => this.addon.loadSequence(handle, seq, state))
  }

  dispose(): Promise<void> {
    const handle = this.#handle
    if (handle === null) return Promise.resolve()
    this.#disposing ??= (async () => {
      this.abort()
      await this.#decoding?.catch(() => undefined)
      this.#handle = null
      this.onDispose(this)
      await this.addon.contextFree(handle)
    })()
    return this.#disposing
  }

  #alive(): ContextHandle {
    if (this.#handle === null || this.#disposing !== null) throw new KvfoldError('native/disposed', 'The context was disposed; create another.')
    return this.#handle
  }

  /** Everything llama.cpp would assert on or misread. */
  #check({ tokens, positions, sequences, outputs }: Batch): void {
    const size = tokens.length
    const refuse = (what: string): never => {
      throw new KvfoldError('native/bad-argument', `The batch cannot be decoded: ${what}.`)
    }
    if (size === 0) refuse('it is empty')
    if (positions.length !== size || sequences.length !== size || outputs.length !== size) refuse('its arrays differ in length')
    if (size > this.batch) refuse(`it has ${size} tokens and the context takes ${this.batch} at once`)
    const next = new Map<number, number>()
    for (let at = 0; at < size; at++) {
      const [token, position, seq] = [tokens[at]!, positions[at]!, sequences[at]!]
      if (token < 0 || token >= this.model.info.vocabulary) refuse(`token ${token} at ${at} is not in the vocabulary of ${this.model.info.vocabulary}`)
      if (seq < 0 || seq >= this.sequences) refuse(`sequence ${seq} at ${at} does not exist (0 to ${this.sequences - 1} do)`)
      const expected = next.get(seq) ?? (this.positions(seq as SeqId)?.max ?? -1) + 1
      if (position !== expected) refuse(`sequence ${seq} goes on at position ${expected}, not ${position} (entry ${at})`)
      next.set(seq, position + 1)
    }
  }

  #checkSequence(seq: SeqId): void {
    if (!Number.isInteger(seq) || seq < 0 || seq >= this.sequences)
      throw new KvfoldError('native/bad-argument', `Sequence ${seq} does not exist; 0 to ${this.sequences - 1} do.`)
  }

  #checkSpan(start: number, end: number): void {
    // Negative bounds mean "everything" to llama.cpp; a wrong sign must not empty a sequence.
    if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end < start || end > 2 ** 31 - 1)
      throw new KvfoldError('native/bad-argument', `[${start}, ${end}) is not a span of positions.`)
  }

  /** Recurrent state has no middle: llama.cpp says yes and does nothing (kv-mechanics.md). */
  #refusePartial(seq: SeqId, start: number, end: number, what: string): void {
    const { recurrent, hybrid, architecture } = this.model.info
    if (!recurrent && !hybrid) return
    const held = this.positions(seq)
    if (held !== null && (start > 0 || end <= held.max))
      throw new KvfoldError('model/unsupported', `${architecture} keeps a recurrent state: ${what} works on whole sequences only.`)
  }
}

class Sampler implements NativeSampler {
  #handle: SamplerHandle | null

  constructor(
    private readonly addon: Addon,
    private readonly model: Model,
    handle: SamplerHandle,
    private readonly onDispose: (closed: Sampler) => void,
  ) {
    this.#handle = handle
  }

  sample(context: NativeContext, index: number): number {
    const handle = this.#alive()
    if (!(context instanceof Context)) throw new KvfoldError('native/bad-argument', 'A sampler draws from a context of this addon.')
    const from = context.idle
    return calling(() => this.addon.samplerSample(handle, from, index))
  }

  accept(token: number): void {
    const handle = this.#alive()
    this.model.piece(token)
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
    if (this.#handle === null) return
    this.addon.samplerFree(this.#handle)
    this.#handle = null
    this.onDispose(this)
  }

  #alive(): SamplerHandle {
    if (this.#handle === null) throw new KvfoldError('native/disposed', 'The sampler was disposed; create another.')
    return this.#handle
  }
}

function checkSampling(options: SamplerOptions, vocabulary: number): void {
  const within = (name: keyof SamplerOptions, low: number, high: number) => {
    const value = options[name]
    if (value === undefined) return
    if (typeof value !== 'number' || !(value >= low && value <= high))
      throw new KvfoldError('native/bad-argument', `${name} is ${String(value)}; give a number from ${low} to ${high}.`)
  }
  within('temperature', 0, 100)
  within('topK', 0, 2 ** 31 - 1)
  within('topP', 0, 1)
  within('minP', 0, 1)
  within('typicalP', 0, 1)
  within('repeatPenalty', 1e-3, 100)
  within('frequencyPenalty', -100, 100)
  within('presencePenalty', -100, 100)
  within('penaltyLastN', 0, 2 ** 20)
  within('seed', 0, 2 ** 32 - 1)
  if (options.mirostat !== undefined && !(options.mirostat.tau > 0 && options.mirostat.eta > 0))
    throw new KvfoldError('native/bad-argument', 'mirostat needs tau and eta above 0.')
  for (const { token, bias } of options.logitBias ?? [])
    if (!Number.isInteger(token) || token < 0 || token >= vocabulary || Number.isNaN(bias))
      throw new KvfoldError('native/bad-argument', `logitBias names token ${token} with bias ${bias}; tokens are 0 to ${vocabulary - 1}.`)
}

function calling<T>(call: () => T): T {
  try {
    return call()
  } catch (error) {
    throw translated(error)
  }
}
