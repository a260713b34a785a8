/** Synthetic models for tests and benchmarks: a GGUF of any Llama or Qwen2 shape with random weights, and a tokenizer for any text. */
import { KvfoldError } from '../core/errors.js'
import { mix } from '../core/random.js'
import { headersOf } from './gguf-file.js'
import { type GgufTensor, type GgufValue, type TensorType, writeGguf } from './gguf-writer.js'

export interface SyntheticShape {
  readonly architecture: 'llama' | 'qwen2'
  readonly layers: number
  /** The width of the embeddings. A multiple of `heads`, and embedding / heads must be even. */
  readonly embedding: number
  /** Number of query heads, a multiple of `kvHeads`. */
  readonly heads: number
  readonly kvHeads: number
  readonly feedForward: number
  /** Number of tokens. At least 261 (256 bytes and 5 special tokens) plus the number of `controls`. */
  readonly vocabulary: number
  /** The model's trained context, in tokens. Default 4096. */
  readonly context?: number
  /** The base of the rotary positions' frequencies. Default 10000. */
  readonly ropeBase?: number
  /** The type of the matrices; norms and biases are always f32. Default f16. */
  readonly type?: TensorType
  /** The seed of the random weights. The same seed and shape give the same bytes. Default 1. */
  readonly seed?: number
  /** The chat template in Jinja. Default: ChatML with tools as JSON and calls in Hermes tags. null: the model has no template. */
  readonly chatTemplate?: string | null
  /** Further control tokens, such as the tokens of fill-in prompts. Default: none. */
  readonly controls?: readonly string[]
}

/** The control tokens of Qwen2.5-Coder's fill-in prompts. */
export const FILL_CONTROLS = [
  ...['<|fim_prefix|>', '<|fim_middle|>', '<|fim_suffix|>', '<|fim_pad|>', '<|repo_name|>', '<|file_sep|>'],
] as const

/** ChatML with tool definitions as JSON lines and calls in Hermes syntax; no BOS. */
export const CHATML_TEMPLATE = `
{%- if messages[0].role == 'system' or tools -%}
  {{- '<|im_start|>system\\n' -}}
  {%- if messages[0].role == 'system' -%}{{- messages[0].content -}}{%- endif -%}
  {%- if tools -%}
    {{- '\\n\\n# Tools\\nTo use one of these tools, answer with {"name": ..., "arguments": {...}} between <tool_call> and </tool_call>.' -}}
    {%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role != 'system' or not loop.first -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content -%}{{- message.content -}}{%- endif -%}
    {%- if message.tool_calls -%}
      {%- for call in message.tool_calls -%}
        {%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
        {%- if call.function.arguments is string -%}{{- call.function.arguments -}}
        {%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}
        {{- '}\\n</tool_call>' -}}
      {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}`.trimStart()

/**
 * Writes a model to `path`, holding only a few megabytes in memory at a time. Its logits depend on the input and differ enough for greedy
 * choices to be stable, but the model's text is meaningless. An existing file is replaced.
 * @throws KvfoldError native/bad-argument for an impossible shape; the file system's error when the file cannot be written.
 */
export async function synthesizeModel(path: string, shape: SyntheticShape): Promise<void> {
  checkShape(shape)
  await writeGguf(path, metadata(shape), tensors(shape))
}

function checkShape(shape: SyntheticShape): void {
  const { architecture, layers, embedding, heads, kvHeads, feedForward, vocabulary, context = 4096, ropeBase = 10000 } = shape
  const refuse = (what: string): never => {
    throw new KvfoldError('native/bad-argument', `kvfold cannot make a model of this shape: ${what}.`)
  }
  for (const [name, value] of Object.entries({ layers, embedding, heads, kvHeads, feedForward, vocabulary, context }))
    if (!Number.isSafeInteger(value) || value < 1) refuse(`${name} is ${value}, but must be a whole number above 0`)
  if (!['llama', 'qwen2'].includes(architecture)) refuse(`the architecture ${architecture} is not llama or qwen2`)
  if (embedding % heads !== 0) refuse(`embedding ${embedding} is not a multiple of ${heads} heads`)
  if ((embedding / heads) % 2 !== 0) refuse(`heads of ${embedding / heads} values are odd, but rotary positions need pairs`)
  if (heads % kvHeads !== 0) refuse(`${kvHeads} KV heads do not divide ${heads} heads`)
  const { controls = [] } = shape
  if (vocabulary < SMALLEST_VOCABULARY + controls.length)
    refuse(`a vocabulary of ${vocabulary} has no room for 256 bytes and the control tokens`)
  if (!(ropeBase > 0)) refuse(`ropeBase is ${ropeBase}, but must be above 0`)
}

function metadata(shape: SyntheticShape): Map<string, GgufValue> {
  const { architecture, layers, embedding, heads, kvHeads, feedForward, vocabulary, type = 'f16' } = shape
  const { context = 4096, ropeBase = 10000, chatTemplate = CHATML_TEMPLATE, controls } = shape
  return new Map<string, GgufValue>([
    ['general.architecture', { string: architecture }],
    ['general.name', { string: 'kvfold synthetic' }],
    ['general.file_type', { u32: type === 'f16' ? 1 : 0 }],
    [`${architecture}.block_count`, { u32: layers }],
    [`${architecture}.context_length`, { u32: context }],
    [`${architecture}.embedding_length`, { u32: embedding }],
    [`${architecture}.feed_forward_length`, { u32: feedForward }],
    [`${architecture}.attention.head_count`, { u32: heads }],
    [`${architecture}.attention.head_count_kv`, { u32: kvHeads }],
    [`${architecture}.attention.layer_norm_rms_epsilon`, { f32: 1e-5 }],
    [`${architecture}.rope.dimension_count`, { u32: embedding / heads }],
    [`${architecture}.rope.freq_base`, { f32: ropeBase }],
    [`${architecture}.vocab_size`, { u32: vocabulary }],
    ...vocabularyMetadata(vocabulary, controls),
    ...(chatTemplate === null ? [] : [['tokenizer.chat_template', { string: chatTemplate }] as const]),
  ])
}

/**
 * Returns the model's tensors with random numbers. Matrices have a standard deviation of 1 / sqrt(inputs), so that activations keep their
 * size through every layer. The output matrix has a larger one, so that the best logits differ clearly.
 */
function tensors(shape: SyntheticShape): GgufTensor[] {
  const { architecture, layers, embedding, heads, kvHeads, feedForward, vocabulary, type = 'f16', seed = 1 } = shape
  const keyWidth = (embedding / heads) * kvHeads
  const all: GgufTensor[] = []
  const add = (name: string, size: readonly number[], kind: TensorType, mean: number, deviation: number) =>
    all.push(randomTensor({ name, shape: size, type: kind, mean, deviation, seed: mix(seed ^ mix(all.length + 1)) }))
  const norm = (name: string) => add(`${name}.weight`, [embedding], 'f32', 1, 0.1)
  const matrix = (name: string, inputs: number, outputs: number, gain = 1) =>
    add(`${name}.weight`, [inputs, outputs], type, 0, gain / Math.sqrt(inputs))
  const projection = (name: string, outputs: number) => {
    matrix(name, embedding, outputs)
    if (architecture === 'qwen2') add(`${name}.bias`, [outputs], 'f32', 0, 0.1)
  }

  add('token_embd.weight', [embedding, vocabulary], type, 0, 1)
  norm('output_norm')
  matrix('output', embedding, vocabulary, 3)
  for (let layer = 0; layer < layers; layer++) {
    const name = (part: string) => `blk.${layer}.${part}`
    norm(name('attn_norm'))
    projection(name('attn_q'), embedding)
    projection(name('attn_k'), keyWidth)
    projection(name('attn_v'), keyWidth)
    matrix(name('attn_output'), embedding, embedding)
    norm(name('ffn_norm'))
    matrix(name('ffn_gate'), embedding, feedForward)
    matrix(name('ffn_up'), embedding, feedForward)
    matrix(name('ffn_down'), feedForward, embedding)
  }
  return all
}

export interface SyntheticAdapter {
  /** The rank of the adapter: the inner size of its matrices A and B. Default 4. */
  readonly rank?: number
  /** LoRA's alpha: the change is multiplied by alpha / rank. Default: twice the rank. null: the file has no alpha, and the factor is 1. */
  readonly alpha?: number | null
  /** Names of the tensors that the adapter changes. Default: the matrices of attention and feed-forward. */
  readonly tensors?: RegExp
  /** The size of the adapter's change, roughly, as a share of the size of the activations. Default 0.2. */
  readonly strength?: number
  /** The number type of the adapter's matrices. Default f32. */
  readonly type?: TensorType
  /** The seed of the random matrices. The same seed and model give the same bytes. Default 1. */
  readonly seed?: number
}

const ADAPTED = /^blk\.\d+\.(?:attn_(?:q|k|v|output)|ffn_(?:gate|up|down))\.weight$/

/**
 * Writes a LoRA adapter with random matrices for the model at `modelPath`. It changes every prediction, in a meaningless way. An existing
 * file is replaced.
 * @throws KvfoldError native/bad-argument when the model has none of the tensors, model/*; the file system's error
 */
export async function synthesizeAdapter(
  path: string,
  modelPath: string,
  { rank = 4, alpha = 2 * rank, tensors: names = ADAPTED, strength = 0.2, type = 'f32', seed = 1 }: SyntheticAdapter = {},
): Promise<void> {
  const headers = headersOf(modelPath)
  const architecture = headers[0]?.metadata.get('general.architecture')
  const adapted = headers.flatMap((header) => header.tensors).filter(({ name }) => names.test(name))
  if (adapted.length === 0 || architecture?.kind !== 'text')
    throw new KvfoldError('native/bad-argument', `${modelPath} has no tensors whose names match ${String(names)}.`)
  const scale = alpha === null ? 1 : alpha / rank
  const matrices = adapted.flatMap(({ name, shape: [inputs = 1, outputs = 1] }, at) => {
    const isEmbedding = name === 'token_embd.weight'
    const matrix = (part: 'a' | 'b', shape: readonly number[], deviation: number) =>
      randomTensor({
        name: `${name}.lora_${part}`,
        shape,
        type,
        mean: 0,
        deviation,
        seed: mix(seed ^ mix(2 * at + (part === 'a' ? 1 : 2))),
      })
    const deviation = strength / scale / Math.sqrt(rank)
    return isEmbedding
      ? [matrix('a', [rank, outputs], 1), matrix('b', [rank, inputs], deviation)]
      : [matrix('a', [inputs, rank], 1 / Math.sqrt(inputs)), matrix('b', [rank, outputs], deviation)]
  })
  await writeGguf(
    path,
    new Map<string, GgufValue>([
      ['general.architecture', { string: architecture.value }],
      ['general.type', { string: 'adapter' }],
      ['general.name', { string: 'kvfold synthetic adapter' }],
      ['adapter.type', { string: 'lora' }],
      ...(alpha === null ? [] : [['adapter.lora.alpha', { f32: alpha }] as const]),
    ]),
    matrices,
  )
}

// The tokenizer of synthetic models: byte-level BPE for any text. Its merges are pairs of letters, its control tokens those of ChatML.

/** Numbers of token types in llama_token_type. */
const NORMAL = 1
const CONTROL = 3
const USER_DEFINED = 4

const SPECIAL = [
  { text: '<|endoftext|>', type: CONTROL },
  { text: '<|im_start|>', type: CONTROL },
  { text: '<|im_end|>', type: CONTROL },
  { text: '<tool_call>', type: USER_DEFINED },
  { text: '</tool_call>', type: USER_DEFINED },
] as const

/** The smallest vocabulary: 256 bytes, which suffice for any text, and the special tokens. */
export const SMALLEST_VOCABULARY = 256 + SPECIAL.length

/** The space and the letters from common to rare in English, so that even small vocabularies merge ordinary text. */
const LETTERS = Array.from(' etaoinshrdlcumwfgypbvkjxqz')

/**
 * Returns for each byte its stand-in character in byte-level BPE. Printable Latin-1 bytes stand for themselves; the others get the
 * characters from U+0100 on. Source: the byte alphabet that GPT-2's tokenizer defined and llama.cpp's gpt2 vocabularies expect
 * (unicode.cpp).
 */
export function byteAlphabet(): readonly string[] {
  const itself = (byte: number) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
  let next = 0x100
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(itself(byte) ? byte : next++))
}

/**
 * Returns the metadata of a vocabulary of exactly `size` tokens: bytes, pairs of letters, pairs of pairs, then `controls`, then the special
 * tokens. `size` must be at least SMALLEST_VOCABULARY plus the number of `controls`. Letters can fill about 400,000 tokens; unused tokens
 * fill the rest.
 */
export function vocabularyMetadata(size: number, controls: readonly string[] = []): Map<string, GgufValue> {
  const special = [...controls.map((text) => ({ text, type: CONTROL })), ...SPECIAL]
  const alphabet = byteAlphabet()
  const tokens = [...alphabet]
  const merges: string[] = []
  for (const [left, right] of pairs(alphabet)) {
    if (tokens.length + special.length >= size) break
    merges.push(`${left} ${right}`)
    tokens.push(left + right)
  }
  for (let index = 0; tokens.length + special.length < size; index++) tokens.push(`[unused${index}]`)
  const types = [...tokens.map(() => NORMAL), ...special.map(({ type }) => type)]
  const ids = new Map(special.map(({ text }, index) => [text, tokens.length + index]))
  return new Map<string, GgufValue>([
    ['tokenizer.ggml.model', { string: 'gpt2' }],
    ['tokenizer.ggml.pre', { string: 'qwen2' }],
    ['tokenizer.ggml.tokens', { strings: [...tokens, ...ids.keys()] }],
    ['tokenizer.ggml.token_type', { i32s: types }],
    ['tokenizer.ggml.merges', { strings: merges }],
    ['tokenizer.ggml.bos_token_id', { u32: ids.get('<|endoftext|>') ?? 0 }],
    ['tokenizer.ggml.eos_token_id', { u32: ids.get('<|im_end|>') ?? 0 }],
    ['tokenizer.ggml.padding_token_id', { u32: ids.get('<|endoftext|>') ?? 0 }],
    ['tokenizer.ggml.add_bos_token', { bool: false }],
  ])
}

/** Yields the merges in order of rank: first two letters, then two pairs of letters. A space can only be the first letter of a token. */
function* pairs(alphabet: readonly string[]): Generator<readonly [left: string, right: string]> {
  const letters = LETTERS.map((letter) => alphabet[letter.charCodeAt(0)] ?? letter)
  const words = letters.slice(1)
  const two = [...crossed(letters, words)]
  yield* two
  yield* crossed(
    two.map(([left, right]) => left + right),
    two.filter(([left]) => left !== letters[0]).map(([left, right]) => left + right),
  )
}

/** Yields every pair of a left and a right text, ordered by the sum of their indices. */
function* crossed(lefts: readonly string[], rights: readonly string[]): Generator<readonly [left: string, right: string]> {
  for (let sum = 0; sum < lefts.length + rights.length - 1; sum++)
    for (let index = Math.max(0, sum - rights.length + 1); index <= Math.min(sum, lefts.length - 1); index++) {
      const [left, right] = [lefts[index], rights[sum - index]]
      if (left !== undefined && right !== undefined) yield [left, right]
    }
}

// Random weights: normally distributed tensors, reproducible from a seed and fast enough for billions of numbers.

export interface RandomTensor {
  readonly name: string
  /** The sizes of the tensor's dimensions, fastest dimension first. */
  readonly shape: readonly number[]
  readonly type: TensorType
  readonly mean: number
  readonly deviation: number
  /** A whole number of 32 bits. */
  readonly seed: number
}

/** How many different values a weight can have: 12 random bits pick one. */
const LEVELS = 4096
const CHUNK = 1 << 20

/**
 * Makes a tensor of random numbers, drawn from LEVELS quantiles of the normal distribution. That is close to the distribution of trained
 * weights, and takes a few ns per number.
 */
export function randomTensor({ name, shape, type, mean, deviation, seed }: RandomTensor): GgufTensor {
  return {
    name,
    shape,
    type,
    *chunks() {
      const floats = normalQuantiles().map((quantile) => mean + deviation * quantile)
      const levels = type === 'f32' ? floats : Uint16Array.from(floats, toHalf)
      const total = shape.reduce((product, size) => product * size, 1)
      let state = mix(seed) || 1
      for (let start = 0; start < total; start += CHUNK) {
        const count = Math.min(CHUNK, total - start)
        const values = type === 'f32' ? new Float32Array(count) : new Uint16Array(count)
        for (let index = 0; index < count; index++) {
          // The generator is xorshift32 (Marsaglia). core/random is better but ten times slower, which matters for a model of gigabytes.
          state ^= state << 13
          state ^= state >>> 17
          state ^= state << 5
          values[index] = levels[state >>> 20] ?? 0
        }
        yield new Uint8Array(values.buffer)
      }
    },
  }
}

let quantiles: Float32Array | null = null

/** Returns the normal distribution's quantiles at (i + 1/2) / LEVELS. It sums the density by the midpoint rule, and mirrors it about 0. */
function normalQuantiles(): Float32Array {
  if (quantiles !== null) return quantiles
  const table = new Float32Array(LEVELS)
  const step = 1 / 4096
  const half = LEVELS / 2
  let mass = 0
  let at = 0
  for (let index = 0; index < half; index++) {
    const wanted = (index + 0.5) / LEVELS
    while (mass < wanted && at < 5) {
      const middle = at + step / 2
      mass += (Math.exp((-middle * middle) / 2) / Math.sqrt(2 * Math.PI)) * step
      at += step
    }
    table[half + index] = at
    table[half - 1 - index] = -at
  }
  quantiles = table
  return table
}

/** Returns the bits of the nearest IEEE half-precision number, ties to even. Magnitudes beyond its range become infinite. */
export function toHalf(value: number): number {
  const scratch = new Float32Array([value])
  const bits = new Uint32Array(scratch.buffer)[0] ?? 0
  const sign = (bits >>> 16) & 0x8000
  const exponent = (bits >>> 23) & 0xff
  const fraction = bits & 0x7fffff
  if (exponent === 0xff) return sign | 0x7c00 | (fraction === 0 ? 0 : 0x200)
  const shifted = exponent - 127 + 15
  if (shifted >= 31) return sign | 0x7c00
  // Half-precision numbers below 2^-14 have no implicit leading one, so the fraction must contain it.
  const drop = shifted > 0 ? 13 : 14 - shifted
  if (drop > 24) return sign
  const significand = shifted > 0 ? (shifted << 23) | fraction : fraction | 0x800000
  const rest = significand & ((1 << drop) - 1)
  const middle = 1 << (drop - 1)
  const kept = significand >>> drop
  return sign | (kept + (rest > middle || (rest === middle && (kept & 1) === 1) ? 1 : 0))
}
