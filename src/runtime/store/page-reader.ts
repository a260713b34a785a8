/** Owns the reading of a SQLite file without SQLite: pages as of the last commit in the WAL, and the records on them, whatever is broken beside. */
import { closeSync, existsSync, fstatSync, openSync, readSync } from 'node:fs'
import type { StoredValue } from './row-kind.js'

/*
 * See "Database File Format" in SQLite's documentation. Our files have pages of 4096 bytes without a reserved part: that is not read from the
 * header, which may be what is broken. Tables are found by what is on their leaves, as the way to them may be broken, too.
 */
const PAGE = 4096
const WAL_HEADER = 32
const FRAME_HEADER = 24
const TABLE_LEAF = 0x0d
/** The first page has the file's header before its own. */
const FILE_HEADER = 100
/** Bytes of a record that stay on its leaf, as the format has it. */
const MOST_LOCAL = PAGE - 35
const LEAST_LOCAL = Math.floor(((PAGE - 12) * 32) / 255) - 23
/** No row of ours is longer. */
const LONGEST = 2 ** 30

/** A record, as far as it could be read. Text comes as bytes that are read as UTF-8. */
export interface RawRow {
  readonly rowid: number
  readonly values: readonly StoredValue[]
}

/** Where a record stands: it can be read again, so that only few are in memory. */
export interface RowPlace {
  readonly image: Image
  /** Offset in the page. */
  readonly cell: number
}

/** A page's bytes, in the file or in the WAL. */
interface Image {
  readonly file: 'main' | 'wal'
  readonly offset: number
  /** Page number in the file, from 1. */
  readonly page: number
  /** Part of the last commit; the others are versions of before, or of a change that was not finished. */
  readonly current: boolean
}

/** Of a file that nobody changes meanwhile. Changes nothing. */
export class PageReader {
  readonly #main: number
  readonly #wal: number | null
  /** Current versions in the WAL by page. */
  readonly #committed = new Map<number, Image>()
  /** The last frame of each page that the WAL has beside the current ones. */
  readonly #others = new Map<number, Image>()
  readonly #pages: number

  constructor(path: string) {
    this.#main = openSync(path, 'r')
    this.#wal = existsSync(`${path}-wal`) ? openSync(`${path}-wal`, 'r') : null
    const size = this.#wal === null ? null : this.#readWal(this.#wal)
    const inFile = Math.ceil(fstatSync(this.#main).size / PAGE)
    // Pages behind the committed end are no part of the database.
    this.#pages = size === null ? inFile : Math.max(size, inFile)
  }

  /** Every record on a leaf of a table. `all`: of versions that are not current, too, which is where lost ones may be. */
  *rows(all = false): Generator<RowPlace> {
    for (let page = 1; page <= this.#pages; page++) {
      yield* this.#cells(this.#current(page))
      if (!all) continue
      if (this.#committed.has(page)) yield* this.#cells(this.#inMain(page))
      const other = this.#others.get(page)
      if (other !== undefined) yield* this.#cells(other)
    }
  }

  /** Null: it cannot be read. A long one whose further pages are gone may come out wrong: only its checksum tells. */
  read({ image, cell }: RowPlace): RawRow | null {
    const page = this.#bytes(image)
    const length = varint(page, cell)
    if (length === null || length.value > LONGEST) return null
    const rowid = varint(page, length.end)
    if (rowid === null) return null
    const payload = this.#payload(page, rowid.end, length.value, image)
    const values = payload === null ? null : valuesOf(payload)
    return values === null ? null : { rowid: rowid.value, values }
  }

  close(): void {
    closeSync(this.#main)
    if (this.#wal !== null) closeSync(this.#wal)
  }

  *#cells(image: Image): Generator<RowPlace> {
    const page = this.#bytes(image)
    const header = image.page === 1 ? FILE_HEADER : 0
    if (page[header] !== TABLE_LEAF) return
    const cells = Math.min(page.readUInt16BE(header + 3), Math.floor((PAGE - header - 8) / 2))
    for (let index = 0; index < cells; index++) {
      const cell = page.readUInt16BE(header + 8 + 2 * index)
      if (cell > 0 && cell < PAGE) yield { image, cell }
    }
  }

  #payload(page: Buffer, start: number, length: number, of: Image): Buffer | null {
    const rest = LEAST_LOCAL + ((length - LEAST_LOCAL) % (PAGE - 4))
    const local = length <= MOST_LOCAL ? length : rest <= MOST_LOCAL ? rest : LEAST_LOCAL
    if (start + local + (local < length ? 4 : 0) > PAGE) return null
    if (local === length) return page.subarray(start, start + length)
    const pieces = [page.subarray(start, start + local)]
    let next = page.readUInt32BE(start + local)
    for (let left = length - local; left > 0; left -= PAGE - 4) {
      if (next < 1 || next > this.#pages) return null
      const bytes = this.#bytes(of.current ? this.#current(next) : (this.#others.get(next) ?? this.#inMain(next)))
      next = bytes.readUInt32BE(0)
      pieces.push(bytes.subarray(4, 4 + Math.min(left, PAGE - 4)))
    }
    return Buffer.concat(pieces)
  }

  #current(page: number): Image {
    return this.#committed.get(page) ?? { ...this.#inMain(page), current: true }
  }

  #inMain(page: number): Image {
    return { file: 'main', offset: (page - 1) * PAGE, page, current: false }
  }

  /** Zeroes where the file has ended. */
  #bytes({ file, offset }: Image): Buffer {
    const bytes = Buffer.alloc(PAGE)
    readSync(file === 'main' ? this.#main : this.#wal!, bytes, 0, PAGE, offset)
    return bytes
  }

  /** Says how many pages the file has as of the last commit; null when the WAL has none. */
  #readWal(wal: number): number | null {
    const { size } = fstatSync(wal)
    const header = Buffer.alloc(WAL_HEADER)
    readSync(wal, header, 0, WAL_HEADER, 0)
    const magic = header.readUInt32BE(0)
    const isBig = magic === 0x377f0683
    const salts = header.subarray(16, 24)
    let sum: Sum = walSum([0, 0], header.subarray(0, 24), isBig)
    let isSound = (isBig || magic === 0x377f0682) && sumsAt(header, 24, sum)
    let pages: number | null = null
    let pending: Image[] = []
    for (let at = WAL_HEADER; at + FRAME_HEADER + PAGE <= size; at += FRAME_HEADER + PAGE) {
      const frame = Buffer.alloc(FRAME_HEADER + PAGE)
      readSync(wal, frame, 0, frame.length, at)
      const image: Image = { file: 'wal', offset: at + FRAME_HEADER, page: frame.readUInt32BE(0), current: true }
      this.#others.set(image.page, { ...image, current: false })
      // Once a frame is not the next one, none behind it is.
      isSound &&= frame.subarray(8, 16).equals(salts)
      if (isSound) sum = walSum(walSum(sum, frame.subarray(0, 8), isBig), frame.subarray(FRAME_HEADER), isBig)
      isSound &&= sumsAt(frame, 16, sum)
      if (!isSound) continue
      pending.push(image)
      const committed = frame.readUInt32BE(4)
      if (committed === 0) continue
      for (const each of pending) this.#committed.set(each.page, each)
      pending = []
      pages = committed
    }
    return pages
  }
}

type Sum = readonly [number, number]

function walSum(from: Sum, bytes: Buffer, isBig: boolean): Sum {
  let [a, b] = from
  for (let at = 0; at < bytes.length; at += 8) {
    a = (a + (isBig ? bytes.readUInt32BE(at) : bytes.readUInt32LE(at)) + b) >>> 0
    b = (b + (isBig ? bytes.readUInt32BE(at + 4) : bytes.readUInt32LE(at + 4)) + a) >>> 0
  }
  return [a, b]
}

const sumsAt = (bytes: Buffer, at: number, [a, b]: Sum): boolean =>
  bytes.readUInt32BE(at) === a && bytes.readUInt32BE(at + 4) === b

/** Null when it goes over the end, or is no number that can be told exactly. */
function varint(bytes: Buffer, from: number): { readonly value: number; readonly end: number } | null {
  const first = bytes[from] ?? 0x80
  if (first < 0x80) return { value: first, end: from + 1 }
  let value = 0n
  for (let at = from; at < Math.min(bytes.length, from + 9); at++) {
    const byte = bytes[at]!
    const isLast = at === from + 8
    value = isLast ? (value << 8n) | BigInt(byte) : (value << 7n) | BigInt(byte & 0x7f)
    if (!isLast && byte >= 0x80) continue
    const number = Number(BigInt.asIntN(64, value))
    return Number.isSafeInteger(number) && number >= 0 ? { value: number, end: at + 1 } : null
  }
  return null
}

/** Bytes of integers by serial type. */
const INTEGERS = [0, 1, 2, 3, 4, 6, 8]

function valuesOf(payload: Buffer): StoredValue[] | null {
  const header = varint(payload, 0)
  if (header === null || header.value > payload.length) return null
  const values: StoredValue[] = []
  let at = header.value
  for (let type = header.end; type < header.value;) {
    const serial = varint(payload, type)
    if (serial === null) return null
    type = serial.end
    const { value } = serial
    // What stands for a real number, or for nothing at all, is in no table of ours.
    if (value === 7 || value === 10 || value === 11) return null
    const length = value >= 12 ? Math.floor((value - 12) / 2) : (INTEGERS[value] ?? 0)
    if (at + length > payload.length) return null
    values.push(valueOf(value, payload.subarray(at, at + length)))
    at += length
  }
  return values
}

function valueOf(serial: number, bytes: Buffer): StoredValue {
  if (serial === 0) return null
  if (serial === 8 || serial === 9) return serial - 8
  if (serial >= 12) return serial % 2 === 1 ? bytes.toString() : Uint8Array.from(bytes)
  return serial === 6 ? Number(bytes.readBigInt64BE(0)) : bytes.readIntBE(0, bytes.length)
}
