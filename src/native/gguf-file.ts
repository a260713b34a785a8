/** Owns the look at a GGUF file before llama.cpp maps it: is it one, is all of it there, can it be computed, and how large are its parts. */
import { KvfoldError } from '../core/errors.js'
import type { TensorBlock } from './addon.js'
import { readHeader, TYPE, type GgufHeader } from './gguf-reader.js'
import { checkValues } from './gguf-values.js'
import { checkVocabulary } from './gguf-vocabulary.js'
import { checkWeights } from './gguf-weights.js'

/** gguf.h */
const DEFAULT_ALIGNMENT = 32
const MOST_NAME = 63

export interface GgufFile {
  /** Bytes of all tensors, of each layer's, and of those that belong to no layer; all parts of a split model together. */
  readonly tensorBytes: number
  readonly layerBytes: readonly number[]
  readonly outerBytes: number
}

/**
 * Reads header, metadata and tensor table and checks all that llama.cpp v0.5.0 would end the process on: that every tensor's bytes lie within
 * the file, that its type can be computed with, and that the numbers and the vocabulary of the metadata agree. The other files of a split
 * model are read, too.
 * @param types blocks by ggml_type, as the loaded library knows them
 * @throws KvfoldError model/not-found, native/unsupported, or model/bad-file with what is wrong and where
 */
export function checkGguf(path: string, types: readonly TensorBlock[]): GgufFile {
  const first = readHeader(path)
  refuseKinds(first)
  const headers = [first, ...siblings(path, partsOf(first)).map(readHeader)]
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
  checkValues(first, tensors)
  checkVocabulary(first)
  const layers = Array.from(layerBytes, (bytes: number | undefined) => bytes ?? 0)
  return { tensorBytes: layers.reduce((sum, bytes) => sum + bytes, outerBytes), layerBytes: layers, outerBytes }
}

/** @throws KvfoldError model/bad-file where a tensor reaches beyond the file */
function measured(
  { path, size, metadata, tensors, end }: GgufHeader,
  types: readonly TensorBlock[],
): readonly { readonly name: string; readonly bytes: number }[] {
  const given = metadata.get('general.alignment')
  const alignment = given?.kind === 'number' && given.type === TYPE.u32 ? given.value : DEFAULT_ALIGNMENT
  const broken = (what: string) => new KvfoldError('model/bad-file', `${path} is damaged: ${what}; download or copy it again.`)
  if (alignment === 0 || (alignment & (alignment - 1)) !== 0) throw broken(`an alignment of ${alignment}`)
  const start = Math.ceil(end / alignment) * alignment
  let last = start
  const sizes = tensors.map(({ name, shape, type, offset }) => {
    if (Buffer.byteLength(name) > MOST_NAME)
      throw broken(`the name ${name.slice(0, 20)}... of a tensor is longer than ${MOST_NAME} bytes`)
    const [blockBytes, block] = types[type] ?? [0, 0]
    if (blockBytes === 0 || block === 0) throw broken(`tensor ${name} has type ${type}, which this llama.cpp does not know`)
    if ((shape[0] ?? 1) % block !== 0)
      throw broken(`tensor ${name} has rows of ${shape[0]}, and its type ${type} takes ${block} at a time`)
    const bytes = (shape.reduce((product, length) => product * length, 1) / block) * blockBytes
    last = Math.max(last, start + offset + bytes)
    return { name, bytes }
  })
  if (sizes.length > 0 && last > size)
    throw new KvfoldError(
      'model/bad-file',
      `${path} is truncated: its tensors end at byte ${last}, the file at ${size}; download or copy it again.`,
    )
  return sizes
}

/** Files that are no language model by themselves. */
function refuseKinds({ path, metadata }: GgufHeader): void {
  for (const key of ['general.type', 'general.architecture']) {
    const entry = metadata.get(key)
    if (entry?.kind !== 'text') continue
    const unsupported = { adapter: 'a LoRA adapter', mmproj: 'a multimodal projector', clip: 'a multimodal projector' }[
      entry.value
    ]
    if (unsupported !== undefined)
      throw new KvfoldError(
        'native/unsupported',
        `${path} is ${unsupported}, which kvfold does not support yet; give a language model.`,
      )
  }
}

function partsOf({ metadata }: GgufHeader): number {
  const entry = metadata.get('split.count')
  return entry?.kind === 'number' && entry.type === TYPE.u16 ? entry.value : 1
}

/** The other files of a model in `parts` files; llama.cpp finds them by name from the first. */
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
