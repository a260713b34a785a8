/** Writes small synthetic models of architectures whose cache is not a plain table of cells, for tests of their limits. */
import { mix } from '../../src/runtime/core/random.js'
import { writeGguf, type GgufTensor, type GgufValue } from '../../src/runtime/native/gguf-writer.js'
import { poolingNumber } from '../../src/runtime/native/context-options.js'
import { CHATML_TEMPLATE, randomTensor, vocabularyMetadata } from '../../src/runtime/native/synthetic.js'
/**
 * `mamba`: a recurrent state. `jamba`: recurrent layers beside one of attention. `lfm2`: short convolutions beside attention with rotary
 * positions. `gemma3`: one layer that sees the last WINDOW tokens, one that sees all. `qwen2vl`: rotary positions of several dimensions.
 * `qwen3`: a reranker, with two labels and a template.
 */
export type OtherArchitecture = 'mamba' | 'jamba' | 'lfm2' | 'gemma3' | 'qwen2vl' | 'qwen3'

/** The template of `qwen3` for query and document. */
export const RERANK_TEMPLATE = '<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n'

/** How many tokens gemma3's first layer sees. */
export const WINDOW = 64

const LAYERS = 2
const WIDTH = 64
const FORWARD = 128
const VOCABULARY = 400
const HEADS = 4
const KV_HEADS = 2
/** The size of one head. */
const HEAD = WIDTH / HEADS
const KEYS = HEAD * KV_HEADS
/** For a Mamba layer: inner width, numbers of state per channel, width of the step's projection, tokens of the convolution. */
const [INNER, STATE, RANK, KERNEL] = [2 * WIDTH, 16, 4, 4]
/** How many tokens a short convolution sees. */
const SHORT = 3

type Metadata = readonly (readonly [string, GgufValue])[]

/** Adds a tensor of normally distributed numbers with this deviation and mean. */
type Add = (name: string, size: readonly number[], deviation: number, mean?: number) => void

/**
 * Writes the model to `path`: two layers of width 64 in f32 with random weights, the tokenizer of synthetic models and ChatML. The same
 * seed gives the same bytes; an existing file is replaced. Tensors and keys are those that llama.cpp's src/models/<architecture>.cpp asks
 * for.
 * @throws the file system's error when the file cannot be written
 */
export async function synthesizeOther(path: string, architecture: OtherArchitecture, seed = 1): Promise<void> {
  const tensors: GgufTensor[] = []
  const add: Add = (name, shape, deviation, mean = 0) =>
    tensors.push(randomTensor({ name, shape, type: 'f32', mean, deviation, seed: mix(seed ^ mix(tensors.length + 1)) }))
  add('token_embd.weight', [WIDTH, VOCABULARY], 1)
  add(architecture === 'lfm2' ? 'token_embd_norm.weight' : 'output_norm.weight', [WIDTH], 0.1, 1)
  matrix(add, 'output', WIDTH, VOCABULARY, 3)
  for (let layer = 0; layer < LAYERS; layer++) layers[architecture](add, `blk.${layer}`, layer)
  if (architecture === 'qwen3') matrix(add, 'cls.output', WIDTH, 2)
  const of = (key: string) => `${architecture}.${key}`
  const metadata: Metadata = [
    ['general.architecture', { string: architecture }],
    ['general.name', { string: `kvfold synthetic ${architecture}` }],
    ['general.file_type', { u32: 0 }],
    [of('block_count'), { u32: LAYERS }],
    [of('context_length'), { u32: 4096 }],
    [of('embedding_length'), { u32: WIDTH }],
    [of('vocab_size'), { u32: VOCABULARY }],
    [of('attention.layer_norm_rms_epsilon'), { f32: 1e-5 }],
    ...keys[architecture].map(([key, value]) => [of(key), value] as const),
    ...vocabularyMetadata(VOCABULARY),
    ['tokenizer.chat_template', { string: CHATML_TEMPLATE }],
    ...(architecture === 'qwen3' ? [['tokenizer.chat_template.rerank', { string: RERANK_TEMPLATE }] as const] : []),
  ]
  await writeGguf(path, new Map(metadata), tensors)
}

const attentionKeys: Metadata = [
  ['feed_forward_length', { u32: FORWARD }],
  ['attention.head_count', { u32: HEADS }],
  ['attention.head_count_kv', { u32: KV_HEADS }],
]
const rotaryKeys: Metadata = [
  ['rope.dimension_count', { u32: HEAD }],
  ['rope.freq_base', { f32: 10000 }],
]
const stateKeys: Metadata = [
  ['ssm.conv_kernel', { u32: KERNEL }],
  ['ssm.inner_size', { u32: INNER }],
  ['ssm.state_size', { u32: STATE }],
  ['ssm.time_step_rank', { u32: RANK }],
]
/** The first layer has no keys and values, which makes it a recurrent one. */
const hybridKeys: Metadata = [...attentionKeys.slice(0, 2), ['attention.head_count_kv', { i32s: [0, KV_HEADS] }]]

const labels = ['classifier.output_labels', { strings: ['yes', 'no'] }] as const

const keys: Readonly<Record<OtherArchitecture, Metadata>> = {
  mamba: [['feed_forward_length', { u32: 0 }], ['attention.head_count', { u32: 0 }], ...stateKeys],
  jamba: [...hybridKeys, ...stateKeys],
  lfm2: [...hybridKeys, ...rotaryKeys, ['shortconv.l_cache', { u32: SHORT }]],
  gemma3: [
    ...attentionKeys,
    ...rotaryKeys,
    ['attention.key_length', { u32: HEAD }],
    ['attention.value_length', { u32: HEAD }],
    ['attention.sliding_window', { u32: WINDOW }],
    ['attention.sliding_window_pattern', { bools: [true, false] }],
  ],
  // The number of pairs for each dimension: time, height, width, none.
  qwen2vl: [...attentionKeys, ...rotaryKeys, ['rope.dimension_sections', { i32s: [2, 3, 3, 0] }]],
  qwen3: [...attentionKeys, ...rotaryKeys, ['pooling_type', { u32: poolingNumber('rank') }], labels],
}

const layers: Readonly<Record<OtherArchitecture, (add: Add, name: string, layer: number) => void>> = {
  mamba: (add, name) => {
    norm(add, `${name}.attn_norm`)
    recurrence(add, name)
  },
  jamba: (add, name, layer) => {
    norm(add, `${name}.attn_norm`)
    if (layer === 0) {
      recurrence(add, name)
      norm(add, `${name}.ssm_dt_norm`, RANK)
      norm(add, `${name}.ssm_b_norm`, STATE)
      norm(add, `${name}.ssm_c_norm`, STATE)
    } else attention(add, name)
    forward(add, name)
  },
  lfm2: (add, name, layer) => {
    norm(add, `${name}.attn_norm`)
    if (layer === 0) {
      add(`${name}.shortconv.conv.weight`, [SHORT, WIDTH], 0.5)
      matrix(add, `${name}.shortconv.in_proj`, WIDTH, 3 * WIDTH)
      matrix(add, `${name}.shortconv.out_proj`, WIDTH, WIDTH)
    } else {
      attention(add, name)
      headNorms(add, name)
    }
    forward(add, name)
  },
  gemma3: (add, name) => {
    norm(add, `${name}.attn_norm`)
    attention(add, name)
    headNorms(add, name)
    norm(add, `${name}.post_attention_norm`)
    forward(add, name)
    norm(add, `${name}.post_ffw_norm`)
  },
  qwen2vl: (add, name) => {
    norm(add, `${name}.attn_norm`)
    attention(add, name)
    for (const [part, size] of [
      ['q', WIDTH],
      ['k', KEYS],
      ['v', KEYS],
    ] as const)
      add(`${name}.attn_${part}.bias`, [size], 0.1)
    forward(add, name)
  },
  qwen3: (add, name) => {
    norm(add, `${name}.attn_norm`)
    attention(add, name)
    headNorms(add, name)
    forward(add, name)
  },
}

function norm(add: Add, name: string, size = WIDTH): void {
  add(`${name}.weight`, [size], 0.1, 1)
}

/** Adds a matrix with a deviation of 1 / sqrt(inputs), so that activations keep their size. */
function matrix(add: Add, name: string, inputs: number, outputs: number, gain = 1): void {
  add(`${name}.weight`, [inputs, outputs], gain / Math.sqrt(inputs))
}

function attention(add: Add, name: string): void {
  matrix(add, `${name}.attn_q`, WIDTH, WIDTH)
  matrix(add, `${name}.attn_k`, WIDTH, KEYS)
  matrix(add, `${name}.attn_v`, WIDTH, KEYS)
  matrix(add, `${name}.attn_output`, WIDTH, WIDTH)
}

function headNorms(add: Add, name: string): void {
  norm(add, `${name}.attn_q_norm`, HEAD)
  norm(add, `${name}.attn_k_norm`, HEAD)
}

function forward(add: Add, name: string): void {
  norm(add, `${name}.ffn_norm`)
  matrix(add, `${name}.ffn_gate`, WIDTH, FORWARD)
  matrix(add, `${name}.ffn_up`, WIDTH, FORWARD)
  matrix(add, `${name}.ffn_down`, FORWARD, WIDTH)
}

/**
 * Adds a Mamba layer without its norms. `ssm_a` is a little below 0, so the state decays slowly enough for a token to have an effect
 * hundreds of tokens later. It and `ssm_d` carry no `.weight`.
 */
function recurrence(add: Add, name: string): void {
  matrix(add, `${name}.ssm_in`, WIDTH, 2 * INNER)
  add(`${name}.ssm_conv1d.weight`, [KERNEL, INNER], 0.5)
  add(`${name}.ssm_conv1d.bias`, [INNER], 0.1)
  matrix(add, `${name}.ssm_x`, INNER, RANK + 2 * STATE)
  matrix(add, `${name}.ssm_dt`, RANK, INNER)
  add(`${name}.ssm_dt.bias`, [INNER], 0.1)
  add(`${name}.ssm_a`, [STATE, INNER], 0.0005, -0.004)
  add(`${name}.ssm_d`, [INNER], 0.1, 1)
  matrix(add, `${name}.ssm_out`, INNER, WIDTH)
}
