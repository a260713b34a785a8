/** Owns the Node that goes into a bundle: the one that runs us, and the C++ library it runs on. */
import { readFile } from 'node:fs/promises'
import { KvfoldError } from '../../core/errors.js'
import { beyondC, type Elf, highest, readElf } from './requirements.js'

/** Come with the bundle, as not every machine has them, or has them old. */
const CPP_LIBRARIES = ['libgcc_s.so.1', 'libstdc++.so.6'] as const

export interface NodeProgram {
  readonly file: string
  readonly elf: Elf
  /** The C++ library as loaded in this process. */
  readonly libraries: readonly { readonly name: string; readonly file: string; readonly elf: Elf }[]
  /** N of the C++ library's version 6.0.N. */
  readonly libraryMinor: number
}

/** @throws KvfoldError bundle/unsuitable when this Node needs libraries of its distribution, or does not run on glibc */
export async function nodeProgram(file: string = process.execPath): Promise<NodeProgram> {
  if (process.platform !== 'linux')
    throw new KvfoldError(
      'bundle/unsuitable',
      'A bundle runs on Linux and can only be made there, on a machine of the same kind.',
    )
  const elf = readElf(file)
  if (elf === null) throw new KvfoldError('bundle/unsuitable', `${file} is not a program of 64 bits; use Node from nodejs.org.`)
  if (elf.interpreter === null || elf.interpreter.includes('musl'))
    throw new KvfoldError(
      'bundle/unsuitable',
      `${file} does not run on glibc, as llama.cpp's libraries do; use Node from nodejs.org.`,
    )
  const foreign = beyondC(elf).filter((library) => !(CPP_LIBRARIES as readonly string[]).includes(library))
  if (foreign.length > 0)
    throw new KvfoldError(
      'bundle/unsuitable',
      `${file} needs libraries that other machines lack (${foreign.join(', ')}); run this command with Node from nodejs.org.`,
    )
  const loaded = await loadedFiles()
  const libraries = CPP_LIBRARIES.map((name) => {
    const at = loaded.find((path) => path.slice(path.lastIndexOf('/') + 1).startsWith(name))
    const found = at === undefined ? null : readElf(at)
    if (at === undefined || found === null)
      throw new KvfoldError('bundle/unsuitable', `${file} does not use ${name}; run this command with Node from nodejs.org.`)
    return { name, file: at, elf: found }
  })
  // libstdc++.so.6.0.N is the one whose latest symbols are GLIBCXX_3.4.N.
  const latest = highest(libraries.at(-1)!.elf.hasVersions, 'GLIBCXX_')
  const [, minor] = /^3\.4\.(\d+)$/.exec(latest ?? '') ?? []
  if (minor === undefined)
    throw new KvfoldError('bundle/unsuitable', `${libraries.at(-1)!.file} has versions that are not known (${latest ?? 'none'}).`)
  return { file, elf, libraries, libraryMinor: Number(minor) }
}

/** Files mapped into this process, links resolved. */
async function loadedFiles(): Promise<string[]> {
  const maps = await readFile('/proc/self/maps', 'utf8')
  return [...new Set(maps.split('\n').flatMap((line) => /\s(\/.*)$/.exec(line)?.[1] ?? []))]
}
