/** Owns rows of JSON, one a line or in an array: their places in the file are found once, and each is read when it is asked for. */
import { createReadStream } from 'node:fs'
import { open } from 'node:fs/promises'
import { KvfoldError } from '../../core/errors.js'
import { length, type Span } from '../../core/span.js'

/** Where a row stands: bytes, and the line (from 1) on which it begins. */
interface Place {
  readonly bytes: Span
  readonly line: number
}

/** An array when the first character is a bracket, else JSON Lines; blank lines are no rows. */
export async function openJsonRows(file: string, name: string): Promise<Rows> {
  const places = await placesIn(file)
  const where = (index: number) => `${name}, line ${places[index]?.line ?? 0}`
  return {
    size: places.length,
    where,
    async row(index) {
      const place = places[index]
      if (place === undefined) throw new KvfoldError('eval/bad-data', `${name} has no row ${index}; it has ${places.length}.`)
      return asRow(await bytesOf(file, place.bytes), where(index))
    },
  }
}

function asRow(text: string, where: string): Row {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new KvfoldError('eval/bad-data', `${where} is not JSON (${reason}); correct it or take it out of the file.`, { cause })
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new KvfoldError('eval/bad-data', `${where} is not a JSON object; every row must be one.`)
  return value as Row
}

async function bytesOf(file: string, bytes: Span): Promise<string> {
  const handle = await open(file)
  try {
    const buffer = Buffer.alloc(length(bytes))
    await handle.read(buffer, 0, buffer.length, bytes.start)
    return buffer.toString('utf8')
  } finally {
    await handle.close()
  }
}

const [newline, quote, backslash, comma] = [0x0a, 0x22, 0x5c, 0x2c]
const [openBracket, closeBracket, openBrace, closeBrace] = [0x5b, 0x5d, 0x7b, 0x7d]
const isBlank = (byte: number): boolean => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d)

/** Finds the rows while the bytes of a file go by. */
abstract class Scan {
  readonly #places: Place[] = []
  #start: Place | null = null
  #last = 0

  abstract take(byte: number, at: number, line: number): void

  /** A row that is not closed is kept, and will then say that it is no JSON. */
  end(): Place[] {
    this.close()
    return this.#places
  }

  /** The byte belongs to a row, the first one of which begins it. */
  protected grow(at: number, line: number): void {
    this.#start ??= { bytes: { start: at, end: at }, line }
    this.#last = at + 1
  }

  protected close(): void {
    if (this.#start !== null) this.#places.push({ ...this.#start, bytes: { start: this.#start.bytes.start, end: this.#last } })
    this.#start = null
  }
}

async function placesIn(file: string): Promise<Place[]> {
  let scan: Scan | undefined
  let at = 0
  let line = 1
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 }) as AsyncIterable<Buffer>) {
    for (const byte of chunk) {
      // A byte order mark is no part of the first row.
      const skipped = scan === undefined && (isBlank(byte) || (at < 3 && byte === [0xef, 0xbb, 0xbf][at]))
      if (!skipped) {
        scan ??= byte === openBracket ? new ArrayScan() : new LineScan()
        scan.take(byte, at, line)
      }
      if (byte === newline) line++
      at++
    }
  }
  return scan?.end() ?? []
}

class LineScan extends Scan {
  take(byte: number, at: number, line: number): void {
    if (byte === newline) this.close()
    else if (!isBlank(byte)) this.grow(at, line)
  }
}

/** Elements of the outermost array, whatever they are. */
class ArrayScan extends Scan {
  #depth = 0
  #inText: 'no' | 'yes' | 'escaped' = 'no'

  take(byte: number, at: number, line: number): void {
    if (this.#inText !== 'no') {
      this.#inText = this.#inText === 'escaped' ? 'yes' : byte === backslash ? 'escaped' : byte === quote ? 'no' : 'yes'
      if (this.#depth > 0) this.grow(at, line)
      return
    }
    if (isBlank(byte)) return
    const closes = byte === closeBracket || byte === closeBrace
    if (closes) this.#depth--
    if (this.#depth === 0 && closes) this.close()
    else if (this.#depth === 1 && byte === comma) this.close()
    else if (this.#depth > 0) this.grow(at, line)
    if (byte === openBracket || byte === openBrace) this.#depth++
    if (byte === quote) this.#inText = 'yes'
  }
}

// What a row of a data set is, and rows of which any can be read at any time.

export type Row = Readonly<Record<string, unknown>>

/** The rows of one file. Nothing is kept open between calls. */
export interface Rows {
  readonly size: number
  /** Read when it is asked for. @throws KvfoldError eval/bad-data that says where */
  row(index: number): Promise<Row>
  /** Where the row stands, for whoever looks for it: file and line or number. */
  where(index: number): string
}
