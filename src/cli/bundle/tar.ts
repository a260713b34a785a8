/** Owns tar archives: the bytes of a list of files, the same for the same files (no times, no owners). Format: POSIX.1-1988 (ustar). */
import { KvfoldError } from '../../core/errors.js'
import { checksumEntry, contents, sizeOf, type Entry } from './entry.js'

const BLOCK = 512

/** The files below the folder `name`, with the list of their checksums as the last one. */
export async function* tarOf(name: string, entries: readonly Entry[]): AsyncGenerator<Buffer> {
  const sums = new Map<string, string>()
  for (const entry of entries) yield* member(name, entry, sums)
  yield* member(name, checksumEntry(sums), new Map())
  yield Buffer.alloc(2 * BLOCK)
}

async function* member(name: string, entry: Entry, sums: Map<string, string>): AsyncGenerator<Buffer> {
  const size = sizeOf(entry)
  yield header(`${name}/${entry.path}`, size, entry.executable)
  yield* contents(entry, sums)
  yield Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK)
}

function header(path: string, size: number, executable: boolean): Buffer {
  const bytes = Buffer.alloc(BLOCK)
  const [prefix, rest] = split(path)
  bytes.write(rest, 0)
  bytes.write(executable ? '0000755\0' : '0000644\0', 100)
  bytes.write('0000000\0'.repeat(2), 108)
  // Eleven octal digits hold 8 GiB; larger files have GNU's binary form, which every tar of today reads.
  if (size < 8 ** 11) bytes.write(`${size.toString(8).padStart(11, '0')}\0`, 124)
  else {
    bytes[124] = 0x80
    bytes.writeBigUInt64BE(BigInt(size), 128)
  }
  bytes.write('00000000000\0', 136)
  bytes.write(' '.repeat(8), 148)
  bytes.write('0', 156)
  bytes.write('ustar\u000000', 257)
  bytes.write(prefix, 345)
  const sum = bytes.reduce((total, byte) => total + byte, 0)
  bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148)
  return bytes
}

/** A path of more than 100 bytes stands in two fields, divided at a `/`. */
function split(path: string): [prefix: string, rest: string] {
  if (Buffer.byteLength(path) <= 100) return ['', path]
  for (let at = path.indexOf('/'); at >= 0; at = path.indexOf('/', at + 1)) {
    const [prefix, rest] = [path.slice(0, at), path.slice(at + 1)]
    if (Buffer.byteLength(rest) <= 100 && Buffer.byteLength(prefix) <= 155) return [prefix, rest]
  }
  throw new KvfoldError(
    'bundle/unsuitable',
    `The path ${path} is too long for an archive; make a folder instead (without --archive).`,
  )
}
