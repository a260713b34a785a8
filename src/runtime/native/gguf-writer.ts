/** Writes GGUF files: header, metadata and tensors. Tensors are streamed to disk, so a model is never in memory whole. */
import { open, type FileHandle } from 'node:fs/promises'
import { invariant } from '../core/errors.js'
import { writeWhole } from '../core/whole-file.js'

/** A metadata value. The key of the object is its type in the file. */
export type GgufValue =
  | { readonly u16: number }
  | { readonly u32: number }
  | { readonly f32: number }
  | { readonly bool: boolean }
  | { readonly string: string }
  | { readonly strings: readonly string[] }
  | { readonly i32s: readonly number[] }
  | { readonly bools: readonly boolean[] }

export type TensorType = 'f32' | 'f16'

export interface GgufTensor {
  readonly name: string
  /** The sizes of the tensor's dimensions, fastest dimension first, as in ggml. */
  readonly shape: readonly number[]
  readonly type: TensorType
  /** Yields the tensor's bytes in order, in pieces of any size, together exactly as many as shape and type need. */
  chunks(): Iterable<Uint8Array>
}

const ALIGNMENT = 32
/** Numbers of gguf_type, and (next constant) of ggml_type with the bytes of one element (gguf.h, ggml.h). */
const VALUE = { u16: 2, u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 } as const
const TENSOR = { f32: { code: 0, bytes: 4 }, f16: { code: 1, bytes: 2 } } as const

/**
 * Writes a GGUF of version 3. The file appears under its name only when it is complete.
 * @throws the file system's error (ENOSPC, EACCES, ...); the unfinished file is removed.
 */
export async function writeGguf(
  path: string,
  metadata: ReadonlyMap<string, GgufValue>,
  tensors: readonly GgufTensor[],
): Promise<void> {
  await writeWhole(path, async (temporary) => {
    const file = await open(temporary, 'w')
    try {
      await writeAll(file, header(metadata, tensors))
      for (const tensor of tensors) await writeTensor(file, tensor)
    } finally {
      await file.close()
    }
  })
}

async function writeTensor(file: FileHandle, tensor: GgufTensor): Promise<void> {
  const size = byteLength(tensor)
  let written = 0
  for (const chunk of tensor.chunks()) {
    await writeAll(file, chunk)
    written += chunk.length
  }
  invariant(written === size, `tensor ${tensor.name} has ${written} bytes of ${size}`)
  await writeAll(file, Buffer.alloc(padding(size)))
}

/** Writes all bytes. A single write call may write only some of them. */
async function writeAll(file: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.length;) at += (await file.write(bytes, at, bytes.length - at)).bytesWritten
}

function header(metadata: ReadonlyMap<string, GgufValue>, tensors: readonly GgufTensor[]): Buffer {
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(metadata.size)]
  // Not `push(...all)`: a vocabulary has more parts than a call can take arguments.
  for (const [key, value] of metadata) for (const part of [text(key), ...encode(value)]) parts.push(part)
  let offset = 0
  for (const tensor of tensors) {
    const { name, shape, type } = tensor
    parts.push(text(name), u32(shape.length), ...shape.map(u64), u32(TENSOR[type].code), u64(offset))
    offset += byteLength(tensor) + padding(byteLength(tensor))
  }
  const size = parts.reduce((sum, part) => sum + part.length, 0)
  return Buffer.concat([...parts, Buffer.alloc(padding(size))])
}

function encode(value: GgufValue): Buffer[] {
  if ('u16' in value) return [u32(VALUE.u16), Buffer.from(Uint16Array.of(value.u16).buffer)]
  if ('u32' in value) return [u32(VALUE.u32), u32(value.u32)]
  if ('f32' in value) return [u32(VALUE.f32), f32(value.f32)]
  if ('bool' in value) return [u32(VALUE.bool), Buffer.from([value.bool ? 1 : 0])]
  if ('string' in value) return [u32(VALUE.string), text(value.string)]
  if ('strings' in value) return [...array(VALUE.string, value.strings), ...value.strings.map(text)]
  if ('bools' in value) return [...array(VALUE.bool, value.bools), Buffer.from(value.bools.map(Number))]
  return [...array(VALUE.i32, value.i32s), Buffer.from(Int32Array.from(value.i32s).buffer)]
}

const array = (type: number, items: readonly unknown[]): Buffer[] => [u32(VALUE.array), u32(type), u64(items.length)]

const byteLength = ({ shape, type }: GgufTensor): number => shape.reduce((product, size) => product * size, TENSOR[type].bytes)

const padding = (size: number): number => (ALIGNMENT - (size % ALIGNMENT)) % ALIGNMENT

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}

function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}

function f32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeFloatLE(value)
  return bytes
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  return Buffer.concat([u64(bytes.length), bytes])
}
