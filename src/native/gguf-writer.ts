/** Owns writing a GGUF file (version 3): metadata, tensor table, and tensor data streamed to disk. */
import { closeSync, openSync, renameSync, rmSync, writeSync } from 'node:fs'

export type MetadataValue =
  | { readonly type: 'u32' | 'i32' | 'f32'; readonly value: number }
  | { readonly type: 'bool'; readonly value: boolean }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'strings'; readonly value: readonly string[] }
  | { readonly type: 'i32s' | 'f32s'; readonly value: readonly number[] }

export interface TensorPlan {
  readonly name: string
  /** GGUF order: fastest-running dimension first. */
  readonly shape: readonly number[]
  readonly type: 'f32' | 'f16'
  /** Fills `elements` values of the tensor, called for one stretch after another. */
  readonly fill: (target: Float32Array | Uint16Array) => void
}

const ALIGNMENT = 32
/** Elements per stretch: bounds the memory of a write. */
const STRETCH = 1 << 18
const TYPE = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8 } as const
const TENSOR_TYPE = { f32: 0, f16: 1 } as const

/** Writes to a file beside `path` and renames it, so that a half-written model never lies at `path`. */
export function writeGguf(path: string, metadata: ReadonlyMap<string, MetadataValue>, tensors: readonly TensorPlan[]): void {
  const temporary = `${path}.${process.pid}.part`
  const file = openSync(temporary, 'w')
  try {
    const head = Buffer.concat([header(metadata, tensors)])
    writeAll(file, head)
    writeAll(file, padding(head.length))
    for (const tensor of tensors) {
      const elements = count(tensor)
      for (let start = 0; start < elements; start += STRETCH) {
        const size = Math.min(STRETCH, elements - start)
        const values = tensor.type === 'f32' ? new Float32Array(size) : new Uint16Array(size)
        tensor.fill(values)
        writeAll(file, Buffer.from(values.buffer, values.byteOffset, values.byteLength))
      }
      writeAll(file, padding(bytes(tensor)))
    }
    closeSync(file)
    renameSync(temporary, path)
  } catch (error) {
    rmSync(temporary, { force: true })
    throw error
  }
}

function header(metadata: ReadonlyMap<string, MetadataValue>, tensors: readonly TensorPlan[]): Buffer {
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(metadata.size)]
  for (const [key, value] of metadata) parts.push(text(key), encoded(value))
  let offset = 0
  for (const tensor of tensors) {
    parts.push(text(tensor.name), u32(tensor.shape.length), ...tensor.shape.map(u64), u32(TENSOR_TYPE[tensor.type]), u64(offset))
    offset += bytes(tensor) + padding(bytes(tensor)).length
  }
  return Buffer.concat(parts)
}

function encoded(entry: MetadataValue): Buffer {
  switch (entry.type) {
    case 'strings':
      return Buffer.concat([u32(9), u32(TYPE.string), u64(entry.value.length), ...entry.value.map(text)])
    case 'i32s':
    case 'f32s': {
      const inner = entry.type === 'i32s' ? 'i32' : 'f32'
      return Buffer.concat([u32(9), u32(TYPE[inner]), u64(entry.value.length), ...entry.value.map((value) => scalar(inner, value))])
    }
    case 'string':
      return Buffer.concat([u32(TYPE.string), text(entry.value)])
    case 'bool':
      return Buffer.concat([u32(TYPE.bool), Buffer.from([entry.value ? 1 : 0])])
    case 'u32':
    case 'i32':
    case 'f32':
      return Buffer.concat([u32(TYPE[entry.type]), scalar(entry.type, entry.value)])
  }
}

function scalar(type: 'u32' | 'i32' | 'f32', value: number): Buffer {
  const out = Buffer.alloc(4)
  if (type === 'u32') out.writeUInt32LE(value)
  else if (type === 'i32') out.writeInt32LE(value)
  else out.writeFloatLE(value)
  return out
}

const u32 = (value: number): Buffer => scalar('u32', value)

function u64(value: number): Buffer {
  const out = Buffer.alloc(8)
  out.writeBigUInt64LE(BigInt(value))
  return out
}

function text(value: string): Buffer {
  const raw = Buffer.from(value)
  return Buffer.concat([u64(raw.length), raw])
}

const count = (tensor: TensorPlan): number => tensor.shape.reduce((product, size) => product * size, 1)
const bytes = (tensor: TensorPlan): number => count(tensor) * (tensor.type === 'f32' ? 4 : 2)
const padding = (length: number): Buffer => Buffer.alloc((ALIGNMENT - (length % ALIGNMENT)) % ALIGNMENT)

function writeAll(file: number, data: Buffer): void {
  for (let at = 0; at < data.length; ) at += writeSync(file, data, at)
}
