/** Owns GGUF files taken apart and put together again, rightly or wrongly: what the damage of test files works on. */

export interface Entry {
  key: string
  /** gguf_type; an array's value begins with the type of its items and their count. */
  type: number
  value: Buffer
}

export interface TensorEntry {
  name: string
  dims: bigint[]
  /** ggml_type. */
  type: number
  /** What lies at its place. */
  data: Buffer
  /** Said instead of where it lies. */
  offset?: bigint
}

export interface Gguf {
  entries: Entry[]
  tensors: TensorEntry[]
  /** What the header says there is, where it lies. */
  entryCount?: bigint
  tensorCount?: bigint
}

/** Bytes of a scalar by gguf_type. */
export const SCALARS: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }
export const U32 = 4
export const I32 = 5
export const F32 = 6
export const BOOL = 7
export const STRING = 8
export const ARRAY = 9

const ALIGNMENT = 32

/** Precondition: a sound little-endian GGUF of the usual alignment. */
export function parseGguf(file: Buffer): Gguf {
  let at = 8
  const u32 = () => file.readUInt32LE((at += 4) - 4)
  const u64 = () => file.readBigUInt64LE((at += 8) - 8)
  const text = () => {
    const length = Number(u64())
    return file.toString('utf8', at, (at += length))
  }
  const skip = (type: number): void => {
    if (type === STRING) at += Number(file.readBigUInt64LE(at)) + 8
    else if (type === ARRAY) {
      const item = u32()
      for (let left = Number(u64()); left > 0; left--) skip(item)
    } else at += SCALARS[type]!
  }
  const [tensorCount, entryCount] = [Number(u64()), Number(u64())]
  const entries = Array.from({ length: entryCount }, (): Entry => {
    const [key, type] = [text(), u32()]
    const from = at
    skip(type)
    return { key, type, value: file.subarray(from, at) }
  })
  const table = Array.from({ length: tensorCount }, () => {
    const name = text()
    const dims = Array.from({ length: u32() }, u64)
    return { name, dims, type: u32(), start: Number(u64()) }
  })
  const data = file.subarray(aligned(at))
  const tensors = table.map(({ start, ...tensor }, index) => ({ ...tensor, data: data.subarray(start, table[index + 1]?.start) }))
  return { entries, tensors }
}

const aligned = (at: number): number => Math.ceil(at / ALIGNMENT) * ALIGNMENT

/** Tensors lie one behind the other, as llama.cpp wants them. */
export function serializeGguf({ entries, tensors, entryCount, tensorCount }: Gguf): {
  readonly bytes: Buffer
  readonly header: number
} {
  const counts = [u64(tensorCount ?? BigInt(tensors.length)), u64(entryCount ?? BigInt(entries.length))]
  const parts = [Buffer.from('GGUF'), u32(3), ...counts]
  for (const { key, type, value } of entries) parts.push(text(key), u32(type), value)
  let end = 0
  for (const { name, dims, type, data, offset } of tensors) {
    parts.push(text(name), u32(dims.length), ...dims.map(u64), u32(type), u64(offset ?? BigInt(end)))
    end += aligned(data.length)
  }
  const header = Buffer.concat(parts)
  const padded = tensors.map(({ data }) => Buffer.concat([data, Buffer.alloc(aligned(data.length) - data.length)]))
  return {
    bytes: Buffer.concat([header, Buffer.alloc(aligned(header.length) - header.length), ...padded]),
    header: header.length,
  }
}

export const strings = (items: readonly string[]): Buffer =>
  Buffer.concat([u32(STRING), u64(BigInt(items.length)), ...items.map(text)])

/** The items of a list of texts. */
export function readStrings(value: Buffer): string[] {
  let at = 12
  return Array.from({ length: Number(value.readBigUInt64LE(4)) }, () => {
    const length = Number(value.readBigUInt64LE(at))
    return value.toString('utf8', at + 8, (at += 8 + length))
  })
}

/** A list of scalars, as bytes of its items. */
export const list = (type: number, items: Buffer): Buffer =>
  Buffer.concat([u32(type), u64(BigInt(Math.floor(items.length / SCALARS[type]!))), items])

export function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value >>> 0)
  return bytes
}

export function f32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeFloatLE(value)
  return bytes
}

export function u64(value: bigint): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt.asUintN(64, value))
  return bytes
}

export function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  return Buffer.concat([u64(BigInt(bytes.length)), bytes])
}
