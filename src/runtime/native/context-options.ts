/**
 * Checks and completes the options of a context, and estimates memory before it is allocated. Also tells which architectures are text
 * encoders, and whether a model is causal.
 */
import { readFileSync } from 'node:fs'
import { availableParallelism, freemem, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { refuse } from './addon.js'
import type { Device } from './devices.js'
import type { GgufFile } from './gguf-file.js'
import type { CacheType, ContextOptions, FitOptions, FittingCells, ModelInfo, Pooling } from './values.js'

/** llama.cpp rounds n_ctx up to a multiple of this. */
const CELL_GRANULARITY = 256
const MOST_SEQUENCES = 256
const MOST_BATCH = 2 ** 20
/** The most threads. No machine gains from more, and llama.cpp asserts on numbers far above it. */
const MOST_THREADS = 512
/** Bytes that must stay free for Node. A context that needs less than this is not checked, so small models run even if memory is short. */
const HEADROOM = 64 * 2 ** 20

export interface ContextPlan {
  readonly keyType: CacheType
  readonly valueType: CacheType
  readonly fullSlidingWindow: boolean
  /** How the context pools embeddings. Null: it makes logits and no embeddings. */
  readonly pooling: Pooling | null
  /** Estimated bytes of the cache, and (next field) of the compute buffers. */
  readonly cache: number
  readonly compute: number
  /** The options as numbers for the addon, which fills llama_context_params with them. */
  readonly raw: object
}

/** Cache types whose keys may be rotated to other positions. With other types each shift rounds all keys again, or asserts (bf16). */
const TURNED: readonly CacheType[] = ['f32', 'f16']
/**
 * Metadata of scaled positions (YaRN, LongRoPE), which multiply keys by a factor. A shift multiplies all keys of the cache by that factor
 * once more (llama_kv_cache::build_rope_shift).
 */
const SCALED = /^yarn$|^longrope$/
const FACTOR = /\.rope\.scaling\.(?:attn_factor|yarn_attn_factor)$/
const YARN = /\.rope\.scaling\.yarn_ext_factor$/

// Architectures whose keys a shift spoils. llama_kv_cache::build_graph_shift rotates the first values of every key by the model's rope
// type, or the last values if the model has `n_lora_kv`. It skips only the layers that `rope_pattern` names, which Granite's models set. So
// keys become wrong in three cases: a layer does not rotate its keys, uses another rope type, or changes its keys after rotating them.
//
// The lists come from reading every ggml_rope call in src/models of llama.cpp v0.5.0. test/runtime/native/turned-keys.test.ts names the
// sources to read, and fails when a new release has others. It also rotates keys of models from all lists but the last two.

/** Architectures in which some layers, or all of them, have no rotary positions. */
const PARTLY_ROTARY: ReadonlySet<string> = new Set([
  ...['afmoe', 'cohere2', 'cohere2moe', 'exaone-moe', 'llama4', 'maple', 'muse-glimmer', 'smollm3'],
])
/** Architectures in which some layers have no rotary positions if the model has a sliding window. */
const PARTLY_ROTARY_WITH_WINDOW: ReadonlySet<string> = new Set(['exaone4', 'smallthinker'])
/** The number of layers of the Baichuan model with rotary positions. A Baichuan with another number of layers uses ALiBi. */
const BAICHUAN_7B = 32
/** Architectures that multiply keys by a norm's weights after rotating them. */
const NORMED_AFTER: ReadonlySet<string> = new Set(['hunyuan-dense', 'hunyuan-moe', 'hunyuan_vl', 'maincoder'])
/**
 * Architectures whose sparse attention keeps an index with keys of its own. These keys have another rope type or other rotated values, or
 * are rotated once more afterwards (Hadamard).
 */
const INDEXED: ReadonlySet<string> = new Set(['deepseek32', 'dots3note', 'glm-dsa', 'hy_v4'])
/** Architectures that rotate pairs of distant values (neox), while llama.cpp's shift rotates pairs of neighbours. */
const OTHER_PAIRS: ReadonlySet<string> = new Set(['deepseek2-ocr'])

/**
 * Returns why cached keys cannot be rotated to other positions; null if they can. The answer of llama_memory_can_shift is not enough. It is
 * yes for recurrent states, which have no keys. llama.cpp asserts on positions of several dimensions, and rotates keys that have no
 * position. In all other cases that are refused here, a shift spoils the cells of other sequences.
 */
export function fixedKeys(
  { architecture, recurrent, hybrid, rope, slidingWindow, layers, metadata }: FixedFacts,
  keyType: CacheType = 'f16',
): string | null {
  if (recurrent || hybrid) return `${architecture} keeps a recurrent state`
  if (!isFlat(rope)) return `${architecture} counts positions in several dimensions (${rope})`
  const spoiled = spoiledKeys({ architecture, slidingWindow, layers })
  if (spoiled !== null) return `${spoiled}, but llama.cpp turns its keys regardless`
  if (!TURNED.includes(keyType))
    return keyType === 'bf16'
      ? 'llama.cpp cannot rotate keys stored as bf16'
      : `keys are stored as ${keyType}, and each shift would round them again`
  const scaled = Object.entries(metadata).find(
    ([key, value]) =>
      (key.endsWith('.rope.scaling.type') && SCALED.test(value)) ||
      (FACTOR.test(key) && Number(value) !== 1) ||
      (YARN.test(key) && Number(value) > 0),
  )
  return scaled === undefined ? null : `its positions are scaled (${scaled.join(' ')}), and a shift would scale its keys again`
}

type FixedFacts = Pick<ModelInfo, 'architecture' | 'recurrent' | 'hybrid' | 'rope' | 'slidingWindow' | 'layers' | 'metadata'>

/** Returns why a shift would spoil this architecture's keys; null if it would not. */
function spoiledKeys({ architecture, slidingWindow, layers }: Pick<FixedFacts, 'architecture' | 'slidingWindow' | 'layers'>) {
  if (PARTLY_ROTARY.has(architecture) || (slidingWindow > 0 && PARTLY_ROTARY_WITH_WINDOW.has(architecture)))
    return `some layers of ${architecture} have no rotary positions`
  if (architecture === 'baichuan' && layers !== BAICHUAN_7B) return `a baichuan of ${layers} layers has no rotary positions`
  if (NORMED_AFTER.has(architecture)) return `${architecture} norms its keys after turning them`
  if (INDEXED.has(architecture)) return `${architecture} keeps an index of other keys beside its own`
  if (OTHER_PAIRS.has(architecture)) return `${architecture} turns other pairs of its keys' values`
  return null
}

/** Whether positions of this rope type are single numbers; other rope types count in several dimensions. */
export const isFlat = (rope: string): boolean => ['none', 'norm', 'neox'].includes(rope)

interface PlannedModel {
  readonly info: ModelInfo
  readonly gpuLayers: number
}

/**
 * Checks a context's options, fills in defaults, and estimates its memory.
 * @throws KvfoldError native/bad-argument, native/unsupported, model/unsupported, memory/insufficient
 */
export function planContext(options: ContextOptions, model: PlannedModel, devices: readonly Device[]): ContextPlan {
  const { info } = model
  refuseModel(info, options)
  const whole = completed(options, info)
  const { pooling, attention, flashAttention, keyType, valueType, fullSlidingWindow } = whole
  const { cache, compute } = memoryOf(whole, info)
  const quantised = cacheTypes[valueType].elements > 1
  if (quantised && flashAttention === 'off') refuse(`valueType ${valueType} needs flash attention; turn it on or use f16 values.`)

  if (attention) refuseWithoutSoftmax(info, flashAttention)
  if (pooling !== null) refuseUneven(whole)

  refuseWhatDoesNotFit(whole.cells, needed({ cache, compute }, model, devices), devices)
  const raw = {
    ...whole,
    // Quantised values in the cache need flash attention, so `auto` becomes `on`.
    flashAttention: flashAttention === 'off' || attention ? 0 : flashAttention === 'on' || quantised ? 1 : -1,
    keyType: cacheTypes[keyType].ggml,
    valueType: cacheTypes[valueType].ggml,
    pooling: pooling === null ? null : poolingNumber(pooling),
    windowed: info.slidingWindow > 0,
    // Bytes that a cell takes in a saved state in addition, if positions have several dimensions (llama_kv_cell_ext).
    cellExtra: isFlat(info.rope) ? 0 : 12,
  }
  return { keyType, valueType, fullSlidingWindow, pooling, cache, compute, raw }
}

/** The fewest cells that `cellsThatFit` chooses. */
const LEAST_CELLS = 4096
/**
 * The largest share of the free memory that `cellsThatFit` takes. MORE: for more cells than `usual`. MORE_WITH_COPY: for these and a second
 * copy of the model. LESS: for fewer cells than `usual`.
 */
const MORE = 0.5
const MORE_WITH_COPY = 0.9
const LESS = 0.9

/**
 * Returns how many cells a context gets by default: normally `usual`. With `grows` and the whole model on GPUs, it gets more, up to the
 * trained context, as long as enough memory stays free (`FitOptions`). Where `usual` cells do not fit, it gets as many as fit, at least
 * 4,096. `options` are those of the context, without `cells`.
 * @param available the bytes of host memory that are free
 */
export function cellsThatFit(
  usual: number,
  options: Omit<ContextOptions, 'cells'>,
  { grows, copies }: FitOptions,
  model: PlannedModel,
  devices: readonly Device[],
  available = availableMemory(),
): FittingCells {
  const { info } = model
  const free = freeOn(devices)
  const bytes = (cells: number, more: ContextOptions = {}) =>
    needed(memoryOf(completed({ ...options, ...more, cells }, info), info), model, devices)
  const fits = (cells: number, share: number): boolean => {
    const { device, host } = bytes(cells)
    return device <= share * free && (host <= HEADROOM || host + HEADROOM <= share * available)
  }
  const fitsWithCopy = (cells: number): boolean =>
    bytes(cells).device + info.size + bytes(cells, { attention: true, flashAttention: 'off' }).device <= MORE_WITH_COPY * free
  const leavesRoom = (cells: number): boolean => (copies ? fitsWithCopy(cells) : fits(cells, MORE))
  /** Returns the most cells from `least` to `most` for which `is` holds; `least` if it holds for no larger number. */
  const mostFrom = (least: number, most: number, is: (cells: number) => boolean): number => {
    let [few, many] = [Math.ceil(least / CELL_GRANULARITY), Math.floor(most / CELL_GRANULARITY)]
    while (few < many) {
      const middle = Math.ceil((few + many) / 2)
      if (is(middle * CELL_GRANULARITY)) few = middle
      else many = middle - 1
    }
    return few * CELL_GRANULARITY
  }
  const cells = roundedUp(usual)
  if (grows && offloadedOf(model, devices) === 1 && leavesRoom(usual)) {
    const more = mostFrom(usual, info.trainedContext, leavesRoom)
    if (more > cells) return { cells: more, reason: more + CELL_GRANULARITY > info.trainedContext ? 'trained' : 'grown' }
  } else if (!fits(usual, 1)) {
    const fewer = mostFrom(LEAST_CELLS, usual, (number) => fits(number, LESS))
    if (fewer < cells) return { cells: fewer, reason: 'short' }
  }
  return { cells, reason: null }
}

const roundedUp = (cells: number): number => Math.ceil(cells / CELL_GRANULARITY) * CELL_GRANULARITY

/** A context's options with their defaults. */
interface WholeOptions extends Required<Omit<ContextOptions, 'embeddings'>> {
  readonly pooling: Pooling | null
}

function completed(options: ContextOptions, info: ModelInfo): WholeOptions {
  const { trainedContext } = info
  const {
    cells = Math.max(trainedContext, CELL_GRANULARITY),
    sequences = 64,
    batch = Math.max(2048, Math.min(options.ubatch ?? 0, MOST_BATCH)),
    ubatch = Math.min(512, batch),
  } = options
  const { threads = Math.min(8, availableParallelism()), batchThreads = threads } = options
  const { keyType = 'f16', valueType = 'f16', attention = false, fullSlidingWindow = false } = options
  const { flashAttention = attention ? 'off' : 'auto', embeddings: pooling = null } = options
  const within = (name: string, value: number, most: number) => {
    if (!Number.isInteger(value) || value < 1 || value > most)
      refuse(`${name} is ${value}; give a whole number from 1 to ${most}.`)
  }
  within('cells', cells, 2 ** 31 - CELL_GRANULARITY)
  within('sequences', sequences, MOST_SEQUENCES)
  within('batch', batch, MOST_BATCH)
  within('ubatch', ubatch, batch)
  within('threads', threads, MOST_THREADS)
  within('batchThreads', batchThreads, MOST_THREADS)
  return {
    cells: roundedUp(cells),
    sequences,
    batch: pooling === null || isCausal(info) ? batch : ubatch,
    ...{ ubatch, threads, batchThreads, keyType, valueType, attention, fullSlidingWindow, flashAttention, pooling },
  }
}

function refuseModel(info: ModelInfo, { embeddings, attention = false }: ContextOptions): void {
  const { encoder, architecture } = info
  const reads = isTextEncoder(architecture)
  if (encoder && !(reads && embeddings !== undefined))
    throw new KvfoldError(
      'model/unsupported',
      `${architecture} models (encoders, diffusion, speech) do not generate text token by token, so kvfold cannot run them; use a decoder model${reads ? ', or ask for embeddings' : ''}.`,
    )
  if (embeddings === undefined) return
  if (!isPooling(embeddings)) refuse(`embeddings is ${String(embeddings)}; use none, mean, cls, last or rank.`)
  if (attention) refuse('Attention cannot be captured in a context for embeddings; make another for it.')
  if (embeddings === 'rank' && poolingOf(info) !== 'rank')
    throw new KvfoldError('model/unsupported', `${info.path} is not a reranker; its vectors can be pooled by mean, cls or last.`)
  if (embeddings === 'rank' && !info.scores)
    throw new KvfoldError('model/unsupported', `${info.path} is marked as a reranker but has no scoring head; convert it again.`)
}

function refuseWithoutSoftmax({ recurrent, architecture }: ModelInfo, flashAttention: string): void {
  if (recurrent)
    throw new KvfoldError(
      'attention/unavailable',
      `${architecture} models keep a recurrent state and compute no attention, so none can be captured; load the model without attention capture.`,
    )
  if (flashAttention === 'on')
    refuse('Attention cannot be captured with flash attention, which never computes it; leave flashAttention out or turn it off.')
}

/**
 * Refuses a ubatch that is not a multiple of the number of sequences. llama.cpp v0.5.0 reserves its graph with equally many tokens per
 * sequence, but not equally many outputs, and pooling asserts that the two agree.
 */
function refuseUneven({ cells, ubatch, sequences }: WholeOptions): void {
  const tokens = Math.min(cells, ubatch)
  if (tokens % sequences !== 0)
    refuse(`For embeddings the ubatch of ${tokens} must be a multiple of the ${sequences} sequences; change one of them.`)
}

/** Returns the number of values in the key of one head, and in its value. */
export function headWidths({ architecture, metadata, embedding, heads }: ModelInfo): readonly [key: number, value: number] {
  const width = (name: string) => Number(metadata[`${architecture}.attention.${name}`] ?? 0) || embedding / Math.max(1, heads)
  return [width('key_length'), width('value_length')]
}

function checkCacheType(name: string, type: CacheType, width: number): void {
  if (!Object.hasOwn(cacheTypes, type)) refuse(`${name} ${type} is unknown; use one of ${Object.keys(cacheTypes).join(', ')}.`)
  const { elements } = cacheTypes[type]
  if (width % elements !== 0)
    refuse(`${name} ${type} comes in blocks of ${elements}, which do not divide this model's heads of ${width}; use f16.`)
}

/**
 * Estimates an upper bound of llama.cpp's compute buffers (measured: 1.0 to 1.5 times the reported size). They hold activations, logits of
 * a ubatch and of the sequences, and the attention mask. Without flash attention they also hold the scores of a layer.
 */
function computeBytes({ cells, ubatch, sequences, flashAttention }: WholeOptions, info: ModelInfo): number {
  const { vocabulary, embedding, heads, architecture, metadata } = info
  const feedForward = Number(metadata[`${architecture}.feed_forward_length`] ?? 0) || 4 * embedding
  const rows = Math.min(ubatch, cells)
  const activations = 4 * rows * (vocabulary + 2 * feedForward + 4 * embedding)
  const isFlash = flashAttention !== 'off'
  const mask = rows * cells * (isFlash ? 2 : 4)
  const scores = isFlash ? 0 : 4 * rows * cells * Math.max(1, heads)
  return activations + mask + scores + 4 * sequences * vocabulary
}

/**
 * Returns the bytes of the recurrent states of one sequence (n_embd_r and n_embd_s in llama-hparams.cpp, in floats); 0 for a model without.
 * An upper bound for hybrid models, because all layers are counted.
 */
function stateBytes({ architecture, metadata, layers, embedding, heads, recurrent, hybrid }: ModelInfo): number {
  if (!recurrent && !hybrid) return 0
  const number = (key: string) => Number(metadata[`${architecture}.${key}`] ?? 0) || 0
  const [inner, state, kernel] = [number('ssm.inner_size'), number('ssm.state_size'), Math.max(1, number('ssm.conv_kernel'))]
  const [wkv, kda, shortConvolution] = [number('wkv.head_size'), number('kda.head_dim'), number('shortconv.l_cache')]
  const floats =
    wkv > 0
      ? embedding * (wkv + (number('token_shift_count') || 2))
      : kda > 0
        ? heads * kda * (kda + 3 * (kernel - 1))
        : state * inner + (kernel - 1) * (inner + 2 * number('ssm.group_count') * state) + embedding * shortConvolution
  return 4 * layers * floats
}

type ContextBytes = Pick<ContextPlan, 'cache' | 'compute'>

/** Estimates the bytes of a context. @throws KvfoldError native/bad-argument for cache types that the model cannot have */
function memoryOf(whole: WholeOptions, info: ModelInfo): ContextBytes {
  const { cells, batch, keyType, valueType, pooling } = whole
  const [keyWidth, valueWidth] = headWidths(info)
  checkCacheType('keyType', keyType, keyWidth)
  checkCacheType('valueType', valueType, valueWidth)
  const heads = Math.max(1, info.kvHeads)
  const row = cacheBytes(keyType, heads * keyWidth) + cacheBytes(valueType, heads * valueWidth)
  const cache = (info.recurrent || info.encoder ? 0 : cells * info.layers * row) + whole.sequences * stateBytes(info)
  // With embeddings every token is an output, and llama.cpp keeps the logits beside each embedding.
  const outputs = pooling === null ? 0 : 4 * batch * (info.vocabulary + info.embedding)
  return { cache, compute: computeBytes(whole, info) + outputs }
}

interface NeededBytes {
  readonly device: number
  readonly host: number
}

/** Divides the bytes of a context between GPUs and host memory, by the share of layers on GPUs. */
function needed({ cache, compute }: ContextBytes, model: PlannedModel, devices: readonly Device[]): NeededBytes {
  const offloaded = offloadedOf(model, devices)
  return {
    device: offloaded === 0 ? 0 : cache * offloaded + compute,
    host: cache * (1 - offloaded) + (offloaded === 1 ? 0 : compute),
  }
}

/** Returns the share of the model's layers that lie on GPUs. */
const offloadedOf = ({ info, gpuLayers }: PlannedModel, devices: readonly Device[]): number =>
  freeOn(devices) === 0 ? 0 : Math.min(1, gpuLayers / Math.max(1, info.layers))

/** Returns the bytes that are free on all GPUs together. */
const freeOn = (devices: readonly Device[]): number => devices.filter(({ gpu }) => gpu).reduce((sum, { free }) => sum + free, 0)

function refuseWhatDoesNotFit(cells: number, { device, host }: NeededBytes, devices: readonly Device[]): void {
  const what = `A context of ${cells} cells`
  const hint = 'ask for fewer cells, a smaller ubatch or a quantised cache'
  refuseTooMuch(what, device, freeOn(devices), 'GPU memory', hint)
  if (host > HEADROOM) refuseTooMuch(what, host + HEADROOM, availableMemory(), 'memory', hint)
}

// Finds how much memory is free. Refuses models and contexts that do not fit into it.

/** For each cache type: its ggml_type, and the bytes and elements of one block. */
const cacheTypes: Readonly<Record<CacheType, { readonly ggml: number; readonly bytes: number; readonly elements: number }>> = {
  f32: { ggml: 0, bytes: 4, elements: 1 },
  f16: { ggml: 1, bytes: 2, elements: 1 },
  q4_0: { ggml: 2, bytes: 18, elements: 32 },
  q4_1: { ggml: 3, bytes: 20, elements: 32 },
  q5_0: { ggml: 6, bytes: 22, elements: 32 },
  q5_1: { ggml: 7, bytes: 24, elements: 32 },
  q8_0: { ggml: 8, bytes: 34, elements: 32 },
  iq4_nl: { ggml: 20, bytes: 18, elements: 32 },
  bf16: { ggml: 30, bytes: 2, elements: 1 },
}

/** Bytes of `elements` numbers of a cache type. */
const cacheBytes = (type: CacheType, elements: number): number => (elements / cacheTypes[type].elements) * cacheTypes[type].bytes

/**
 * Returns the bytes of host memory that this process may still take: the kernel's MemAvailable, or less if a control group (cgroup) of the
 * process leaves less.
 */
export function availableMemory(): number {
  const kernel = /^MemAvailable:\s+(\d+) kB/m.exec(contents('/proc/meminfo'))?.[1]
  // macOS reports little memory as free, although it gives more when asked.
  const system = kernel === undefined ? Math.max(freemem(), totalmem() / 2) : Number(kernel) * 1024
  return Math.max(0, Math.min(system, ...groupMemory()))
}

/** Returns, for each control group above this process (v1 and v2), its limit minus its use. Page cache does not count as used. */
function groupMemory(): number[] {
  const entries = contents('/proc/self/cgroup').split('\n')
  const group = (pattern: RegExp) => entries.map((entry) => pattern.exec(entry)?.[1]).find((path) => path !== undefined)
  const left: number[] = []
  const look = (root: string, path: string | undefined, limit: string, usage: string) => {
    for (let at = path ?? '/'; ; at = dirname(at)) {
      const folder = join(root, at)
      const [most, used] = [limit, usage].map((file) => Number(/^\d+/.exec(contents(join(folder, file)))?.[0]))
      const reclaimable = Number(/^(?:total_)?inactive_file (\d+)/m.exec(contents(join(folder, 'memory.stat')))?.[1] ?? 0)
      if (most !== undefined && used !== undefined && Number.isFinite(most) && Number.isFinite(used))
        left.push(most - Math.max(0, used - reclaimable))
      if (at === dirname(at)) return
    }
  }
  look('/sys/fs/cgroup', group(/^0::(\/.*)$/), 'memory.max', 'memory.current')
  look('/sys/fs/cgroup/memory', group(/^\d+:memory:(\/.*)$/), 'memory.limit_in_bytes', 'memory.usage_in_bytes')
  return left
}

/** Refuses to take more memory than is available. @throws KvfoldError memory/insufficient, naming both figures */
export function refuseTooMuch(what: string, bytes: number, available: number, where: string, hint: string): void {
  if (bytes <= available) return
  throw new KvfoldError(
    'memory/insufficient',
    `${what} would take ${readable(bytes)} of ${where}, but only ${readable(available)} are free; ${hint}.`,
  )
}

function readable(bytes: number): string {
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`
}

/** Returns the text of a file, or an empty string if the file cannot be read. */
function contents(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

// Chooses how many layers go to the GPU by default: as many as fit into its free memory beside a cache.

/** Bytes that the layers leave free for the driver and compute buffers, and (next constant) the share of the rest for the KV cache. */
const RESERVED = 512 * 2 ** 20
const CACHE_SHARE = 0.2

/**
 * Returns how many layers go to the GPU (llama.cpp's n_gpu_layers). The output layer goes first, then layers from the last to the first,
 * until the GPUs' free memory is used up. A model that fits whole gets every layer. Several GPUs count as one, because llama.cpp divides
 * layers by free memory.
 */
export function layersThatFit({ layerBytes, outerBytes }: GgufFile, devices: readonly Device[]): number {
  let left = (freeOn(devices) - RESERVED) * (1 - CACHE_SHARE)
  let layers = 0
  for (const bytes of [outerBytes, ...layerBytes.toReversed()]) {
    left -= bytes
    if (left < 0) break
    layers++
  }
  return layers
}

/** Architectures of llama.cpp v0.5.0 without a KV cache (llama_model::create_memory) that are neither diffusion nor speech models. */
const TEXT_ENCODERS: readonly string[] = [
  ...['bert', 'modern-bert', 'nomic-bert', 'nomic-bert-moe', 'neo-bert', 'jina-bert-v2', 'jina-bert-v3', 'eurobert'],
  'gemma-embedding',
]
/** A speech architecture that has no KV cache either, but that llama.cpp calls a decoder. */
const SPEECH = 'wavtokenizer-dec'

export const isTextEncoder = (architecture: string): boolean => TEXT_ENCODERS.includes(architecture)

/** Whether llama.cpp keeps no KV cache for this architecture, even if it says that the model decodes. */
export const isCacheless = (architecture: string): boolean => isTextEncoder(architecture) || architecture === SPEECH

/** Whether each token sees only earlier tokens. If not, the whole text must be in one ubatch, or llama.cpp ends the process. */
export const isCausal = ({ architecture, metadata }: Pick<ModelInfo, 'architecture' | 'metadata'>): boolean =>
  !isTextEncoder(architecture) && metadata[`${architecture}.attention.causal`] !== 'false'

/** All kinds of pooling. The index is the number in llama_pooling_type. */
const POOLINGS: readonly Pooling[] = ['none', 'mean', 'cls', 'last', 'rank']

export const isPooling = (name: unknown): name is Pooling => POOLINGS.some((pooling) => pooling === name)

/** Returns the number of the pooling in llama_pooling_type. */
export const poolingNumber = (pooling: Pooling): number => POOLINGS.indexOf(pooling)

/** Returns the pooling that the model was trained with; null if its file names none, as with all models that generate text. */
export function poolingOf({ architecture, metadata }: Pick<ModelInfo, 'architecture' | 'metadata'>): Pooling | null {
  const text = metadata[`${architecture}.pooling_type`]
  return text === undefined ? null : (POOLINGS[Number(text)] ?? null)
}
