/** Checks a LoRA adapter's file before llama.cpp reads it: whether it is a LoRA adapter, and whether its matrices fit its model. */
import { KvfoldError } from '../core/errors.js'
import type { TensorBlock } from './addon.js'
import { headersOf, isWeight, measured } from './gguf-file.js'
import { type GgufHeader, type GgufTensorInfo, readHeader, TYPE } from './gguf-reader.js'

export interface AdapterFile {
  /** Bytes of the adapter's matrices. */
  readonly bytes: number
  /** Number of tensors in the file that llama.cpp ignores: changed norms. */
  readonly ignored: number
}

const EMBEDDING = 'token_embd.weight'

/**
 * Checks an adapter for everything on which llama.cpp v0.5.0 asserts, when it loads an adapter (llama-adapter.cpp) and when it applies one
 * (build_lora_mm, build_inp_embd). So an adapter of another model causes an error instead of ending the process.
 * @param modelPath the file of the model that the adapter is for
 * @param types block sizes by ggml_type, as the loaded library reports them
 * @throws KvfoldError model/not-found, native/unsupported, or model/bad-file with what is wrong and where
 */
export function checkAdapter(path: string, modelPath: string, types: readonly TensorBlock[]): AdapterFile {
  const adapter = readHeader(path)
  const model = headersOf(modelPath)
  checkKind(adapter, model[0]!)
  const bytes = measured(adapter, types).reduce((sum, tensor) => sum + tensor.bytes, 0)
  const pairs = pairsIn(adapter)
  const tensors = new Map(model.flatMap((header) => header.tensors.map((tensor) => [tensor.name, tensor] as const)))
  for (const [name, pair] of pairs) checkPair(path, name, pair, tensors)
  return { bytes, ignored: adapter.tensors.length - 2 * pairs.size }
}

function checkKind({ path, metadata }: GgufHeader, model: GgufHeader): void {
  const textAt = (of: GgufHeader['metadata'], key: string) => {
    const entry = of.get(key)
    return entry?.kind === 'text' ? entry.value : null
  }
  const kind = textAt(metadata, 'general.type')
  if (kind !== 'adapter')
    throw bad(
      path,
      `is not an adapter (its general.type is ${kind ?? 'missing'}); give a LoRA adapter that was converted to GGUF`,
    )
  const type = textAt(metadata, 'adapter.type')
  if (type !== 'lora') throw bad(path, `is an adapter of type ${type ?? 'unknown'}; kvfold applies adapters of type lora`)
  const [own, wanted] = [textAt(metadata, 'general.architecture'), textAt(model.metadata, 'general.architecture')]
  if (own !== wanted)
    throw bad(
      path,
      `is an adapter for ${own ?? 'no'} models, but ${model.path} is a ${wanted ?? 'nameless'} model; give its own model`,
    )
  const alpha = metadata.get('adapter.lora.alpha')
  if (alpha !== undefined && !(alpha.kind === 'number' && alpha.type === TYPE.f32 && Number.isFinite(alpha.value)))
    throw bad(path, 'has an adapter.lora.alpha that is no number of type f32; convert it again')
  if (metadata.has('adapter.alora.invocation_tokens'))
    throw new KvfoldError(
      'native/unsupported',
      `${path} is an activated LoRA: it applies from certain tokens on. kvfold applies adapters to whole texts only; give another one.`,
    )
}

interface Pair {
  readonly a?: GgufTensorInfo
  readonly b?: GgufTensorInfo
}

/** Returns the file's pairs of LoRA matrices A and B, by the name of the tensor that they change. */
function pairsIn({ path, tensors }: GgufHeader): ReadonlyMap<string, Pair> {
  const pairs = new Map<string, Pair>()
  for (const tensor of tensors) {
    const [, name, part] = /^(.*)\.lora_([ab])$/.exec(tensor.name) ?? []
    if (name !== undefined && part !== undefined) pairs.set(name, { ...pairs.get(name), [part]: tensor })
    else if (!tensor.name.endsWith('_norm.weight'))
      throw bad(path, `has the tensor ${tensor.name}, whose name ends neither in .lora_a nor in .lora_b; convert it again`)
  }
  if (pairs.size === 0) throw bad(path, 'has no LoRA matrices; convert it again')
  return pairs
}

function checkPair(path: string, name: string, { a, b }: Pair, tensors: ReadonlyMap<string, GgufTensorInfo>): void {
  const model = tensors.get(name)
  if (model === undefined)
    throw bad(path, `changes the tensor ${name}, which its model does not have; give the model that it was made for`)
  if (a === undefined || b === undefined) throw bad(path, `has only one of the two matrices for ${name}; convert it again`)
  for (const { name: matrix, type } of [a, b])
    if (!isWeight(type))
      throw bad(path, `has the matrix ${matrix} of type ${type}, with which llama.cpp does not compute; convert it again`)
  if (name === EMBEDDING && !tensors.has('output.weight'))
    throw new KvfoldError(
      'native/unsupported',
      `${path} changes ${EMBEDDING}, which is also the output of its model; llama.cpp cannot apply that. Give an adapter of other tensors.`,
    )
  const [inputs, outputs, experts, more] = sizes(model)
  const [wide, tall] = [sizes(a), sizes(b)]
  // llama.cpp looks up rows of token embeddings by token id. So matrix A of the embedding has one row per token.
  const fits =
    name === EMBEDDING
      ? wide[1] === outputs && tall[1] === inputs && wide[0] === tall[0]
      : wide[0] === inputs && tall[1] === outputs && wide[1] === tall[0]
  const isOfAll = [wide, tall].every(([, , third, fourth]) => third === experts && fourth === more)
  if (fits && isOfAll) return
  const written = ({ shape }: GgufTensorInfo) => shape.join(' x ')
  throw bad(
    path,
    `does not fit its model: ${name} is ${written(model)}, but its matrices are ${written(a)} and ${written(b)}; give the model that it was made for`,
  )
}

const sizes = ({ shape }: GgufTensorInfo): readonly number[] => Array.from({ length: 4 }, (_, at) => shape[at] ?? 1)

const bad = (path: string, what: string): KvfoldError => new KvfoldError('model/bad-file', `${path} ${what}.`)
