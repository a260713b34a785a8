/** What a bundle's binaries need on the target machine, and the Node program that goes into the bundle. */
import { spawnSync } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { KvfoldError } from '../../core/errors.js'

/** File names of glibc's libraries. A machine with glibc has all of them. */
const C_LIBRARY = /^(lib(c|m|dl|pthread|rt|util|resolv)\.so\.\d+|ld-linux[\w-]*\.so\.\d+)$/

export interface Binary {
  /** Path within the bundle. */
  readonly path: string
  readonly elf: Elf
}

export interface Requirements {
  /** The oldest glibc that suffices on a machine whose C++ library is new enough, for example `2.34`. */
  readonly glibc: string
  /** The oldest C++ library that suffices: the N of libstdc++ 6.0.N. */
  readonly cppMinor: number
  /**
   * The oldest glibc that suffices on a machine whose C++ library is too old or missing. There the bundle's own C++ library is used, which
   * may need a newer glibc.
   */
  readonly glibcForOurs: string
  /** Libraries that the machine must have. For each, the files that need it. */
  readonly missing: ReadonlyMap<string, readonly string[]>
}

/** For CXXABI_1.3.K: the N of the first libstdc++ 6.0.N that has it. Source: GCC's manual, "ABI Policy and Guidelines". */
const CPP_MINOR_OF_ABI: ReadonlyMap<string, number> = new Map([
  ['1.3.12', 26],
  ['1.3.13', 29],
  ['1.3.14', 31],
  ['1.3.15', 33],
])

/** The C++ libraries that the bundle contains, of version 6.0.`minor`. */
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
  // CPP_MINOR_OF_ABI may not know this version. Infinity then makes the caller require the C++ library of the machine that makes the
  // bundle, which certainly suffices.
  const ofAbi = abi === null || !later(abi, '1.3.11') ? 0 : (CPP_MINOR_OF_ABI.get(abi) ?? Infinity)
  return Math.max(ofAbi, Number(/^3\.4\.(\d+)$/.exec(library ?? '')?.[1] ?? 0))
}

/** Returns the libraries that `elf` needs beside glibc. */
const beyondC = (elf: Elf): string[] => elf.needs.filter((library) => !C_LIBRARY.test(library))

/**
 * Returns the highest version after `prefix`, for example `2.28` for `GLIBC_2.28`. Names without a number, such as `GLIBC_PRIVATE`, are
 * ignored.
 */
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

// Reads ELF files with readelf (binutils): which libraries and symbol versions a binary needs.

interface Elf {
  /** The processor in readelf's words, for example `Advanced Micro Devices X86-64`. */
  readonly machine: string
  /** The dynamic loader that a program asks for; null for libraries and static programs. */
  readonly interpreter: string | null
  /** File names of the libraries that it needs, for example `libc.so.6`. */
  readonly needs: readonly string[]
  /** Symbol versions that it needs, for example `GLIBC_2.28`. */
  readonly needsVersions: readonly string[]
  /** Symbol versions that it provides, for example `GLIBCXX_3.4.30`. */
  readonly hasVersions: readonly string[]
}

/**
 * Reads the ELF data of a file. Returns null when it is not a 64-bit little-endian ELF file. @throws KvfoldError bundle/unsuitable without
 * readelf
 */
export function readElf(path: string): Elf | null {
  const { error, stdout } = spawnSync('readelf', ['-hldVW', path], {
    ...{ encoding: 'utf8', maxBuffer: 2 ** 28, stdio: ['ignore', 'pipe', 'ignore'] },
    env: { ...process.env, LC_ALL: 'C' },
  })
  if (error !== undefined)
    throw new KvfoldError(
      'bundle/unsuitable',
      `Making a bundle needs the program readelf, which cannot be run here (${error.message}); install binutils.`,
      { cause: error },
    )
  if (!/Class: +ELF64/.test(stdout) || !/Data: .*little endian/.test(stdout)) return null
  const all = (text: string, pattern: RegExp): string[] => [...text.matchAll(pattern)].map((match) => match[1]!)
  const versions = (section: string): string[] =>
    all(stdout, new RegExp(`^Version ${section} section ([^]*?)(?:^$|(?![^]))`, 'gm')).flatMap((text) =>
      all(text, / Name: (\S+)/g),
    )
  return {
    machine: all(stdout, /Machine: +(.+)/g)[0] ?? '',
    interpreter: all(stdout, /program interpreter: (.+)\]/g)[0] ?? null,
    needs: all(stdout, /\(NEEDED\) +Shared library: \[(.+)\]/g),
    needsVersions: versions('needs'),
    hasVersions: versions('definition'),
  }
}

/** The C++ libraries that go into a bundle, because some machines lack them or have old ones. */
const CPP_LIBRARIES = ['libgcc_s.so.1', 'libstdc++.so.6'] as const

export interface NodeProgram {
  readonly file: string
  readonly elf: Elf
  /** The C++ libraries that this process has loaded. */
  readonly libraries: readonly { readonly name: string; readonly file: string; readonly elf: Elf }[]
  /** The version of the C++ library: the N in 6.0.N. */
  readonly libraryMinor: number
}

/**
 * Examines the Node program that goes into the bundle. @throws KvfoldError bundle/unsuitable when it needs libraries of this machine's
 * distribution, or does not run on glibc
 */
export async function nodeProgram(file: string = process.execPath): Promise<NodeProgram> {
  if (process.platform !== 'linux')
    throw new KvfoldError('bundle/unsuitable', 'A bundle can only be made on Linux, on the kind of machine that will run it.')
  const elf = readElf(file)
  if (elf === null) throw new KvfoldError('bundle/unsuitable', `${file} is not a 64-bit program; use Node from nodejs.org.`)
  if (elf.interpreter === null || elf.interpreter.includes('musl'))
    throw new KvfoldError(
      'bundle/unsuitable',
      `${file} does not use glibc, which llama.cpp's libraries need; use Node from nodejs.org.`,
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
  // libstdc++.so.6.0.N is the release whose newest symbols are GLIBCXX_3.4.N.
  const latest = highest(libraries.at(-1)!.elf.hasVersions, 'GLIBCXX_')
  const [, minor] = /^3\.4\.(\d+)$/.exec(latest ?? '') ?? []
  if (minor === undefined)
    throw new KvfoldError(
      'bundle/unsuitable',
      `${libraries.at(-1)!.file} has symbol versions that kvfold does not know (${latest ?? 'none'}).`,
    )
  return { file, elf, libraries, libraryMinor: Number(minor) }
}

/** Lists the files that are mapped into this process. Links are resolved. */
async function loadedFiles(): Promise<string[]> {
  const maps = await readFile('/proc/self/maps', 'utf8')
  return [...new Set(maps.split('\n').flatMap((line) => /\s(\/.*)$/.exec(line)?.[1] ?? []))]
}
