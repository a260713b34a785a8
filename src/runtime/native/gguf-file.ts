/**
 * Checks a GGUF file before llama.cpp maps it: whether it is complete, and whether llama.cpp can use its weights and vocabulary. Also
 * returns the sizes of its layers.
 */
import { KvfoldError } from '../core/errors.js'
import type { TensorBlock } from './addon.js'
import { readHeader, TYPE, type GgufHeader, type GgufTensorInfo } from './gguf-reader.js'

/** The alignment of tensors in bytes if the file names none, and (next constant) the most bytes of a tensor's name (gguf.h). */
const DEFAULT_ALIGNMENT = 32
const MOST_NAME = 63

export interface GgufFile {
  /**
   * Bytes of all tensors, then (next fields) of each layer's tensors and of the tensors outside layers. Sums over all files of a split
   * model.
   */
  readonly tensorBytes: number
  readonly layerBytes: readonly number[]
  readonly outerBytes: number
  /** Whether the model has a scoring head, as rerankers do: one score, or one for each label. */
  readonly scores: boolean
}

/**
 * Reads header, metadata and tensor table, and checks everything on which llama.cpp v0.5.0 would end the process. Every tensor must lie
 * within the file and have a type that llama.cpp computes with. The metadata's numbers and vocabulary must be consistent. Reads the other
 * files of a split model too.
 * @param types block sizes by ggml_type, as the loaded library reports them
 * @throws KvfoldError model/not-found, native/unsupported, or model/bad-file with what is wrong and where
 */
export function checkGguf(path: string, types: readonly TensorBlock[]): GgufFile {
  const headers = headersOf(path)
  const [first] = headers as [GgufHeader]
  refuseKinds(first)
  const layerBytes: number[] = []
  let outerBytes = 0
  for (const header of headers)
    for (const { name, bytes } of measured(header, types)) {
      const layer = /^blk\.(\d{1,5})\./.exec(name)?.[1]
      if (layer === undefined) outerBytes += bytes
      else layerBytes[Number(layer)] = (layerBytes[Number(layer)] ?? 0) + bytes
    }
  const tensors = headers.flatMap((header) => header.tensors)
  checkWeights(headers)
  checkVocabulary(first)
  const layers = Array.from(layerBytes, (bytes: number | undefined) => bytes ?? 0)
  const tensorBytes = layers.reduce((sum, bytes) => sum + bytes, outerBytes)
  return { tensorBytes, layerBytes: layers, outerBytes, scores: tensors.some(isScore) }
}

/** Returns the headers of all files of a model. @throws KvfoldError model/not-found, model/bad-file */
export function headersOf(path: string): readonly GgufHeader[] {
  const first = readHeader(path)
  return [first, ...siblings(path, partsOf(first)).map(readHeader)]
}

/**
 * Whether a tensor is the output of a scoring head. Without one, llama.cpp would return the last hidden values as scores (llama-graph.cpp,
 * build_pooling).
 */
const isScore = ({ name, shape }: GgufTensorInfo): boolean =>
  name === 'cls.output.weight' || (name === 'cls.weight' && (shape[1] ?? 1) === 1)

/**
 * Returns for each tensor its first byte in the file, and its number of bytes.
 * @throws KvfoldError model/bad-file if a tensor reaches beyond the file
 */
export function measured(
  { path, size, metadata, tensors, end }: GgufHeader,
  types: readonly TensorBlock[],
): readonly { readonly name: string; readonly start: number; readonly bytes: number }[] {
  const given = metadata.get('general.alignment')
  const alignment = given?.kind === 'number' && given.type === TYPE.u32 ? given.value : DEFAULT_ALIGNMENT
  const broken = (what: string) => new KvfoldError('model/bad-file', `${path} is damaged: ${what}; download or copy it again.`)
  if (alignment === 0 || (alignment & (alignment - 1)) !== 0)
    throw broken(`its alignment is ${alignment}, which is not a power of two`)
  const start = Math.ceil(end / alignment) * alignment
  let last = start
  const sizes = tensors.map(({ name, shape, type, offset }) => {
    if (Buffer.byteLength(name) > MOST_NAME)
      throw broken(`the name ${name.slice(0, 20)}... of a tensor is longer than ${MOST_NAME} bytes`)
    const [blockBytes, block] = types[type] ?? [0, 0]
    if (blockBytes === 0 || block === 0) throw broken(`tensor ${name} has type ${type}, which this llama.cpp does not know`)
    if ((shape[0] ?? 1) % block !== 0)
      throw broken(`tensor ${name} has rows of ${shape[0]} values, but its type ${type} comes in blocks of ${block}`)
    const bytes = (shape.reduce((product, length) => product * length, 1) / block) * blockBytes
    last = Math.max(last, start + offset + bytes)
    return { name, start: start + offset, bytes }
  })
  if (sizes.length > 0 && last > size)
    throw new KvfoldError(
      'model/bad-file',
      `${path} is truncated: its tensors end at byte ${last}, but the file ends at ${size}; download or copy it again.`,
    )
  return sizes
}

/** Refuses adapters and multimodal projectors, which are not models on their own. */
function refuseKinds({ path, metadata }: GgufHeader): void {
  for (const key of ['general.type', 'general.architecture']) {
    const entry = metadata.get(key)
    if (entry?.kind !== 'text') continue
    if (entry.value === 'adapter')
      throw new KvfoldError('model/bad-file', `${path} is an adapter and no model; give its model, and the adapter with --lora.`)
    if (entry.value === 'mmproj' || entry.value === 'clip')
      throw new KvfoldError(
        'native/unsupported',
        `${path} is a multimodal projector, which kvfold does not support yet; give a language model.`,
      )
  }
}

function partsOf({ metadata }: GgufHeader): number {
  const entry = metadata.get('split.count')
  return entry?.kind === 'number' && entry.type === TYPE.u16 ? entry.value : 1
}

/** Returns the paths of a split model's other files, given the first. llama.cpp finds them by their names, too. */
function siblings(path: string, parts: number): string[] {
  if (parts < 2) return []
  const match = /^(.*)-00001-of-(\d{5})\.gguf$/.exec(path)
  if (match === null || Number(match[2]) !== parts)
    throw new KvfoldError(
      'model/bad-file',
      `${path} is one of ${parts} files of a split model; give the first, whose name ends in -00001-of-${String(parts).padStart(5, '0')}.gguf.`,
    )
  const [, stem = '', count = ''] = match
  return Array.from({ length: parts - 1 }, (_, index) => `${stem}-${String(index + 2).padStart(5, '0')}-of-${count}.gguf`)
}

// Checks the number formats of a model's tensors. Which formats llama.cpp's CPU operators take depends on the tensor's purpose.

const F32 = 0
/** The number formats of weights, by ggml_type: those with a dot product and a conversion to f32 (ggml-cpu.c, ops.cpp: get_rows). */
const WEIGHTS: Readonly<Record<number, string>> = {
  ...{ 0: 'f32', 1: 'f16', 30: 'bf16', 2: 'q4_0', 3: 'q4_1', 6: 'q5_0', 7: 'q5_1', 8: 'q8_0' },
  ...{ 10: 'q2_K', 11: 'q3_K', 12: 'q4_K', 13: 'q5_K', 14: 'q6_K' },
  ...{
    16: 'iq2_xxs',
    17: 'iq2_xs',
    18: 'iq3_xxs',
    19: 'iq1_s',
    20: 'iq4_nl',
    21: 'iq3_s',
    22: 'iq2_s',
    23: 'iq4_xs',
    29: 'iq1_m',
  },
  ...{ 34: 'tq1_0', 35: 'tq2_0', 39: 'mxfp4', 40: 'nvfp4', 41: 'q1_0', 42: 'q2_0' },
}
const OTHERS: Readonly<Record<number, string>> = { 9: 'q8_1', 15: 'q8_K', 24: 'i8', 25: 'i16', 26: 'i32', 27: 'i64', 28: 'f64' }

/**
 * Names of tensors that must be f32. The first two patterns match tensors that are added to activations or multiplied with them.
 * Activations are f32, and ggml's binary operators take only f32 beside them (binary-ops.cpp). The other patterns match, in order: factors
 * of rotary positions (ggml_rope_ext), states and kernels of recurrent layers (ggml_ssm_scan, ggml_ssm_conv), the row of token types that
 * encoders add, and attention sinks (ggml_soft_max_add_sinks).
 */
const EXACT: readonly RegExp[] = [
  /\.(?:bias|scale|input_scale)$|_scale\.weight$/,
  /norm\d?(?:_\w+)?\.weight$/,
  /^rope_(?:freqs|factors_long|factors_short)\.weight$|\.rope_(?:freqs|factors_long|factors_short)\.weight$/,
  /\.ssm_(?:a|d|conv1d\.weight)$/,
  /\.shortconv\.conv\.weight$/,
  /^token_types\.weight$/,
  /\.attn_sinks\.weight$/,
]

/** Architectures of llama.cpp v0.5.0 with tensors of integers, which serve as lookup tables instead of weights. */
const INTEGER_TABLES: readonly string[] = ['deepseek4', 'qwen4exp']

/** Checks that llama.cpp computes with the number format of every tensor. @throws KvfoldError model/bad-file naming the tensor */
export function checkWeights(headers: readonly GgufHeader[]): void {
  const architecture = headers[0]?.metadata.get('general.architecture')
  const tables = architecture?.kind === 'text' && INTEGER_TABLES.includes(architecture.value)
  for (const { path, tensors } of headers)
    for (const tensor of tensors) {
      const refusal = refusalOf(tensor, tables)
      if (refusal === null) continue
      const name = WEIGHTS[tensor.type] ?? OTHERS[tensor.type] ?? String(tensor.type)
      throw new KvfoldError(
        'model/bad-file',
        `${path}: the tensor ${tensor.name} has type ${name}, but llama.cpp ${refusal}; convert the model again.`,
      )
    }
}

/** Whether llama.cpp multiplies matrices of this ggml_type. */
export const isWeight = (type: number): boolean => WEIGHTS[type] !== undefined

function refusalOf({ name, type }: GgufTensorInfo, tables: boolean): string | null {
  if (EXACT.some((pattern) => pattern.test(name))) return type === F32 ? null : 'needs f32 there'
  if (WEIGHTS[type] !== undefined || (tables && type >= 24 && type <= 27)) return null
  return 'computes only with floats and quantised numbers (f32, f16, bf16, q4_0, q8_0, q4_K, ...)'
}

// Checks a model's vocabulary for everything on which llama.cpp v0.5.0 asserts when it loads one (llama-vocab.cpp).

const TOKENS = 'tokenizer.ggml.tokens'
/** llama_token_type's number for byte tokens. */
const BYTE = 6
/** The default ids of the tokens that begin and end a text in a WordPiece vocabulary. */
const WORD_PIECE = { bos: 101, seperator: 102 } as const

/** Checks the vocabulary in a file's metadata. @throws KvfoldError model/bad-file naming the token */
export function checkVocabulary({ path, metadata }: GgufHeader): void {
  const refuse = (what: string): never => {
    throw new KvfoldError('model/bad-file', `${path} has a damaged vocabulary: ${what}; download or convert it again.`)
  }
  const model = metadata.get('tokenizer.ggml.model')
  const kind = model?.kind === 'text' ? model.value.split('\0')[0] : undefined
  const list = metadata.get(TOKENS)
  if (list?.kind !== 'list' || list.item !== TYPE.string || kind === 'none' || kind === 'no_vocab') return
  const tokens = textsOf(list.items ?? [])
  refuseTwins(tokens, refuse)
  if (kind === 'bert') checkWordPiece(metadata, tokens.length, refuse)
  if (kind === 'rwkv') checkBytes(tokens, refuse)
}

/** Reads token texts as llama.cpp does: a text ends at its first NUL, and an empty text gets a unique name. */
const textsOf = (items: readonly (number | string)[]): string[] =>
  items.map((item, index) => String(item).split('\0')[0] || `[EMPTY_${index}]`)

function refuseTwins(tokens: readonly string[], refuse: (what: string) => never): void {
  const seen = new Set<string>()
  tokens.forEach((text, token) => {
    if (seen.has(text)) refuse(`it names token ${token} (${JSON.stringify(text.slice(0, 60))}) twice`)
    seen.add(text)
  })
}

/** Checks that a WordPiece vocabulary has no byte tokens, and that the ids of its begin and end tokens exist. */
function checkWordPiece(metadata: GgufHeader['metadata'], count: number, refuse: (what: string) => never): void {
  const types = metadata.get('tokenizer.ggml.token_type')
  const byte = types?.kind === 'list' ? (types.items?.indexOf(BYTE) ?? -1) : -1
  if (byte !== -1) refuse(`token ${byte} is of type 6 (byte), which WordPiece vocabularies do not have`)
  for (const [name, usual] of Object.entries(WORD_PIECE)) {
    const key = `tokenizer.ggml.${name}_token_id`
    const entry = metadata.get(key)
    const given = entry?.kind === 'number' && entry.type === TYPE.u32 ? entry.value : usual
    if (given >= count && usual >= count) refuse(`${key} is ${given}, but the vocabulary has ${count} tokens`)
  }
}

/** Checks that an RWKV vocabulary has a token for every single byte. If a byte only begins longer tokens, llama.cpp may search forever. */
function checkBytes(tokens: readonly string[], refuse: (what: string) => never): void {
  const single = new Set(tokens.map(unescaped).filter(({ length }) => length === 1))
  if (single.size < 256) refuse(`it is for RWKV, but only ${single.size} of the 256 bytes are tokens`)
}

/**
 * Resolves the escapes in RWKV token texts: \t, \n, \r, and \x with two digits. After any other backslash, the character stands for itself.
 */
const unescaped = (text: string): string =>
  text.replaceAll(/\\(x[0-9a-fA-F]{2}|.)/gs, (_, escape: string) => {
    if (escape.length === 3) return String.fromCharCode(Number.parseInt(escape.slice(1), 16))
    return { t: '\t', n: '\n', r: '\r' }[escape] ?? escape
  })
