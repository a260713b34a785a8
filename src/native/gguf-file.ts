/** Owns the look at a GGUF file before llama.cpp maps it: is it one, is all of it there, and how large are its parts. */
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import type { TensorBlock } from './addon.js'

const READ = 1 << 20
/** Bytes of a metadata value, by gguf_type (gguf.h); a text and an array are none. */
const SCALARS: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }
const U16 = 2
const U32 = 4
const F32 = 6
const STRING = 8
const ARRAY = 9
/** ggml's GGML_MAX_DIMS. */
const MOST_DIMENSIONS = 4
/** Numbers that llama.cpp asserts on (llama-model.cpp, ggml-cpu/ops.cpp), by the end of their key: what it takes. */
const LIMITS: readonly { readonly key: RegExp; readonly least: number; readonly most: number }[] = [
  { key: /\.block_count$/, least: 1, most: 512 },
  { key: /\.expert_count$/, least: 0, most: 1024 },
  { key: /\.(?:layer_norm|layer_norm_rms|group_norm)_epsilon$/, least: 0, most: Number.MAX_VALUE },
]

export interface GgufFile {
  /** Bytes of all tensors, of each layer's, and of those that belong to no layer; all parts of a split model together. */
  readonly tensorBytes: number
  readonly layerBytes: readonly number[]
  readonly outerBytes: number
}

/**
 * Reads header, metadata and tensor table and checks that every tensor's bytes lie within the file; the other files of a split model too.
 * @param types blocks by ggml_type, as the loaded library knows them
 * @throws KvfoldError model/not-found, or model/bad-file with what is wrong and where
 */
export function checkGguf(path: string, types: readonly TensorBlock[]): GgufFile {
  const first = readTable(path, types)
  const tables = [first, ...siblings(path, first.parts).map((sibling) => readTable(sibling, types))]
  const layerBytes: number[] = []
  let outerBytes = 0
  for (const { tensors } of tables)
    for (const { name, bytes } of tensors) {
      const layer = /^blk\.(\d{1,5})\./.exec(name)?.[1]
      if (layer === undefined) outerBytes += bytes
      else layerBytes[Number(layer)] = (layerBytes[Number(layer)] ?? 0) + bytes
    }
  const layers = Array.from(layerBytes, (bytes: number | undefined) => bytes ?? 0)
  return { tensorBytes: layers.reduce((sum, bytes) => sum + bytes, outerBytes), layerBytes: layers, outerBytes }
}

/** The other files of a model in `parts` files; llama.cpp finds them by name from the first. */
function siblings(path: string, parts: number): string[] {
  if (parts < 2) return []
  const match = /^(.*)-00001-of-(\d{5})\.gguf$/.exec(path)
  if (match === null || Number(match[2]) !== parts)
    throw new KvfoldError(
      'model/bad-file',
      `${path} is one of ${parts} files of a split model; give the first, whose name ends in -00001-of-${String(parts).padStart(5, '0')}.gguf.`,
    )
  const [, stem = '', count = ''] = match
  return Array.from({ length: parts - 1 }, (_, index) => `${stem}-${String(index + 2).padStart(5, '0')}-of-${count}.gguf`)
}

interface Table {
  readonly tensors: readonly { readonly name: string; readonly bytes: number }[]
  /** Files of a split model; 1 for a whole one. */
  readonly parts: number
}

function readTable(path: string, types: readonly TensorBlock[]): Table {
  let file: number
  try {
    // Asked before it is opened: opening a named pipe waits for a writer.
    if (!statSync(path).isFile())
      throw new KvfoldError('model/bad-file', `${path} is not a regular file; give the path of a .gguf file.`)
    file = openSync(path, 'r')
  } catch (error) {
    if (error instanceof KvfoldError) throw error
    const { code = 'unknown' } = error as NodeJS.ErrnoException
    throw new KvfoldError('model/not-found', `There is no readable model file at ${path} (${code}); check the path.`, {
      cause: error,
    })
  }
  try {
    return new Reader(file, fstatSync(file).size, path, types).table()
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
    private readonly types: readonly TensorBlock[],
  ) {}

  table(): Table {
    if (this.size < 24 || this.#bytes(4).toString('latin1') !== 'GGUF')
      throw new KvfoldError(
        'model/bad-file',
        `${this.path} is not a GGUF file (it does not begin with "GGUF"); convert the model to GGUF first.`,
      )
    const version = this.#u32()
    if (version < 2 || version > 3)
      throw new KvfoldError(
        'model/bad-file',
        `${this.path} is a GGUF of version ${version}; kvfold reads versions 2 and 3, little-endian.`,
      )
    const count = this.#u64('tensors')
    const entries = this.#u64('metadata entries')
    let alignment = 32
    let parts = 1
    for (let entry = 0; entry < entries; entry++) {
      const key = this.#string()
      const type = this.#u32()
      if (key === 'general.alignment' && type === U32) alignment = this.#u32()
      else if (key === 'split.count' && type === U16) parts = this.#bytes(2).readUInt16LE()
      else if ((key === 'general.type' || key === 'general.architecture') && type === STRING) this.#refuseKind(this.#string())
      else if (key === 'tokenizer.ggml.tokens' && type === ARRAY) this.#checkTokens()
      else if (type === U32) this.#checkNumber(key, this.#u32())
      else if (type === F32) this.#checkNumber(key, this.#bytes(4).readFloatLE())
      else this.#skipValue(type)
    }
    if (alignment === 0 || (alignment & (alignment - 1)) !== 0) throw this.#broken(`an alignment of ${alignment}`)
    const tensors = Array.from({ length: count }, () => this.#tensor())
    const start = Math.ceil(this.#at / alignment) * alignment
    const end = tensors.reduce((most, { offset, bytes }) => Math.max(most, start + offset + bytes), start)
    if (tensors.length > 0 && end > this.size)
      throw new KvfoldError(
        'model/bad-file',
        `${this.path} is truncated: its tensors end at byte ${end}, the file at ${this.size}; download or copy it again.`,
      )
    return { tensors, parts }
  }

  #tensor(): { readonly name: string; readonly offset: number; readonly bytes: number } {
    const name = this.#string()
    const dimensions = this.#u32()
    if (dimensions > MOST_DIMENSIONS) throw this.#broken(`tensor ${name} has ${dimensions} dimensions`)
    let elements = 1
    for (let dimension = 0; dimension < dimensions; dimension++) elements *= this.#count()
    const type = this.#u32()
    const [bytes, block] = this.types[type] ?? [0, 0]
    if (bytes === 0 || block === 0) throw this.#broken(`tensor ${name} has type ${type}, which this llama.cpp does not know`)
    return { name, offset: this.#count(), bytes: (elements / block) * bytes }
  }

  /** Files that are no language model by themselves. */
  #refuseKind(kind: string): void {
    const unsupported = { adapter: 'a LoRA adapter', mmproj: 'a multimodal projector', clip: 'a multimodal projector' }[kind]
    if (unsupported !== undefined)
      throw new KvfoldError(
        'native/unsupported',
        `${this.path} is ${unsupported}, which kvfold does not support yet; give a language model.`,
      )
  }

  #checkNumber(key: string, value: number): void {
    const limit = LIMITS.find((one) => one.key.test(key))
    if (limit !== undefined && !(value >= limit.least && value <= limit.most)) throw this.#broken(`${key} is ${value}`)
  }

  /** llama.cpp ends the process on a vocabulary that names a token twice; empty ones it names itself. */
  #checkTokens(): void {
    const type = this.#u32()
    const count = this.#u64('tokens')
    if (type !== STRING) throw this.#broken(`a token list of type ${type}`)
    const seen = new Set<string>()
    for (let token = 0; token < count; token++) {
      const text = this.#bytes(this.#u64('characters in a token')).toString('latin1')
      if (text !== '' && seen.has(text)) throw this.#broken(`the vocabulary names token ${token} (${JSON.stringify(text)}) twice`)
      seen.add(text)
    }
  }

  #broken(what: string): KvfoldError {
    return new KvfoldError('model/bad-file', `${this.path} is damaged near byte ${this.#at}: ${what}; download or copy it again.`)
  }

  #bytes(count: number): Buffer {
    if (this.#at + count > this.size) throw this.#broken('the file ends within its header')
    if (this.#at < this.#windowStart || this.#at + count > this.#windowStart + this.#window.length) {
      const window = Buffer.alloc(Math.min(Math.max(count, READ), this.size - this.#at))
      for (let got = 0; got < window.length;) {
        const read = readSync(this.file, window, got, window.length - got, this.#at + got)
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

  #u32(): number {
    return this.#bytes(4).readUInt32LE()
  }

  /** A number of things that each take at least a byte of the file. */
  #u64(what: string): number {
    const count = this.#count()
    if (count > this.size) throw this.#broken(`${count} ${what}`)
    return count
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
    return this.#bytes(this.#u64('characters in a text')).toString('utf8')
  }

  #skipValue(type: number): void {
    const scalar = SCALARS[type]
    if (scalar !== undefined) this.#skip(scalar)
    else if (type === STRING) this.#skip(this.#count())
    else if (type === ARRAY) this.#skipArray()
    else throw this.#broken(`a metadata value of unknown type ${type}`)
  }

  #skipArray(): void {
    const type = this.#u32()
    const count = this.#u64('values in a list')
    const scalar = SCALARS[type]
    if (scalar !== undefined) this.#skip(scalar * count)
    else if (type === STRING) for (let index = 0; index < count; index++) this.#skip(this.#count())
    else throw this.#broken(`a list of unknown type ${type}`)
  }
}
