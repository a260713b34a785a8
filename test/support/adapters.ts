/** Makes LoRA adapters for the tests' models on demand, and models into which an adapter was merged by hand. */
import { createHash } from 'node:crypto'
import { copyFileSync, existsSync, mkdirSync, openSync, readSync, writeSync, closeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { headersOf } from '../../src/runtime/native/gguf-file.js'
import { type GgufHeader, readHeader } from '../../src/runtime/native/gguf-reader.js'
import { type SyntheticAdapter, synthesizeAdapter } from '../../src/runtime/native/synthetic.js'

/** Raise this number when the writer's output changes. */
const GENERATION = 1
const ALIGNMENT = 32

function placeOf(name: string, what: unknown): string {
  const hash = createHash('sha256')
    .update(JSON.stringify([GENERATION, name, what], (_, value: unknown) => (value instanceof RegExp ? value.source : value)))
    .digest('hex')
    .slice(0, 12)
  const folder = join(tmpdir(), `kvfold-test-${hash}`)
  mkdirSync(folder, { recursive: true })
  return join(folder, `${name}.gguf`)
}

/** Returns the path of an adapter for the model at this path. Its file is called `name`. */
export async function adapterFor(model: string, name: string, options: SyntheticAdapter = {}): Promise<string> {
  const path = placeOf(name, [model, options])
  if (!existsSync(path)) await synthesizeAdapter(path, model, options)
  return path
}

/**
 * Returns the path of the model with `scale * alpha / rank * B * A` added to every matrix that an adapter changes, summed in double
 * precision. Model and adapters must be f32.
 */
export function merged(model: string, adapters: readonly { readonly path: string; readonly scale: number }[]): string {
  const path = placeOf('merged', [model, adapters])
  copyFileSync(model, path)
  const [into] = headersOf(path)
  for (const { path: file, scale } of adapters) {
    const adapter = readHeader(file)
    const alpha = adapter.metadata.get('adapter.lora.alpha')
    for (const { name } of adapter.tensors.filter((tensor) => tensor.name.endsWith('.lora_a'))) {
      const target = name.replace(/\.lora_a$/, '')
      const a = read(adapter, name)
      const b = read(adapter, `${target}.lora_b`)
      const weights = read(into!, target)
      const isEmbedding = target === 'token_embd.weight'
      const rank = b.shape[0]!
      const factor = alpha?.kind === 'number' ? (scale * alpha.value) / rank : scale
      const [columns, rows] = weights.shape as [number, number]
      for (let row = 0; row < rows; row++)
        for (let column = 0; column < columns; column++) {
          let sum = 0
          for (let r = 0; r < rank; r++)
            sum += isEmbedding
              ? a.values[row * rank + r]! * b.values[column * rank + r]!
              : b.values[row * rank + r]! * a.values[r * columns + column]!
          weights.values[row * columns + column]! += factor * sum
        }
      write(into!, target, weights.values)
    }
  }
  return path
}

const offsetOf = ({ tensors, end }: GgufHeader, name: string): number =>
  Math.ceil(end / ALIGNMENT) * ALIGNMENT + tensors.find((tensor) => tensor.name === name)!.offset

function read(header: GgufHeader, name: string): { readonly shape: readonly number[]; readonly values: Float32Array } {
  const { shape } = header.tensors.find((tensor) => tensor.name === name)!
  const values = new Float32Array(shape.reduce((product, size) => product * size, 1))
  const file = openSync(header.path, 'r')
  readSync(file, new Uint8Array(values.buffer), 0, values.byteLength, offsetOf(header, name))
  closeSync(file)
  return { shape, values }
}

function write(header: GgufHeader, name: string, values: Float32Array): void {
  const file = openSync(header.path, 'r+')
  writeSync(file, new Uint8Array(values.buffer), 0, values.byteLength, offsetOf(header, name))
  closeSync(file)
}
