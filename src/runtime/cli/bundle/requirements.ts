/** Owns what a bundle's programs and libraries ask of the machine they run on, and the Node that goes into it for them. */
import { closeSync, openSync, readSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { KvfoldError } from '../../core/errors.js'

/** The parts of glibc; a machine that runs programs has them all. */
const C_LIBRARY = /^(lib(c|m|dl|pthread|rt|util|resolv)\.so\.\d+|ld-linux[\w-]*\.so\.\d+)$/

export interface Binary {
  /** In the bundle. */
  readonly path: string
  readonly elf: Elf
}

export interface Requirements {
  /** The oldest glibc that will do, where the machine has a C++ library that is new enough; e.g. `2.34`. */
  readonly glibc: string
  /** The oldest C++ library that will do: N of libstdc++ 6.0.N. */
  readonly cppMinor: number
  /** The oldest glibc for machines with an older C++ library, or none, which use the bundle's. */
  readonly glibcForOurs: string
  /** Libraries that must be on the machine, with who needs them. */
  readonly missing: ReadonlyMap<string, readonly string[]>
}

/** The first libstdc++ 6.0.N with CXXABI_1.3.K. Source: GCC's manual, "ABI Policy and Guidelines". */
const CPP_MINOR_OF_ABI: ReadonlyMap<string, number> = new Map([
  ['1.3.12', 26],
  ['1.3.13', 29],
  ['1.3.14', 31],
  ['1.3.15', 33],
])

/** What a bundle brings against old C++ libraries: its own, of version 6.0.`minor`. */
interface Brought {
  readonly libraries: readonly Binary[]
  readonly minor: number
}

export function requirementsOf(binaries: readonly Binary[], { libraries, minor }: Brought): Requirements {
  const inside = new Set([...binaries, ...libraries].map(({ path }) => path.slice(path.lastIndexOf('/') + 1)))
  const missing = new Map<string, string[]>()
  for (const { path, elf } of binaries)
    for (const library of elf.needs)
      if (!C_LIBRARY.test(library) && !inside.has(library)) missing.set(library, [...(missing.get(library) ?? []), path])
  const needed = binaries.flatMap(({ elf }) => elf.needsVersions)
  const glibc = highest(needed, 'GLIBC_') ?? '2.0'
  const ours = highest(
    libraries.flatMap(({ elf }) => elf.needsVersions),
    'GLIBC_',
  )
  const glibcForOurs = ours !== null && later(ours, glibc) ? ours : glibc
  return { glibc, cppMinor: Math.min(cppMinor(needed), minor), glibcForOurs, missing }
}

function cppMinor(versions: readonly string[]): number {
  const library = highest(versions, 'GLIBCXX_')
  const abi = highest(versions, 'CXXABI_')
  // Of one that is later than this list nobody knows more than that the maker's library has it.
  const ofAbi = abi === null || !later(abi, '1.3.11') ? 0 : (CPP_MINOR_OF_ABI.get(abi) ?? Infinity)
  return Math.max(ofAbi, Number(/^3\.4\.(\d+)$/.exec(library ?? '')?.[1] ?? 0))
}

/** The libraries that `elf` needs besides glibc. */
const beyondC = (elf: Elf): string[] => elf.needs.filter((library) => !C_LIBRARY.test(library))

/** The highest version after `prefix`, e.g. `2.28` of `GLIBC_2.28`; names that are no number (`GLIBC_PRIVATE`) do not count. */
export function highest(versions: readonly string[], prefix: string): string | null {
  const numbers = versions
    .filter((version) => version.startsWith(prefix))
    .map((version) => version.slice(prefix.length))
    .filter((version) => /^\d+(\.\d+)*$/.test(version))
  return numbers.reduce<string | null>((best, version) => (best === null || later(version, best) ? version : best), null)
}

function later(version: string, than: string): boolean {
  const [a, b] = [version, than].map((text) => text.split('.').map(Number)) as [number[], number[]]
  const at = a.findIndex((part, index) => part !== (b[index] ?? 0))
  return at >= 0 && a[at]! > (b[at] ?? 0)
}

// The reading of ELF files: which libraries a program or library needs, and which versions of their symbols.

interface Elf {
  /** Of the header, e.g. 62 for x86-64. */
  readonly machine: number
  /** The dynamic loader a program names; null for libraries and static programs. */
  readonly interpreter: string | null
  /** File names, e.g. `libc.so.6`. */
  readonly needs: readonly string[]
  /** Versions of symbols it needs, e.g. `GLIBC_2.28`. */
  readonly needsVersions: readonly string[]
  /** Versions of symbols it has itself, e.g. `GLIBCXX_3.4.30`. */
  readonly hasVersions: readonly string[]
}

const LOAD = 1
const DYNAMIC = 2
const INTERPRETER = 3
const NEEDED = 1
const STRING_TABLE = 5
const VERSIONS_HAD = 0x6ffffffc
const VERSIONS_HAD_COUNT = 0x6ffffffd
const VERSIONS_NEEDED = 0x6ffffffe
const VERSIONS_NEEDED_COUNT = 0x6fffffff

/** What the file says of itself; null when it is no ELF file of 64 bits, little endian. Reads only what it needs. Layout: elf(5). */
export function readElf(path: string): Elf | null {
  const file = openSync(path, 'r')
  try {
    return new ElfFile(file).read()
  } finally {
    closeSync(file)
  }
}

class ElfFile {
  /** Where the file's parts lie in memory once loaded: addresses to offsets. */
  #loads: readonly { readonly offset: number; readonly address: number; readonly size: number }[] = []
  #strings = 0

  constructor(private readonly file: number) {}

  read(): Elf | null {
    const header = this.#bytes(0, 64)
    if (header.length < 64 || header.readUInt32BE(0) !== 0x7f454c46 || header[4] !== 2 || header[5] !== 1) return null
    const size = header.readUInt16LE(54)
    const parts = Array.from({ length: header.readUInt16LE(56) }, (_, index) => {
      const part = this.#bytes(Number(header.readBigUInt64LE(32)) + index * size, size)
      const number = (at: number): number => Number(part.readBigUInt64LE(at))
      return { type: part.readUInt32LE(0), offset: number(8), address: number(16), size: number(32) }
    })
    this.#loads = parts.filter(({ type }) => type === LOAD)
    const interpreter = parts.find(({ type }) => type === INTERPRETER)
    const dynamic = parts.find(({ type }) => type === DYNAMIC)
    const tags = dynamic === undefined ? [] : this.#tags(dynamic)
    const value = (tag: number): number => tags.find((entry) => entry.tag === tag)?.value ?? 0
    this.#strings = this.#offset(value(STRING_TABLE))
    return {
      machine: header.readUInt16LE(18),
      interpreter: interpreter === undefined ? null : this.#text(interpreter.offset),
      needs: tags.filter(({ tag }) => tag === NEEDED).map((entry) => this.#text(this.#strings + entry.value)),
      needsVersions: this.#needed(value(VERSIONS_NEEDED), value(VERSIONS_NEEDED_COUNT)),
      hasVersions: this.#had(value(VERSIONS_HAD), value(VERSIONS_HAD_COUNT)),
    }
  }

  #tags({ offset, size }: { offset: number; size: number }): { tag: number; value: number }[] {
    const bytes = this.#bytes(offset, size)
    return Array.from({ length: Math.floor(bytes.length / 16) }, (_, index) => ({
      tag: Number(bytes.readBigInt64LE(index * 16)),
      value: Number(bytes.readBigUInt64LE(index * 16 + 8)),
    }))
  }

  /** A list of libraries (Verneed), each with a list of versions (Vernaux). */
  #needed(address: number, count: number): string[] {
    const found: string[] = []
    let at = this.#offset(address)
    for (let left = count; left > 0; left--) {
      const library = this.#bytes(at, 16)
      let version = at + library.readUInt32LE(8)
      for (let versions = library.readUInt16LE(2); versions > 0; versions--) {
        const entry = this.#bytes(version, 16)
        found.push(this.#text(this.#strings + entry.readUInt32LE(8)))
        version += entry.readUInt32LE(12)
      }
      at += library.readUInt32LE(12)
    }
    return found
  }

  /** A list of versions (Verdef), the first name of each (Verdaux). */
  #had(address: number, count: number): string[] {
    const found: string[] = []
    let at = this.#offset(address)
    for (let left = count; left > 0; left--) {
      const version = this.#bytes(at, 20)
      const name = this.#bytes(at + version.readUInt32LE(12), 8)
      found.push(this.#text(this.#strings + name.readUInt32LE(0)))
      at += version.readUInt32LE(16)
    }
    return found
  }

  #offset(address: number): number {
    const load = this.#loads.find((part) => address >= part.address && address < part.address + part.size)
    return load === undefined ? 0 : address - load.address + load.offset
  }

  #text(offset: number): string {
    const bytes = this.#bytes(offset, 1024)
    const end = bytes.indexOf(0)
    return bytes.toString('latin1', 0, end < 0 ? bytes.length : end)
  }

  #bytes(offset: number, length: number): Buffer {
    const bytes = Buffer.alloc(length)
    return bytes.subarray(0, readSync(this.file, bytes, 0, length, offset))
  }
}

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
