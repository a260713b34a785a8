/** Owns which numbers a model's metadata may hold: what llama.cpp v0.5.0 asserts on while it loads a model and builds its graphs. */
import { KvfoldError } from '../core/errors.js'
import { shortened } from './addon.js'
import { TYPE, type GgufHeader, type GgufTensorInfo } from './gguf-reader.js'

/** llama-hparams.h */
const MOST_LAYERS = 512
const MOST_EXPERTS = 1024
/** Beyond this llama.cpp's 32-bit arithmetic on widths, windows and positions wraps around. */
const MOST = 2 ** 30
const ROPE_SCALINGS: readonly string[] = ['none', 'linear', 'yarn', 'longrope']
/** Whose graphs llama.cpp builds from one number of heads and one width for all layers. */
const UNIFORM: readonly string[] = ['llama', 'qwen2', 'qwen2vl', 'gemma3', 'bert', 'nomic-bert']
/** Layers without keys and values are recurrent ones. */
const HYBRID: readonly string[] = ['jamba', 'lfm2']
/** Queries are as wide as the model, whatever the heads' width says. */
const FULL_WIDTH: readonly string[] = ['qwen2', 'qwen2vl', 'bert', 'nomic-bert', 'jamba', 'lfm2']
/** All of a head rotates; those that are read most. */
const WHOLE_ROTATION: readonly string[] = [
  ...[
    'llama',
    'qwen2',
    'qwen2vl',
    'qwen2moe',
    'qwen3',
    'qwen3moe',
    'qwen3vl',
    'qwen3vlmoe',
    'llama4',
    'mistral3',
    'granite',
    'smollm3',
  ],
  ...[
    'olmo',
    'olmo2',
    'olmoe',
    'internlm2',
    'exaone',
    'exaone4',
    'starcoder2',
    'baichuan',
    'falcon',
    'deepseek',
    'seed_oss',
    'arcee',
  ],
]
/** Of how many layers of gemma3 the last sees all tokens, if its file does not say. */
const GEMMA_PATTERN = 6
/** Of recurrent layers: twice as wide inside as outside. */
const DOUBLED: readonly string[] = ['mamba', 'jamba']

/**
 * Values of the wrong type are left to llama.cpp, which refuses them itself.
 * @param tensors of all parts
 * @throws KvfoldError model/bad-file naming the key, its value, and what is expected
 */
export function checkValues(header: GgufHeader, tensors: readonly GgufTensorInfo[]): void {
  const architecture = header.metadata.get('general.architecture')
  if (architecture?.kind === 'text') new Values(header, architecture.value, tensors).check()
}

class Values {
  constructor(
    private readonly header: GgufHeader,
    private readonly architecture: string,
    private readonly tensors: readonly GgufTensorInfo[],
  ) {}

  check(): void {
    const layers = this.#within('block_count', 1, MOST_LAYERS)
    this.#epsilons()
    this.#experts(layers)
    const scaling = this.#text('rope.scaling.type')
    if (scaling !== undefined && !ROPE_SCALINGS.includes(scaling))
      this.#refuse('rope.scaling.type', JSON.stringify(scaling), `one of ${ROPE_SCALINGS.join(', ')}`)
    this.#within('nextn_predict_layers', 0, layers ?? MOST_LAYERS)
    for (const key of ['embedding_length', 'context_length', 'attention.sliding_window', 'rope.scaling.original_context_length'])
      this.#within(key, key === 'embedding_length' ? 1 : 0, MOST)
    this.#window(layers)
    this.#vocabularySize()
    if (layers === undefined) return
    this.#heads(layers)
    this.#recurrence()
    this.#outputWidth()
  }

  #epsilons(): void {
    for (const [key, entry] of this.header.metadata)
      if (
        /\.(?:layer_norm|layer_norm_rms|group_norm)_epsilon$/.test(key) &&
        entry.kind === 'number' &&
        !(entry.value >= 0 && entry.value < Infinity)
      )
        this.#refuseKey(key, entry.value, 'a number from 0')
  }

  #experts(layers: number | undefined): void {
    const experts = this.#within('expert_count', 0, MOST_EXPERTS) ?? 0
    const used = layers === undefined ? undefined : this.#perLayer('expert_used_count', layers)
    const most = Math.max(0, ...(used ?? []))
    if (most > experts || (experts > 0 && most === 0))
      this.#refuse('expert_used_count', most, experts === 0 ? '0 without experts' : `a number from 1 to the ${experts} experts`)
    const groups = this.#u32('expert_group_count') ?? 0
    if (experts === 0 ? groups !== 0 : groups >= experts || (groups > 1 && experts % groups !== 0))
      this.#refuse('expert_group_count', groups, experts === 0 ? '0 without experts' : `a divisor of the ${experts} experts`)
    const usedGroups = this.#u32('expert_group_used_count') ?? 0
    if (groups > 1 && (usedGroups < 1 || usedGroups >= groups))
      this.#refuse('expert_group_used_count', usedGroups, `a number from 1 to ${groups - 1}`)
  }

  /** A model with a sliding window has layers that slide, and gemma3 others, too. */
  #window(layers: number | undefined): void {
    const window = this.#u32('attention.sliding_window') ?? 0
    if (window === 0 || layers === undefined) return
    const key = 'attention.sliding_window_pattern'
    const list = this.#list(key)
    const gemma = this.architecture === 'gemma3'
    const every = this.#u32(key) ?? (gemma ? GEMMA_PATTERN : undefined)
    if (list === undefined && every === undefined) return
    const slides = list ?? Array.from({ length: layers }, (_, layer) => Number(every === 0 || layer % every! < every! - 1))
    const found = list === undefined ? every! : `a list of ${list.length}`
    if (slides.length > MOST_LAYERS) this.#refuse(key, found, `a list of ${layers}`)
    const sliding = slides.slice(0, layers).filter((value) => value !== 0).length
    if (sliding === 0) this.#refuse(key, found, `true of at least one of the ${layers} layers, as there is a window of ${window}`)
    if (gemma && sliding === layers)
      this.#refuse(key, found, `false of at least one of the ${layers} layers, which sees all tokens`)
  }

  /** Without a vocabulary llama.cpp makes as many tokens as this says. */
  #vocabularySize(): void {
    const size = this.#u32('vocab_size')
    const embedded = this.tensors.find(({ name }) => name === 'token_embd.weight')?.shape[1]
    const model = this.header.metadata.get('tokenizer.ggml.model')
    const none = model?.kind === 'text' && (model.value === 'none' || model.value === 'no_vocab')
    if (none && size !== undefined && size !== (embedded ?? 0))
      this.#refuse('vocab_size', size, `${embedded ?? 0}, the rows of token_embd.weight`)
  }

  #heads(layers: number): void {
    const heads = this.#perLayer('attention.head_count', layers)
    const first = heads?.[0] ?? 0
    const kvHeads = this.#perLayer('attention.head_count_kv', layers) ?? heads ?? []
    const embedding = this.#u32('embedding_length') ?? 0
    const uniform = UNIFORM.includes(this.architecture)
    const hybrid = HYBRID.includes(this.architecture)
    heads?.forEach((count, layer) => {
      if (count > MOST) this.#refuse('attention.head_count', count, 'a number of heads')
      if ((uniform || hybrid) && (count !== first || count === 0))
        this.#refuse('attention.head_count', `${count} in layer ${layer}`, 'the same number above 0 in all layers')
      const kv = kvHeads[layer] ?? 0
      if (kv > MOST || (kv > 0 && count > 0 && count % kv !== 0) || (uniform && (kv === 0 || kv !== kvHeads[0])))
        this.#refuse('attention.head_count_kv', kv, `a divisor of the ${count} heads${uniform ? ', the same in all layers' : ''}`)
    })
    if (uniform && heads === undefined) this.#refuse('attention.head_count', 'missing', 'a number of heads')
    if (hybrid) this.#hybrid(heads, kvHeads)
    if (first === 0) return
    const width = this.#within('attention.key_length', 1, MOST) ?? Math.floor(embedding / first)
    const values = this.#within('attention.value_length', 1, MOST) ?? Math.floor(embedding / first)
    if (uniform || hybrid) this.#widths({ embedding, heads: first, width, values })
    this.#rotation(width)
    this.#sections(width)
  }

  #hybrid(heads: readonly number[] | undefined, kvHeads: readonly number[]): void {
    const counts = new Set(kvHeads.filter((count) => count > 0))
    if (heads === undefined) this.#refuse('attention.head_count', 'missing', 'a number of heads')
    if (counts.size !== 1 || !kvHeads.includes(0))
      this.#refuse(
        'attention.head_count_kv',
        kvHeads.join(', '),
        'both 0, for recurrent layers, and one other number, for those of attention',
      )
  }

  #widths({ embedding, heads, width, values }: { embedding: number; heads: number; width: number; values: number }): void {
    if (values !== width) this.#refuse('attention.value_length', values, `${width}, the width of a key`)
    if (FULL_WIDTH.includes(this.architecture) && heads * width !== embedding)
      this.#refuse(
        'attention.head_count',
        heads,
        `a number of heads of ${width} that are ${embedding} together, the width of the model`,
      )
    for (const key of ['attention.key_length_swa', 'attention.value_length_swa']) {
      const own = this.#u32(key)
      if (own !== undefined && own !== width) this.#refuse(key, own, `${width}, the width of a head in the other layers`)
    }
  }

  #rotation(width: number): void {
    const whole = WHOLE_ROTATION.includes(this.architecture)
    const check = (key: string, rotated: number | undefined, head: number) => {
      if (rotated === undefined) return
      if (whole && rotated !== head) this.#refuse(key, rotated, `${head}, the width of a head`)
      // With nothing to rotate the operator never ends.
      if (rotated % 2 !== 0 || rotated > head || (rotated === 0 && this.#rotates()))
        this.#refuse(key, rotated, `an even number up to ${head}, the width of a head`)
    }
    const key = 'rope.dimension_count'
    check(key, this.#u32(key) ?? (this.#rotates() ? width : undefined), width)
    check(`${key}_swa`, this.#u32(`${key}_swa`), this.#u32('attention.key_length_swa') ?? width)
  }

  #rotates(): boolean {
    return [...UNIFORM, 'lfm2'].includes(this.architecture) && this.architecture !== 'bert'
  }

  /** Pairs of a head's numbers by dimension of the position. */
  #sections(width: number): void {
    const key = 'rope.dimension_sections'
    const sections = this.#list(key)?.slice(0, 4)
    if (sections === undefined) return
    const sum = sections.reduce((all, one) => all + one, 0)
    if (sections.some((one) => one < 0) || sections.slice(0, 3).every((one) => one === 0) || sum > width)
      this.#refuse(key, sections.join(', '), `four numbers from 0, one of the first three above it, up to ${width} together`)
  }

  #recurrence(): void {
    const embedding = this.#u32('embedding_length') ?? 0
    if (DOUBLED.includes(this.architecture)) {
      const inner = this.#u32('ssm.inner_size')
      if (inner !== undefined && inner !== 2 * embedding)
        this.#refuse('ssm.inner_size', inner, `${2 * embedding}, twice the width of the model`)
      this.#within('ssm.conv_kernel', 2, 1024)
      this.#within('ssm.state_size', 1, MOST)
      this.#within('ssm.time_step_rank', 1, MOST)
    }
    if (this.architecture === 'lfm2') this.#within('shortconv.l_cache', 2, 1024)
  }

  /** What embeddings are read as; only some models have a layer that changes it. */
  #outputWidth(): void {
    const width = this.#u32('embedding_length_out')
    const embedding = this.#u32('embedding_length')
    const known = [...UNIFORM, ...HYBRID, ...DOUBLED].includes(this.architecture)
    if (width === undefined || width === 0 || !known || width === embedding) return
    const dense = this.tensors.find(({ name }) => name === 'dense_2.weight')?.shape[1]
    if (dense !== width) this.#refuse('embedding_length_out', width, `${embedding}, the width of the model`)
  }

  /** The value where there is one. @throws where it is out of bounds */
  #within(key: string, least: number, most: number): number | undefined {
    const value = this.#u32(key)
    if (value !== undefined && !(value >= least && value <= most)) this.#refuse(key, value, `a number from ${least} to ${most}`)
    return value
  }

  #u32(key: string): number | undefined {
    const entry = this.header.metadata.get(`${this.architecture}.${key}`)
    return entry?.kind === 'number' && entry.type === TYPE.u32 ? entry.value : undefined
  }

  #text(key: string): string | undefined {
    const entry = this.header.metadata.get(`${this.architecture}.${key}`)
    return entry?.kind === 'text' ? entry.value.split('\0')[0] : undefined
  }

  #list(key: string): number[] | undefined {
    const entry = this.header.metadata.get(`${this.architecture}.${key}`)
    if (entry?.kind !== 'list' || entry.items === null) return undefined
    return entry.items.map(Number)
  }

  /** A number for every layer, given once or for each. */
  #perLayer(key: string, layers: number): number[] | undefined {
    const value = this.#u32(key)
    if (value !== undefined) return new Array<number>(layers).fill(value)
    const list = this.#list(key)
    if (list !== undefined && list.length !== layers)
      this.#refuse(key, `a list of ${list.length}`, `one number, or one for each of the ${layers} layers`)
    // Read as unsigned, whatever the list's type says.
    return list?.map((item) => (item < 0 ? item + 2 ** 32 : item))
  }

  #refuse(key: string, found: number | string, expected: string): never {
    return this.#refuseKey(`${this.architecture}.${key}`, found, expected)
  }

  #refuseKey(key: string, found: number | string, expected: string): never {
    throw new KvfoldError(
      'model/bad-file',
      `${this.header.path}: ${shortened(key)} is ${shortened(String(found))}, expected is ${expected}; convert the model again.`,
    )
  }
}
