/** Makes the synthetic models of the tests on demand. They are kept in the temporary folder under a name that describes their shape. */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  byteAlphabet,
  CHATML_TEMPLATE,
  randomTensor,
  synthesizeModel,
  type SyntheticShape,
  vocabularyMetadata,
} from '../../src/runtime/native/synthetic.js'
import { writeGguf, type GgufTensor, type GgufValue } from '../../src/runtime/native/gguf-writer.js'
/** Raise this number when the writer's output changes. */
const GENERATION = 1

export const TINY: SyntheticShape = {
  architecture: 'llama',
  layers: 2,
  embedding: 64,
  heads: 4,
  kvHeads: 2,
  feedForward: 128,
  vocabulary: 400,
  context: 4096,
  ropeBase: 10000,
  type: 'f32',
  seed: 1,
}

/** Returns the path of a Llama of 2 layers and width 64, unless `change` says otherwise. */
export function tinyModel(change: Partial<SyntheticShape> = {}): Promise<string> {
  const shape = { ...TINY, ...change }
  return cached('tiny', shape, (path) => synthesizeModel(path, shape))
}

/** Returns the path of a Cohere2 whose first layer sees only the last 64 tokens and whose second sees all. */
export function slidingModel(): Promise<string> {
  return cached('sliding', {}, (path) => {
    const arch = 'cohere2'
    return writeGguf(
      path,
      new Map<string, GgufValue>([
        ...common(arch, 2, 64),
        [`${arch}.feed_forward_length`, { u32: 128 }],
        [`${arch}.attention.head_count`, { u32: 4 }],
        [`${arch}.attention.head_count_kv`, { u32: 2 }],
        [`${arch}.attention.layer_norm_epsilon`, { f32: 1e-5 }],
        [`${arch}.attention.sliding_window`, { u32: 64 }],
        [`${arch}.attention.sliding_window_pattern`, { bools: [true, false] }],
        [`${arch}.logit_scale`, { f32: 1 }],
        [`${arch}.rope.freq_base`, { f32: 10000 }],
        [`${arch}.rope.dimension_count`, { u32: 16 }],
      ]),
      cohereTensors(),
    )
  })
}

/**
 * Returns the path of a Command R of 2 layers and width 64. It has no RMS norm: a software device compiles that kernel alone as long as all
 * others of this model together. `more`: further metadata.
 */
export function layerNormModel(
  heads: 2 | 4 = 4,
  more: readonly (readonly [string, GgufValue])[] = [],
  vocabulary = 400,
): Promise<string> {
  return cached('layer-norm', more.length === 0 ? { heads } : { heads, more }, (path) => {
    const arch = 'command-r'
    return writeGguf(
      path,
      new Map<string, GgufValue>([
        ...common(arch, 2, 64),
        [`${arch}.feed_forward_length`, { u32: 128 }],
        [`${arch}.attention.head_count`, { u32: heads }],
        [`${arch}.attention.head_count_kv`, { u32: heads / 2 }],
        [`${arch}.attention.layer_norm_epsilon`, { f32: 1e-5 }],
        [`${arch}.logit_scale`, { f32: 1 }],
        [`${arch}.rope.freq_base`, { f32: 10000 }],
        [`${arch}.rope.dimension_count`, { u32: 64 / heads }],
        ...more,
      ]),
      cohereTensors(vocabulary),
    )
  })
}

/** Returns the path of the same model with 20,000 more tokens: pairs of Han characters, which share few bytes with each other. */
export function hanModel(): Promise<string> {
  const words = Array.from({ length: 20_000 }, (_, index) => String.fromCharCode(0x4e00 + index, 0x4e00 + ((index * 7) % 20_000)))
  const bytes = byteAlphabet()
  const metadata = new Map(common('command-r', 2, 64))
  const { strings } = metadata.get('tokenizer.ggml.tokens') as { strings: string[] }
  const { i32s } = metadata.get('tokenizer.ggml.token_type') as { i32s: number[] }
  const tokens = [...strings, ...words.map((word) => Array.from(Buffer.from(word), (byte) => bytes[byte]).join(''))]
  return layerNormModel(
    4,
    [
      ['command-r.vocab_size', { u32: tokens.length }],
      ['tokenizer.ggml.tokens', { strings: tokens }],
      ['tokenizer.ggml.token_type', { i32s: tokens.map((_, token) => i32s[token] ?? 1) }],
    ],
    tokens.length,
  )
}

/** Returns the path of a Mamba of 2 layers, which has a recurrent state instead of cells. */
export function mambaModel(): Promise<string> {
  return cached('mamba', {}, (path) => {
    const arch = 'mamba'
    const [inner, state, rank, kernel] = [128, 16, 4, 4]
    return writeGguf(
      path,
      new Map<string, GgufValue>([
        ...common(arch, 2, 64),
        [`${arch}.feed_forward_length`, { u32: 0 }],
        [`${arch}.attention.head_count`, { u32: 0 }],
        [`${arch}.attention.layer_norm_rms_epsilon`, { f32: 1e-5 }],
        [`${arch}.ssm.conv_kernel`, { u32: kernel }],
        [`${arch}.ssm.inner_size`, { u32: inner }],
        [`${arch}.ssm.state_size`, { u32: state }],
        [`${arch}.ssm.time_step_rank`, { u32: rank }],
      ]),
      [
        weight('token_embd.weight', [64, 400], 1),
        weight('output_norm.weight', [64], 0.1, 1),
        ...[0, 1].flatMap((layer) => [
          weight(`blk.${layer}.attn_norm.weight`, [64], 0.1, 1),
          weight(`blk.${layer}.ssm_in.weight`, [64, 2 * inner], 0.12),
          weight(`blk.${layer}.ssm_conv1d.weight`, [kernel, inner], 0.5),
          weight(`blk.${layer}.ssm_conv1d.bias`, [inner], 0.1),
          weight(`blk.${layer}.ssm_x.weight`, [inner, rank + 2 * state], 0.09),
          weight(`blk.${layer}.ssm_dt.weight`, [rank, inner], 0.5),
          weight(`blk.${layer}.ssm_dt.bias`, [inner], 0.1),
          weight(`blk.${layer}.ssm_a`, [state, inner], 0.05, -1),
          weight(`blk.${layer}.ssm_d`, [inner], 0.1, 1),
          weight(`blk.${layer}.ssm_out.weight`, [inner, 64], 0.09),
        ]),
      ],
    )
  })
}

function cohereTensors(vocabulary = 400): GgufTensor[] {
  return [
    weight('token_embd.weight', [64, vocabulary], 1),
    weight('output_norm.weight', [64], 0.1, 1),
    ...[0, 1].flatMap((layer) => [
      weight(`blk.${layer}.attn_norm.weight`, [64], 0.1, 1),
      weight(`blk.${layer}.attn_q.weight`, [64, 64], 0.12),
      weight(`blk.${layer}.attn_k.weight`, [64, 32], 0.12),
      weight(`blk.${layer}.attn_v.weight`, [64, 32], 0.12),
      weight(`blk.${layer}.attn_output.weight`, [64, 64], 0.12),
      weight(`blk.${layer}.ffn_gate.weight`, [64, 128], 0.12),
      weight(`blk.${layer}.ffn_up.weight`, [64, 128], 0.12),
      weight(`blk.${layer}.ffn_down.weight`, [128, 64], 0.09),
    ]),
  ]
}

function common(architecture: string, layers: number, embedding: number): [string, GgufValue][] {
  return [
    ['general.architecture', { string: architecture }],
    ['general.name', { string: 'kvfold test' }],
    ['general.file_type', { u32: 0 }],
    [`${architecture}.block_count`, { u32: layers }],
    [`${architecture}.context_length`, { u32: 4096 }],
    [`${architecture}.embedding_length`, { u32: embedding }],
    [`${architecture}.vocab_size`, { u32: 400 }],
    ...vocabularyMetadata(400),
    ['tokenizer.chat_template', { string: CHATML_TEMPLATE }],
  ]
}

function weight(name: string, shape: readonly number[], deviation: number, mean = 0): GgufTensor {
  const seed = createHash('sha256').update(name).digest().readUInt32LE()
  return randomTensor({ name, shape, type: 'f32', mean, deviation, seed })
}

async function cached(name: string, shape: object, write: (path: string) => Promise<void>): Promise<string> {
  const hash = createHash('sha256')
    .update(JSON.stringify([GENERATION, name, shape]))
    .digest('hex')
    .slice(0, 12)
  const folder = join(tmpdir(), `kvfold-test-${hash}`)
  const path = join(folder, `${name}.gguf`)
  if (!existsSync(path)) {
    mkdirSync(folder, { recursive: true })
    await write(path)
  }
  return path
}
