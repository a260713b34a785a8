/** The model of the benchmarks on folds and serving: a synthetic one with random weights, or a given GGUF. */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openNative } from '../src/runtime/native/binding.js'
import { synthesizeModel, type SyntheticShape } from '../src/runtime/native/synthetic.js'
import { modelNow } from './record.js'

export const SHAPE = {
  architecture: 'llama',
  layers: 4,
  embedding: 256,
  heads: 4,
  kvHeads: 2,
  feedForward: 704,
  vocabulary: 8192,
  context: 16_384,
} as const

export interface BenchModel {
  readonly path: string
  readonly vocabulary: number
  /** How results name the model: by its shape, or by name and hash. */
  readonly said: object
}

/** Returns the GGUF at `path`, or one of `shape` that is made in the folder for temporary files. */
export async function benchModel(path: string | undefined, bench: string, shape: SyntheticShape = SHAPE): Promise<BenchModel> {
  if (path === undefined) {
    const made = join(tmpdir(), `kvfold-bench-${bench}.gguf`)
    await synthesizeModel(made, { ...shape, type: 'f16', seed: 1 })
    return { path: made, vocabulary: shape.vocabulary, said: shape }
  }
  const model = await (await openNative({ gpu: 'cpu' })).loadModel(path, { vocabOnly: true })
  const { vocabulary } = model.info
  await model.dispose()
  return { path, vocabulary, said: modelNow(path) }
}
