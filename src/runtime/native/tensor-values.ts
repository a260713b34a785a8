/** Reads one tensor out of a model's file as floats. */
import { closeSync, openSync, readSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import { type Addon, calling, type TensorBlock } from './addon.js'
import { headersOf, measured } from './gguf-file.js'
import type { TensorValues } from './values.js'

/**
 * Reads the tensor with this name from the model's file, or from another file of a split model.
 * @param types block sizes by ggml_type, as the loaded library reports them
 * @throws KvfoldError as `Native.readTensor`
 */
export function readTensor(addon: Addon, types: readonly TensorBlock[], path: string, name: string): TensorValues {
  for (const header of headersOf(path)) {
    const tensor = header.tensors.find((one) => one.name === name)
    if (tensor === undefined) continue
    const { start, bytes } = measured(header, types).find((one) => one.name === name)!
    const count = tensor.shape.reduce((product, size) => product * size, 1)
    const data = bytesAt(header.path, start, bytes)
    return { shape: tensor.shape, values: calling(() => addon.dequantise(tensor.type, data, count)) }
  }
  throw new KvfoldError('native/bad-argument', `${path} has no tensor ${name}.`)
}

/** The most bytes of one read call. Node reads at most 2 GiB at once. */
const MOST_READ = 2 ** 30

function bytesAt(path: string, start: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length)
  const file = openSync(path, 'r')
  try {
    for (let at = 0; at < length;) {
      const read = readSync(file, bytes, at, Math.min(length - at, MOST_READ), start + at)
      if (read === 0) throw new KvfoldError('model/bad-file', `${path} became shorter while it was read; copy it again.`)
      at += read
    }
  } finally {
    closeSync(file)
  }
  return bytes
}
