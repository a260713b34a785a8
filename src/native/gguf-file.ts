/** Owns the look at a GGUF file before llama.cpp maps it: is it one, and is all of it there. */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'

const MAGIC = 0x46554747
const READ = 1 << 20
/** Bytes and elements of one block, by ggml_type (ggml.c, type traits); types that are absent are left to llama.cpp. */
const BLOCKS: Readonly<Record<number, readonly [bytes: number, elements: number]>> = {
  0: [4, 1], 1: [2, 1], 2: [18, 32], 3: [20, 32], 6: [22, 32], 7: [24, 32], 8: [34, 32], 9: [36, 32], 10: [84, 256], 11: [110, 256],
  12: [144, 256], 13: [176, 256], 14: [210, 256], 15: [292, 256], 16: [66, 256], 17: [74, 256], 18: [98, 256], 19: [50, 256], 20: [18, 32],
  21: [110, 256], 22: [82, 256], 23: [136, 256], 24: [1, 1], 25: [2, 1], 26: [4, 1], 27: [8, 1], 28: [8, 1], 29: [56, 256], 30: [2, 1],
  34: [54, 256], 35: [66, 256], 39: [17, 32],
} // prettier-ignore
/** Bytes of a metadata value, by gguf_type; 8 is a string, 9 an array. */
const SCALARS: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }

export interface GgufSummary {
  readonly version: number
  readonly tensors: number
  readonly bytes: number
}

/**
 * Reads header, metadata and tensor table and checks that every tensor's bytes lie within the file.
 * @throws KvfoldError model/not-found, model/bad-file with what is wrong and where.
 */
export function checkGguf(path: string): GgufSummary {
  let file: number
  try {
    file = openSync(path, 'r')
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException
    throw new KvfoldError('model/not-found', `There is no readable model file at ${path} (${code}); check the path.`, { cause: error })
  }
  try {
    const stats = fstatSync(file)
    if (!stats.isFile()) throw new KvfoldError('model/bad-file', `${path} is not a file; give the path of a .gguf file.`)
    return new Reader(file, stats.size, path).summary()
  } finally {
    closeSync(file)
  }
}

class Reader {
  #at = 0
  #window = Buffer.alloc(0)
  #windowStart = 0

  constructor(
    private readonly file: number,
    private readonly size: number,
    private readonly path: string,
  ) {}

  summary(): GgufSummary {
    if (this.size < 24 || this.#bytes(4).readUInt32LE() !== MAGIC)
      throw new KvfoldError('model/bad-file', `${this.path} is not a GGUF file: it does not begin with "GGUF"; convert the model to GGUF first.`)
    const version = this.#bytes(4).readUInt32LE()
    if (version < 2 || version > 3)
      throw new KvfoldError('model/bad-file', `${this.path} is a GGUF of version ${version}; kvfold reads versions 2 and 3 (little-endian).`)
    const tensors = this.#count()
    const entries = this.#count()
    let alignment = 32
    for (let entry = 0; entry < entries; entry++) {
      const key = this.#string()
      const type = this.#bytes(4).readUInt32LE()
      if (key === 'general.alignment' && type === 4) alignment = this.#bytes(4).readUInt32LE()
      else this.#skipValue(type)
    }
    if (alignment <= 0 || alignment % 8 !== 0) throw this.#broken(`general.alignment is ${alignment}`)
    let end = 0
    for (let tensor = 0; tensor < tensors; tensor++) {
      this.#string()
      const dimensions = this.#bytes(4).readUInt32LE()
      if (dimensions > 8) throw this.#broken(`a tensor has ${dimensions} dimensions`)
      let elements = 1
      for (let dimension = 0; dimension < dimensions; dimension++) elements *= this.#count()
      const block = BLOCKS[this.#bytes(4).readUInt32LE()]
      const offset = this.#count()
      end = Math.max(end, offset + (block === undefined ? 0 : (elements / block[1]) * block[0]))
    }
    const data = Math.ceil(this.#at / alignment) * alignment
    if (end > 0 && data + end > this.size)
      throw new KvfoldError(
        'model/bad-file',
        `${this.path} is truncated: its tensors end at byte ${data + end}, the file at ${this.size}; download or copy it again.`,
      )
    return { version, tensors, bytes: this.size }
  }

  #broken(what: string): KvfoldError {
    return new KvfoldError('model/bad-file', `${this.path} is damaged near byte ${this.#at}: ${what}; download or copy it again.`)
  }

  #bytes(count: number): Buffer {
    if (this.#at + count > this.size) throw this.#broken('the file ends within its header')
    if (this.#at < this.#windowStart || this.#at + count > this.#windowStart + this.#window.length) {
      const want = Math.min(Math.max(count, READ), this.size - this.#at)
      const window = Buffer.alloc(want)
      let got = 0
      while (got < want) {
        const read = readSync(this.file, window, got, want - got, this.#at + got)
        if (read === 0) throw this.#broken('the file ends within its header')
        got += read
      }
      this.#window = window
      this.#windowStart = this.#at
    }
    const start = this.#at - this.#windowStart
    this.#at += count
    return this.#window.subarray(start, start + count)
  }

  #count(): number {
    const count = this.#bytes(8).readBigUInt64LE()
    if (count > BigInt(Number.MAX_SAFE_INTEGER)) throw this.#broken(`a count of ${count}`)
    return Number(count)
  }

  #skip(count: number): void {
    if (this.#at + count > this.size) throw this.#broken('the file ends within its header')
    this.#at += count
  }

  #string(): string {
    const length = this.#count()
    if (length > this.size) throw this.#broken(`a text of ${length} bytes`)
    return this.#bytes(length).toString('utf8')
  }

  #skipValue(type: number): void {
    const scalar = SCALARS[type]
    if (scalar !== undefined) {
      this.#skip(scalar)
    } else if (type === 8) {
      this.#skip(this.#count())
    } else if (type === 9) {
      const inner = this.#bytes(4).readUInt32LE()
      const count = this.#count()
      const size = SCALARS[inner]
      if (size !== undefined) this.#skip(size * count)
      else for (let index = 0; index < count; index++) this.#skipValue(inner)
    } else throw this.#broken(`a metadata value of unknown type ${type}`)
  }
}
