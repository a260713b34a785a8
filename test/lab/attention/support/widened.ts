/**
 * Makes a GGUF's twin with the same values in F32. With it llama.cpp computes in F32, while it rounds the activations that F16 weights are
 * multiplied with.
 */

const F32 = 0
const F16 = 1
const ALIGNMENT = 32
const STRING = 8
const ARRAY = 9
/** Bytes of a metadata value by gguf_type. */
const SCALARS: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }

/** Returns the bytes of the twin. Precondition: a whole GGUF whose tensors are all F32 or F16. */
export function widened(gguf: Buffer): Buffer {
  const reader = new Reader(gguf)
  const [tensors, entries] = [Number(gguf.readBigUInt64LE(8)), Number(gguf.readBigUInt64LE(16))]
  for (let entry = 0; entry < entries; entry++) reader.entry()
  const metadata = gguf.subarray(0, reader.at)
  const table = Array.from({ length: tensors }, () => reader.tensor())
  const start = Math.ceil(reader.at / ALIGNMENT) * ALIGNMENT

  const header = [metadata]
  const data: Buffer[] = []
  let offset = 0
  for (const { description, type, elements, offset: from } of table) {
    const bytes = gguf.subarray(start + from, start + from + elements * (type === F16 ? 2 : 4))
    const place = Buffer.alloc(12)
    place.writeUInt32LE(F32)
    place.writeBigUInt64LE(BigInt(offset), 4)
    header.push(description, place)
    const wide = padded(type === F16 ? floats(bytes) : bytes)
    data.push(wide)
    offset += wide.length
  }
  return Buffer.concat([padded(Buffer.concat(header)), ...data])
}

class Reader {
  at = 24

  constructor(private readonly bytes: Buffer) {}

  entry(): void {
    this.#string()
    this.#value(this.#u32())
  }

  /** `description`: the bytes of name and shape, as in the file. */
  tensor(): { readonly description: Buffer; readonly type: number; readonly elements: number; readonly offset: number } {
    const start = this.at
    this.#string()
    let elements = 1
    for (let left = this.#u32(); left > 0; left--) elements *= this.#u64()
    const description = this.bytes.subarray(start, this.at)
    const type = this.#u32()
    if (type !== F32 && type !== F16) throw new Error(`a tensor of type ${type}`)
    return { description, type, elements, offset: this.#u64() }
  }

  #value(type: number): void {
    if (type === STRING) this.#string()
    else if (type !== ARRAY) this.at += SCALARS[type]!
    else {
      const inner = this.#u32()
      for (let left = this.#u64(); left > 0; left--) this.#value(inner)
    }
  }

  #string(): void {
    const length = this.#u64()
    this.at += length
  }

  #u32(): number {
    this.at += 4
    return this.bytes.readUInt32LE(this.at - 4)
  }

  #u64(): number {
    this.at += 8
    return Number(this.bytes.readBigUInt64LE(this.at - 8))
  }
}

function floats(halves: Buffer): Buffer {
  const wide = Buffer.alloc(2 * halves.length)
  for (let at = 0; at < halves.length; at += 2) wide.writeFloatLE(float(halves.readUInt16LE(at)), 2 * at)
  return wide
}

function float(half: number): number {
  const [sign, exponent, fraction] = [half >> 15 === 0 ? 1 : -1, (half >> 10) & 31, half & 1023]
  if (exponent === 31) throw new Error('a weight is not a finite number')
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25))
}

function padded(bytes: Buffer): Buffer {
  return Buffer.concat([bytes, Buffer.alloc(-bytes.length & (ALIGNMENT - 1))])
}
