/** Writes a small synthetic text encoder, for tests of embeddings. */
import { mix } from '../../src/runtime/core/random.js'
import { writeGguf, type GgufTensor, type GgufValue } from '../../src/runtime/native/gguf-writer.js'
import { poolingNumber } from '../../src/runtime/native/context-options.js'
import { randomTensor, vocabularyMetadata } from '../../src/runtime/native/synthetic.js'
import type { Pooling } from '../../src/runtime/native/types.js'

export interface EncoderShape {
  /** `bert` has a table of positions, `nomic-bert` rotates. */
  readonly architecture: 'bert' | 'nomic-bert'
  /** The pooling in its file; null for none. `rank` makes a reranker. Default: `mean`. */
  readonly pooling?: Pooling | null
  /** The head of a reranker: `deep` has a layer and one number; `none` makes an invalid reranker. Default: `deep`. */
  readonly head?: 'deep' | 'none'
  /** Default: 512. */
  readonly context?: number
  readonly seed?: number
}

const LAYERS = 2
const WIDTH = 64
const FORWARD = 128
const HEADS = 4
const VOCABULARY = 400
/** Some token, which separates two texts. */
export const SEPARATOR = 300

/**
 * Writes the model to `path`: random weights in f32, and the tokenizer of synthetic models, which adds a token at either end of a text. The
 * same shape gives the same bytes; an existing file is replaced. Tensors and keys are those that llama.cpp's src/models/bert.cpp and
 * nomic-bert.cpp ask for.
 * @throws the file system's error when the file cannot be written
 */
export async function synthesizeEncoder(path: string, shape: EncoderShape): Promise<void> {
  const { architecture, pooling = 'mean', context = 512 } = shape
  const of = (key: string) => `${architecture}.${key}`
  const metadata = new Map<string, GgufValue>([
    ['general.architecture', { string: architecture }],
    ['general.name', { string: `kvfold synthetic ${architecture}` }],
    ['general.file_type', { u32: 0 }],
    [of('block_count'), { u32: LAYERS }],
    [of('context_length'), { u32: context }],
    [of('embedding_length'), { u32: WIDTH }],
    [of('feed_forward_length'), { u32: FORWARD }],
    [of('attention.head_count'), { u32: HEADS }],
    [of('attention.layer_norm_epsilon'), { f32: 1e-5 }],
    [of('attention.causal'), { bool: false }],
    ...(pooling === null ? [] : [[of('pooling_type'), { u32: poolingNumber(pooling) }] as const]),
    ...vocabularyMetadata(VOCABULARY),
    ['tokenizer.ggml.token_type_count', { u32: 2 }],
    ['tokenizer.ggml.add_bos_token', { bool: true }],
    ['tokenizer.ggml.add_eos_token', { bool: true }],
    ...(pooling === 'rank' ? [['tokenizer.ggml.add_sep_token', { bool: true }] as const] : []),
    ...(pooling === 'rank' ? [['tokenizer.ggml.seperator_token_id', { u32: SEPARATOR }] as const] : []),
  ])
  await writeGguf(path, metadata, tensors(shape, context))
}

function tensors({ architecture, pooling, head = 'deep', seed = 1 }: EncoderShape, context: number): GgufTensor[] {
  const all: GgufTensor[] = []
  const add = (name: string, shape: readonly number[], deviation: number, mean = 0) =>
    all.push(randomTensor({ name, shape, type: 'f32', mean, deviation, seed: mix(seed ^ mix(all.length + 1)) }))
  const norm = (name: string) => {
    add(`${name}.weight`, [WIDTH], 0.1, 1)
    add(`${name}.bias`, [WIDTH], 0.1)
  }
  const matrix = (name: string, inputs: number, outputs: number) =>
    add(`${name}.weight`, [inputs, outputs], 1 / Math.sqrt(inputs))
  add('token_embd.weight', [WIDTH, VOCABULARY], 1)
  add('token_types.weight', [WIDTH, 2], 0.1)
  if (architecture === 'bert') add('position_embd.weight', [WIDTH, context], 0.5)
  norm('token_embd_norm')
  for (let layer = 0; layer < LAYERS; layer++) {
    const name = (part: string) => `blk.${layer}.${part}`
    for (const part of ['attn_q', 'attn_k', 'attn_v', 'attn_output']) matrix(name(part), WIDTH, WIDTH)
    norm(name('attn_output_norm'))
    if (architecture === 'nomic-bert') matrix(name('ffn_gate'), WIDTH, FORWARD)
    matrix(name('ffn_up'), WIDTH, FORWARD)
    matrix(name('ffn_down'), FORWARD, WIDTH)
    norm(name('layer_output_norm'))
  }
  if (pooling === 'rank' && head === 'deep')
    for (const [name, outputs] of [
      ['cls', WIDTH],
      ['cls.output', 1],
    ] as const) {
      matrix(name, WIDTH, outputs)
      add(`${name}.bias`, [outputs], 0.1)
    }
  return all
}
