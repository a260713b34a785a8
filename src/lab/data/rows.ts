/**
 * Reads data sets row by row, from JSON Lines, a JSON array, TSV, CSV or Parquet. A file is on disk, or is downloaded once from the Hugging
 * Face hub.
 */
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, open, readFile, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname, extname, join, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { parse } from 'csv-parse/sync'
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet'
import { KvfoldError } from '../../runtime/core/errors.js'
import { length, type Span } from '../../runtime/core/span.js'
import { writeWhole } from '../../runtime/core/whole-file.js'

/** The function that opens a file, by the extension of its name. `hf:` names have the same extensions. */
const readers: Readonly<Record<string, (file: string, name: string) => Promise<Rows>>> = {
  '.jsonl': openJsonRows,
  '.ndjson': openJsonRows,
  '.json': openJsonRows,
  '.tsv': (file, name) => openTable(file, name, '\t'),
  '.csv': (file, name) => openTable(file, name, ','),
  '.parquet': openParquet,
}

const endOf = (source: string): string => extname(source.replace(/#.*$/u, '')).toLowerCase()

/** Returns whether `openRows` can open a file with this name. */
export const isRowsFile = (source: string): boolean => Object.hasOwn(readers, endOf(source))

/**
 * Opens a file of rows. `source`: a path, or `hf:datasets/owner/name/path/of/file.parquet`, optionally followed by `#revision` (default
 * `main`).
 * @throws KvfoldError eval/bad-data when the file has an unknown format, or cannot be read or downloaded; engine/cancelled
 */
export async function openRows(source: string, options: SourceOptions = {}): Promise<Rows> {
  const read = readers[endOf(source)]
  if (read === undefined)
    throw new KvfoldError(
      'eval/bad-data',
      `${source} is not a file of rows; its name must end in one of ${Object.keys(readers).join(', ')}.`,
    )
  const file = await fileOf(source, options)
  try {
    return await read(file, source)
  } catch (cause) {
    if (cause instanceof KvfoldError) throw cause
    throw new KvfoldError(
      'eval/bad-data',
      `${source} cannot be read: ${cause instanceof Error ? cause.message : String(cause)}`,
      {
        cause,
      },
    )
  }
}

// Below: rows of a text table. Values are separated by tabs or commas, and the first line names the columns.

/** Opens a text table. All values are text. The whole table stays in memory, because such tables are small. */
async function openTable(file: string, name: string, delimiter: '\t' | ','): Promise<Rows> {
  const records = recordsOf(await readFile(file, 'utf8'), name, delimiter)
  const where = (index: number) => `${name}, line ${records[index]?.line ?? 0}`
  return {
    size: records.length,
    where,
    row(index) {
      const record = records[index]
      return record === undefined
        ? Promise.reject(new KvfoldError('eval/bad-data', `${name} has no row ${index}; it has ${records.length}.`))
        : Promise.resolve(record.row)
    },
  }
}

function recordsOf(text: string, name: string, delimiter: string): { row: Row; line: number }[] {
  try {
    const parsed: unknown = parse(text, {
      delimiter,
      columns: true,
      bom: true,
      info: true,
      skip_empty_lines: true,
      relax_quotes: true,
    })
    return (parsed as { record: Row; info: { lines: number } }[]).map(({ record, info }) => ({ row: record, line: info.lines }))
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new KvfoldError('eval/bad-data', `${name} cannot be read as a table: ${reason}`, { cause })
  }
}

// Below: rows of Parquet files. A file is read by row groups, and the last group that was read stays in memory.

/** Opens a Parquet file, uncompressed or with Snappy: the two that hyparquet reads without another package. */
async function openParquet(file: string, name: string): Promise<Rows> {
  const buffer = await asyncBufferFromFile(file)
  const metadata = await parquetMetadataAsync(buffer)
  let counted = 0
  // For each row group, the number of rows up to and including it.
  const ends = metadata.row_groups.map((group) => (counted += Number(group.num_rows)))
  const size = ends.at(-1) ?? 0
  let kept: { start: number; rows: Promise<Row[]> } | undefined
  const where = (index: number) => `${name}, row ${index}`
  return {
    size,
    where,
    async row(index) {
      const group = ends.findIndex((end) => index < end)
      if (group < 0 || index < 0) throw new KvfoldError('eval/bad-data', `${name} has no row ${index}; it has ${size}.`)
      const start = ends[group - 1] ?? 0
      if (kept?.start !== start)
        kept = { start, rows: parquetReadObjects({ file: buffer, metadata, rowStart: start, rowEnd: ends[group] ?? size }) }
      try {
        return plain((await kept.rows)[index - start] ?? {})
      } catch (cause) {
        kept = undefined
        throw new KvfoldError(
          'eval/bad-data',
          `${where(index)} cannot be read: ${cause instanceof Error ? cause.message : String(cause)}`,
          {
            cause,
          },
        )
      }
    },
  }
}

/** Returns the row with 64-bit integers as plain numbers, as JSON would have them. */
const plain = (row: Row): Row =>
  Object.fromEntries(Object.entries(row).map(([key, value]) => [key, typeof value === 'bigint' ? Number(value) : value]))

export interface SourceOptions {
  /** The folder for downloads. Default: node-llama-cpp's model folder. */
  readonly folder?: string
  /** The hub's address. Default: HF_ENDPOINT, else https://huggingface.co. */
  readonly endpoint?: string
  readonly signal?: AbortSignal
}

/** A file of a data set on the hub. */
interface HubFile {
  readonly repository: string
  readonly path: string
  readonly revision: string
}

const FORM = 'hf:datasets/owner/name/path/of/file.parquet'
const SCHEME = /^(?:hf|huggingface):/iu

const downloads = (): string => join(homedir(), '.node-llama-cpp', 'models')

/**
 * Returns the path of a local file. Downloads `hf:datasets/owner/name/path#revision` unless the download folder has that file already.
 * HF_TOKEN gives access to private data sets.
 * @throws KvfoldError eval/bad-data when neither disk nor hub has the file, or the hub cannot be reached; engine/cancelled on `signal`
 */
export async function fileOf(source: string, options: SourceOptions = {}): Promise<string> {
  const hub = hubFile(source)
  const path = hub === null ? resolve(source) : keptAt(hub, options.folder ?? downloads())
  const found = await stat(path).catch(() => null)
  if (found?.isFile() === true) return path
  if (hub === null)
    throw new KvfoldError('eval/bad-data', `The file ${path} does not exist; give the path of a data file, or ${FORM}.`)
  try {
    await download(hub, path, options)
  } catch (cause) {
    if (options.signal?.aborted === true)
      throw new KvfoldError('engine/cancelled', `The download of ${source} was cancelled.`, { cause })
    const reason = cause instanceof Error ? cause.message.split('\n', 1)[0] : String(cause)
    throw new KvfoldError(
      'eval/bad-data',
      `${source} could not be downloaded (${reason}). Check the name and the network, or give the path of a file.`,
      { cause },
    )
  }
  return path
}

function hubFile(source: string): HubFile | null {
  if (!SCHEME.test(source)) return null
  const [name = '', revision = 'main'] = source.replace(SCHEME, '').split('#')
  const [kind, owner, repository, ...path] = name.split('/')
  const parts = [owner, repository, ...path]
  const wrong =
    parts.some((part) => part === undefined || part === '' || part === '.' || part === '..') || /[\\/]|^\.*$/u.test(revision)
  if (kind !== 'datasets' || path.length === 0 || wrong)
    throw new KvfoldError('eval/bad-data', `${source} does not name a file of a data set; the form is ${FORM}.`)
  return { repository: `${owner ?? ''}/${repository ?? ''}`, path: path.join('/'), revision }
}

const keptAt = ({ repository, path, revision }: HubFile, folder: string): string =>
  join(folder, `datasets--${repository.replace('/', '--')}`, revision, ...path.split('/'))

/** Downloads a file from the hub. It appears at `to` complete or not at all. */
async function download({ repository, path, revision }: HubFile, to: string, { endpoint, signal }: SourceOptions): Promise<void> {
  const { downloadFile } = await import('@huggingface/hub')
  const hubUrl = endpoint ?? process.env['HF_ENDPOINT']
  const accessToken = process.env['HF_TOKEN']
  const blob = await downloadFile({
    repo: { type: 'dataset', name: repository },
    path,
    revision,
    fetch: (url, init) => fetch(url, { ...init, ...(signal === undefined ? {} : { signal }) }),
    ...(hubUrl === undefined ? {} : { hubUrl: hubUrl.replace(/\/+$/u, '') }),
    ...(accessToken === undefined ? {} : { accessToken }),
  })
  if (blob === null) throw new Error(`${repository} on the hub has no file ${path}`)
  await mkdir(dirname(to), { recursive: true })
  await writeWhole(to, (temporary) =>
    pipeline(Readable.fromWeb(blob.stream()), createWriteStream(temporary), {
      ...(signal === undefined ? {} : { signal }),
    }),
  )
}

// Below: rows of JSON, one per line or all in an array. One pass finds the byte spans of all rows; a row is read from disk when it is
// needed.

/** Where a row is in its file: its byte span, and the line (from 1) on which it begins. */
interface DataRowPlace {
  readonly bytes: Span
  readonly line: number
}

/** Opens rows of JSON. A file that begins with `[` is an array. Any other is JSON Lines, in which blank lines do not count. */
async function openJsonRows(file: string, name: string): Promise<Rows> {
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
    throw new KvfoldError('eval/bad-data', `${where} is not JSON (${reason}); correct it, or remove it from the file.`, { cause })
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

/** Finds the positions of the rows while a file's bytes pass through `take`. */
abstract class Scan {
  readonly #places: DataRowPlace[] = []
  #start: DataRowPlace | null = null
  #last = 0

  abstract take(byte: number, at: number, line: number): void

  /** Returns the positions of all rows, including an incomplete last row. Reading that row throws that it is not JSON. */
  end(): DataRowPlace[] {
    this.close()
    return this.#places
  }

  /** Adds the byte at offset `at` to the current row; begins a row if there is none. */
  protected grow(at: number, line: number): void {
    this.#start ??= { bytes: { start: at, end: at }, line }
    this.#last = at + 1
  }

  protected close(): void {
    if (this.#start !== null) this.#places.push({ ...this.#start, bytes: { start: this.#start.bytes.start, end: this.#last } })
    this.#start = null
  }
}

async function placesIn(file: string): Promise<DataRowPlace[]> {
  let scan: Scan | undefined
  let at = 0
  let line = 1
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 }) as AsyncIterable<Buffer>) {
    for (const byte of chunk) {
      // A byte order mark does not belong to the first row.
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

/** Finds the elements of the outermost array, objects or not. */
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

// Below: a row of a data set, and rows that can be read in any order.

export type Row = Readonly<Record<string, unknown>>

/** The rows of one file. The file is not kept open between calls. */
interface Rows {
  readonly size: number
  /** Reads the row with this index, from 0. @throws KvfoldError eval/bad-data that says where the row is */
  row(index: number): Promise<Row>
  /** Returns the file's name and the row's line or index, for error messages. */
  where(index: number): string
}
