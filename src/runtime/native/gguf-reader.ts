/** Reads a GGUF file's header, metadata and tensor table unchanged, and checks every count and length against the file. */
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import { shortened } from './addon.js'

const READ = 1 << 20
/** Numbers of value types in gguf_type (gguf.h). */
export const TYPE = { u16: 2, u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 } as const
/** Bytes of a metadata value, by gguf_type; strings and arrays, which have no fixed size, are missing. */
const SCALARS: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }
/** The most dimensions of a tensor, ggml's GGML_MAX_DIMS. */
const MOST_DIMENSIONS = 4
/** Longer metadata lists are dropped, except those in KEPT_LISTS, whose items a check needs. */
const KEPT_ITEMS = 4096
const KEPT_LISTS: readonly string[] = ['tokenizer.ggml.tokens', 'tokenizer.ggml.token_type']

export type GgufEntry =
  | { readonly kind: 'number'; readonly type: number; readonly value: number }
  | { readonly kind: 'text'; readonly value: string }
  /** `item` is the gguf_type of the items. `items` is null if the list is too long to keep. Strings are Latin-1, one character per byte. */
  | { readonly kind: 'list'; readonly item: number; readonly count: number; readonly items: readonly (number | string)[] | null }

export interface GgufTensorInfo {
  readonly name: string
  /** The sizes of the tensor's dimensions, fastest dimension first; each is 1 or more. */
  readonly shape: readonly number[]
  /** The number format, as ggml_type. */
  readonly type: number
  /** Bytes from the aligned end of the header to the tensor's data. */
  readonly offset: number
}

export interface GgufHeader {
  readonly path: string
  /** Bytes of the file. */
  readonly size: number
  readonly metadata: ReadonlyMap<string, GgufEntry>
  readonly tensors: readonly GgufTensorInfo[]
  /** Byte at which the header ends, before alignment. */
  readonly end: number
}

/** Reads the header of a GGUF file. @throws KvfoldError model/not-found, or model/bad-file with what is wrong and where */
export function readHeader(path: string): GgufHeader {
  let file: number
  try {
    // Check the kind of file before opening it: opening a named pipe would wait for a writer.
    if (!statSync(path).isFile())
      throw new KvfoldError('model/bad-file', `${path} is not a regular file; give the path of a .gguf file.`)
    file = openSync(path, 'r')
  } catch (error) {
    if (error instanceof KvfoldError) throw error
    const { code = 'unknown' } = error as NodeJS.ErrnoException
    throw new KvfoldError('model/not-found', `There is no readable file at ${path} (${code}); check the path.`, {
      cause: error,
    })
  }
  try {
    return new ByteReader(file, fstatSync(file).size, path).header()
  } finally {
    closeSync(file)
  }
}

class ByteReader {
  #at = 0
  #window = Buffer.alloc(0)
  #windowStart = 0

  constructor(
    private readonly file: number,
    private readonly size: number,
    private readonly path: string,
  ) {}

  header(): GgufHeader {
    if (this.size < 24 || this.#bytes(4).toString('latin1') !== 'GGUF')
      throw new KvfoldError(
        'model/bad-file',
        `${this.path} is not a GGUF file (it does not begin with "GGUF"); convert it to GGUF first.`,
      )
    const version = this.#u32()
    if (version < 2 || version > 3)
      throw new KvfoldError(
        'model/bad-file',
        `${this.path} is a GGUF of version ${version}; kvfold reads versions 2 and 3, little-endian.`,
      )
    const count = this.#u64('tensors')
    const entries = this.#u64('metadata entries')
    const metadata = new Map<string, GgufEntry>()
    for (let entry = 0; entry < entries; entry++) {
      const key = this.#text('utf8')
      if (metadata.has(key)) throw this.#broken(`it names the metadata key ${shortened(JSON.stringify(key))} twice`)
      metadata.set(key, this.#value(key, this.#u32()))
    }
    const tensors: GgufTensorInfo[] = []
    const names = new Set<string>()
    for (let index = 0; index < count; index++) {
      const tensor = this.#tensor()
      if (names.has(tensor.name)) throw this.#broken(`it holds the tensor ${shown(tensor.name)} twice`)
      names.add(tensor.name)
      tensors.push(tensor)
    }
    return { path: this.path, size: this.size, metadata, tensors, end: this.#at }
  }

  #tensor(): GgufTensorInfo {
    const name = this.#text('utf8')
    const dimensions = this.#u32()
    if (dimensions > MOST_DIMENSIONS) throw this.#broken(`tensor ${shown(name)} has ${dimensions} dimensions`)
    const shape = Array.from({ length: dimensions }, () => this.#count())
    if (shape.includes(0)) throw this.#broken(`tensor ${shown(name)} of ${shape.join(' x ')} is empty`)
    return { name, shape, type: this.#u32(), offset: this.#count() }
  }

  #value(key: string, type: number): GgufEntry {
    if (type === TYPE.string) return { kind: 'text', value: this.#text('utf8') }
    if (type === TYPE.array) return this.#list(key)
    return { kind: 'number', type, value: this.#number(type) }
  }

  #list(key: string): GgufEntry {
    const item = this.#u32()
    const count = this.#u64('values in a list')
    const kept = count <= KEPT_ITEMS || KEPT_LISTS.includes(key)
    const scalar = SCALARS[item]
    if (item === TYPE.string) {
      if (kept) return { kind: 'list', item, count, items: Array.from({ length: count }, () => this.#text('latin1')) }
      for (let index = 0; index < count; index++) this.#skip(this.#count())
    } else if (scalar === undefined) throw this.#broken(`a list has the unknown type ${item}`)
    else if (kept) return { kind: 'list', item, count, items: Array.from({ length: count }, () => this.#number(item)) }
    else this.#skip(scalar * count)
    return { kind: 'list', item, count, items: null }
  }

  /** Reads a number; numbers of 64 bits are rounded. */
  #number(type: number): number {
    const size = SCALARS[type]
    if (size === undefined) throw this.#broken(`a metadata value has the unknown type ${type}`)
    const bytes = this.#bytes(size)
    if (type === TYPE.f32) return bytes.readFloatLE()
    if (type === 12) return bytes.readDoubleLE()
    if (type === 10) return Number(bytes.readBigUInt64LE())
    if (type === 11) return Number(bytes.readBigInt64LE())
    return type === 1 || type === 3 || type === TYPE.i32 ? bytes.readIntLE(0, size) : bytes.readUIntLE(0, size)
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

  /** Reads a count of items that each take at least one byte of the file. So a count above the file's size is refused. */
  #u64(what: string): number {
    const count = this.#count()
    if (count > this.size) throw this.#broken(`it claims ${count} ${what}`)
    return count
  }

  #count(): number {
    const count = this.#bytes(8).readBigUInt64LE()
    if (count > BigInt(Number.MAX_SAFE_INTEGER)) throw this.#broken(`it claims a count of ${count}`)
    return Number(count)
  }

  #skip(count: number): void {
    if (this.#at + count > this.size) throw this.#broken('the file ends within its header')
    this.#at += count
  }

  #text(encoding: 'utf8' | 'latin1'): string {
    return this.#bytes(this.#u64('characters in a text')).toString(encoding)
  }
}

/** Returns a tensor's name for an error message. A damaged header may contain anything, so odd names are quoted and shortened. */
const shown = (name: string): string => (/^[\w.-]{1,100}$/.test(name) ? name : shortened(JSON.stringify(name)))
