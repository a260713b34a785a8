/** Writes LoRA adapters that weaken or remove chosen attention heads, for ablation studies. */
import { KvfoldError } from '../core/errors.js'
import { type GgufTensor, type GgufValue, writeGguf } from './gguf-writer.js'
import { headersOf } from './gguf-file.js'
import type { GgufHeader } from './gguf-reader.js'
import type { AttentionHead, Native } from './types.js'

/**
 * Writes an adapter that scales the output of the named heads by the factor `left` (default 0: no output). The heads' attention patterns do
 * not change. The adapter subtracts the rest of the heads' columns of `attn_output`, computed from the values in the model's file. So the
 * factor is exact up to the rounding of the model's number format. An existing file is replaced.
 * @param modelPath a GGUF with tensors `blk.<layer>.attn_output.weight`
 * @throws KvfoldError native/bad-argument for a head that the model does not have, or one that is named twice; native/unsupported for a
 * layer whose attention has no such tensor; model/*; the file system's error
 */
export async function writeHeadAdapter(
  native: Native,
  path: string,
  modelPath: string,
  heads: readonly AttentionHead[],
  left = 0,
): Promise<void> {
  const header = headersOf(modelPath)[0]!
  const architecture = textOf(header, 'general.architecture')
  const layers = new Map<number, number[]>()
  for (const { layer, head } of heads) {
    const count = headCount(header, architecture, layer)
    if (!Number.isInteger(head) || head < 0 || head >= count)
      throw new KvfoldError(
        'native/bad-argument',
        `Layer ${layer} of ${modelPath} has no attention head ${head}; it has ${count}.`,
      )
    const own = layers.get(layer) ?? []
    if (own.includes(head)) throw new KvfoldError('native/bad-argument', `Head ${head} of layer ${layer} is named twice.`)
    layers.set(layer, [...own, head])
  }
  if (layers.size === 0) throw new KvfoldError('native/bad-argument', 'An adapter needs at least one attention head.')
  const matrices = [...layers].flatMap(([layer, own]) =>
    without(native, modelPath, layer, own, headCount(header, architecture, layer), left - 1),
  )
  await writeGguf(
    path,
    new Map<string, GgufValue>([
      ['general.architecture', { string: architecture }],
      ['general.type', { string: 'adapter' }],
      ['general.name', { string: `without ${heads.length} attention heads` }],
      ['adapter.type', { string: 'lora' }],
    ]),
    matrices,
  )
}

/** Returns the two LoRA matrices of a layer. A selects the heads' values from the attention's output. B is `factor` times their columns. */
function without(
  native: Native,
  modelPath: string,
  layer: number,
  heads: readonly number[],
  count: number,
  factor: number,
): readonly GgufTensor[] {
  const name = `blk.${layer}.attn_output.weight`
  const { shape, values } = outputOf(native, modelPath, name, layer)
  const [inputs, outputs] = [shape[0]!, shape[1]!]
  const width = inputs / count
  if (!Number.isInteger(width))
    throw new KvfoldError('native/unsupported', `${modelPath}: ${inputs} columns of ${name} are not ${count} heads of one width.`)
  const columns = heads.flatMap((head) => Array.from({ length: width }, (_, at) => head * width + at))
  const a = new Float32Array(inputs * columns.length)
  const b = new Float32Array(columns.length * outputs)
  for (const [row, column] of columns.entries()) {
    a[row * inputs + column] = 1
    for (let output = 0; output < outputs; output++) b[output * columns.length + row] = factor * values[output * inputs + column]!
  }
  return [
    { name: `${name}.lora_a`, shape: [inputs, columns.length], type: 'f32', chunks: () => [new Uint8Array(a.buffer)] },
    { name: `${name}.lora_b`, shape: [columns.length, outputs], type: 'f32', chunks: () => [new Uint8Array(b.buffer)] },
  ]
}

function outputOf(native: Native, modelPath: string, name: string, layer: number) {
  try {
    return native.readTensor(modelPath, name)
  } catch (error) {
    if (!(error instanceof KvfoldError) || error.code !== 'native/bad-argument') throw error
    throw new KvfoldError(
      'native/unsupported',
      `${modelPath} has no tensor ${name}, so the heads of layer ${layer} cannot be taken away.`,
    )
  }
}

function headCount({ metadata, path }: GgufHeader, architecture: string, layer: number): number {
  const numberOf = (key: string) => {
    const entry = metadata.get(`${architecture}.${key}`)
    return entry?.kind === 'number' ? entry.value : entry?.kind === 'list' ? Number(entry.items?.[layer] ?? 0) : 0
  }
  const layers = numberOf('block_count')
  if (!Number.isInteger(layer) || layer < 0 || layer >= layers)
    throw new KvfoldError('native/bad-argument', `${path} has no layer ${layer}; it has ${layers}, from 0.`)
  return numberOf('attention.head_count')
}

function textOf({ metadata, path }: GgufHeader, key: string): string {
  const entry = metadata.get(key)
  if (entry?.kind === 'text') return entry.value
  throw new KvfoldError('model/bad-file', `${path} does not say its ${key}; convert it again.`)
}
