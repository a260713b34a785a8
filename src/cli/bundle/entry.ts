/** Owns what one file of a bundle is: its place, its rights, and where its bytes come from. */
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { KvfoldError } from '../../core/errors.js'

export type Source =
  { readonly kind: 'file'; readonly file: string; readonly size: number } | { readonly kind: 'text'; readonly text: string }

export interface Entry {
  /** In the bundle, with `/`. */
  readonly path: string
  readonly executable: boolean
  readonly source: Source
}

/** The name of the list of checksums, in the form that `sha256sum -c` reads. */
export const CHECKSUMS = 'SHA256SUMS'

export const textEntry = (path: string, text: string, executable = false): Entry => ({
  path,
  executable,
  source: { kind: 'text', text },
})

export async function fileEntry(path: string, file: string, executable = false): Promise<Entry> {
  return { path, executable, source: { kind: 'file', file, size: (await stat(file)).size } }
}

/** All files below `folder` that `wanted` takes (given their path within it), placed below `path`. Links to files become files. */
export async function folderEntries(path: string, folder: string, wanted: (within: string) => boolean): Promise<Entry[]> {
  const found: Entry[] = []
  const walk = async (within: string): Promise<void> => {
    for (const item of await readdir(join(folder, within), { withFileTypes: true })) {
      const name = within === '' ? item.name : `${within}/${item.name}`
      if (!wanted(name)) continue
      if (item.isDirectory()) await walk(name)
      else if (item.isFile() || (item.isSymbolicLink() && (await stat(join(folder, name))).isFile()))
        found.push(await fileEntry(`${path}/${name}`, join(folder, name)))
    }
  }
  await walk('')
  return found
}

export const sizeOf = ({ source }: Entry): number => (source.kind === 'file' ? source.size : Buffer.byteLength(source.text))

/** By path, byte for byte, so that every machine writes the same order. */
export const inOrder = (entries: readonly Entry[]): Entry[] =>
  [...entries].sort((a, b) => Buffer.compare(Buffer.from(a.path), Buffer.from(b.path)))

/** The bytes of an entry, noting their checksum in `sums` when all are read. @throws KvfoldError when a file changes its size meanwhile */
export async function* contents(entry: Entry, sums: Map<string, string>): AsyncGenerator<Buffer> {
  const { source } = entry
  const hash = createHash('sha256')
  let length = 0
  const pieces = source.kind === 'text' ? [Buffer.from(source.text)] : createReadStream(source.file, { highWaterMark: 1 << 20 })
  for await (const piece of pieces as AsyncIterable<Buffer> | Buffer[]) {
    hash.update(piece)
    length += piece.length
    yield piece
  }
  if (length !== sizeOf(entry)) throw new KvfoldError('bundle/unsuitable', `${entry.path} changed while it was read; try again.`)
  sums.set(entry.path, hash.digest('hex'))
}

/** The list of checksums as the last file of a bundle. */
export const checksumEntry = (sums: ReadonlyMap<string, string>): Entry =>
  textEntry(CHECKSUMS, [...sums].map(([path, sum]) => `${sum}  ${path}\n`).join(''))
