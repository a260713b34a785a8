/** Owns which npm packages kvfold needs to run: what its dependencies lead to as they are installed, nothing for development. */
import { lstat, readFile } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'
import { KvfoldError } from '../../core/errors.js'

export interface Package {
  readonly name: string
  readonly version: string
  /** SPDX, or what the package says instead. */
  readonly license: string
  /** Absolute. */
  readonly folder: string
}

interface Manifest {
  readonly name?: string
  readonly version?: string
  readonly license?: unknown
  readonly os?: readonly string[]
  readonly cpu?: readonly string[]
  readonly libc?: readonly string[]
  readonly dependencies?: Readonly<Record<string, string>>
  readonly optionalDependencies?: Readonly<Record<string, string>>
  readonly peerDependencies?: Readonly<Record<string, string>>
  readonly peerDependenciesMeta?: Readonly<Record<string, { readonly optional?: boolean }>>
}

/**
 * The packages that the one in `root` needs, itself first. It goes by what is installed and not by a lock file, which npm does not publish.
 * Optional packages that are not there, are for other machines, or that `wanted` refuses, are left out.
 * @throws KvfoldError bundle/unsuitable when one is missing, or is a link (pnpm)
 */
export async function productionPackages(root: string, wanted: (name: string) => boolean): Promise<Package[]> {
  const found = new Map<string, Package>()
  const visit = async (folder: string): Promise<void> => {
    if (found.has(folder)) return
    const manifest = await readManifest(folder)
    const { name = '', version = '', license } = manifest
    found.set(folder, { name, version, license: typeof license === 'string' ? license : 'see its folder', folder })
    for (const { name: needed, optional } of needs(manifest)) {
      const at = await installed(needed, folder)
      if (at === null) {
        if (optional) continue
        throw new KvfoldError('bundle/unsuitable', `The package ${needed} is not installed (${name} needs it); run npm ci.`)
      }
      if (optional && !(wanted(needed) && fits(needed, await readManifest(at)))) continue
      if ((await lstat(at)).isSymbolicLink())
        throw new KvfoldError(
          'bundle/unsuitable',
          `The package ${needed} is a link (${at}), which a bundle cannot hold; install kvfold with npm.`,
        )
      await visit(at)
    }
  }
  await visit(root)
  return [...found.values()]
}

/** The folder that holds all packages: `root`, or the project whose node_modules kvfold is installed in. */
export function commonFolder(packages: readonly Package[]): string {
  return packages.reduce((base, { folder }) => {
    while (relative(base, folder).startsWith('..')) base = dirname(base)
    return base
  }, packages[0]!.folder)
}

function needs(manifest: Manifest): { name: string; optional: boolean }[] {
  const { dependencies = {}, optionalDependencies = {}, peerDependencies = {}, peerDependenciesMeta = {} } = manifest
  const peers = Object.keys(peerDependencies).filter((name) => peerDependenciesMeta[name]?.optional !== true)
  const optional = new Set(Object.keys(optionalDependencies))
  return [...Object.keys(dependencies).filter((name) => !optional.has(name)), ...peers]
    .map((name) => ({ name, optional: false }))
    .concat([...optional].map((name) => ({ name, optional: true })))
}

/** Where Node would find it. */
async function installed(name: string, from: string): Promise<string | null> {
  for (let folder = from; ; folder = dirname(folder)) {
    const candidate = join(folder, 'node_modules', name)
    if ((await lstat(join(candidate, 'package.json')).catch(() => null)) !== null) return candidate
    if (dirname(folder) === folder) return null
  }
}

/** Whether a package is for this kind of machine. Some say only by their names that they are for musl. */
function fits(name: string, { os = [], cpu = [], libc = [] }: Manifest): boolean {
  const allows = (list: readonly string[], value: string): boolean =>
    !list.includes(`!${value}`) && (list.every((item) => item.startsWith('!')) || list.includes(value))
  return allows(os, process.platform) && allows(cpu, process.arch) && allows(libc, 'glibc') && !/-musl(eabi(hf)?)?$/.test(name)
}

async function readManifest(folder: string): Promise<Manifest> {
  return JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as Manifest
}
