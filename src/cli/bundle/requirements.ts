/** Owns what a bundle's programs and libraries ask of the machine they run on: its C library and what else they do not bring along. */
import type { Elf } from './elf.js'

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
export interface Brought {
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
export const beyondC = (elf: Elf): string[] => elf.needs.filter((library) => !C_LIBRARY.test(library))

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
