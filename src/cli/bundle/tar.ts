/** Owns tar archives of a list of files: the same bytes for the same files (no times, no owners). */
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { pack } from 'tar-stream'
import { checksumEntry, contents, sizeOf, type Entry } from './entry.js'

/** The files below the folder `name`, with the list of their checksums as the last one. */
export async function* tarOf(name: string, entries: readonly Entry[]): AsyncGenerator<Buffer> {
  const archive = pack()
  const put = async (entry: Entry, sums: Map<string, string>): Promise<void> => {
    const mode = entry.executable ? 0o755 : 0o644
    const member = archive.entry({ name: `${name}/${entry.path}`, size: sizeOf(entry), mode, mtime: new Date(0) })
    await pipeline(Readable.from(contents(entry, sums)), member)
  }
  const filling = (async () => {
    const sums = new Map<string, string>()
    for (const entry of entries) await put(entry, sums)
    await put(checksumEntry(sums), new Map())
    archive.finalize()
  })()
  // Whoever reads is told by the archive itself.
  filling.catch((error: unknown) => {
    archive.destroy(error as Error)
  })
  yield* archive as AsyncIterable<Buffer>
  await filling
}
