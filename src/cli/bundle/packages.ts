/** Owns which npm packages kvfold needs to run: what its dependencies lead to as they are installed, nothing for development. */
import { existsSync } from 'node:fs'
import { lstat, readFile } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import { type Entry, textEntry } from './entry.js'
import type { NodeProgram } from './requirements.js'

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

// What a bundle says about the licences of what is inside.

const FOLDER = 'LICENSES'
const NODE_TEXT = 'node.txt'
const GCC_TEXT = 'gcc.txt'

/** Whose code is compiled into the libraries of @node-llama-cpp, whose packages name only node-llama-cpp's own author; all under MIT. */
const WITHIN_LLAMA = [
  'llama.cpp and ggml: Copyright (c) 2023-2026 The ggml authors',
  'JSON for Modern C++: Copyright (c) 2013-2025 Niels Lohmann',
  'cpp-httplib: Copyright (c) 2017 yhirose',
]

export interface PlacedPackage extends Package {
  /** In the bundle. */
  readonly path: string
}

/** An index of everything inside, and the texts that do not lie in the packages' own folders. `own` is kvfold's licence, which is MIT. */
export async function licenceEntries(
  node: NodeProgram,
  packages: readonly PlacedPackage[],
  models: readonly string[],
  own: string,
): Promise<Entry[]> {
  const prefix = dirname(dirname(node.file))
  const nodeText = await firstOf([
    join(dirname(node.file), FOLDER, NODE_TEXT),
    join(prefix, 'LICENSE'),
    ...['LICENSE', 'copyright'].map((name) => join(prefix, 'share/doc/nodejs', name)),
    join(prefix, 'share/doc/node/LICENSE'),
  ])
  const gccText = await firstOf([
    join(dirname(node.file), FOLDER, GCC_TEXT),
    '/usr/share/doc/libstdc++6/copyright',
    '/usr/share/licenses/libstdc++/COPYING.RUNTIME',
  ])
  const mit = own.slice(own.indexOf('Permission is hereby granted'))
  const rows = [
    `node ${process.versions.node}: MIT, with parts under other licences: ${FOLDER}/${NODE_TEXT}`,
    `lib/libstdc++.so.6, lib/libgcc_s.so.1: GPL-3.0-or-later WITH GCC-exception-3.1: ${FOLDER}/${GCC_TEXT}`,
    `llama.cpp, inside the packages @node-llama-cpp/*: MIT: ${FOLDER}/llama.cpp.txt`,
    ...packages.map(({ name, version, license, path }) => `${name} ${version}: ${license}: ${path}`),
    ...models.map((path) => `${path}: as whoever made the model says`),
  ]
  return [
    textEntry(`${FOLDER}/INDEX.txt`, rows.map((row) => `${row}\n`).join('')),
    textEntry(
      `${FOLDER}/${NODE_TEXT}`,
      nodeText ??
        `The licence of Node ${process.versions.node}: https://github.com/nodejs/node/blob/v${process.versions.node}/LICENSE\n`,
    ),
    textEntry(
      `${FOLDER}/${GCC_TEXT}`,
      gccText ??
        'GNU General Public License, version 3 or later (https://www.gnu.org/licenses/gpl-3.0.txt), with the GCC Runtime Library\nException, version 3.1 (https://www.gnu.org/licenses/gcc-exception-3.1.html). Sources: https://gcc.gnu.org/\n',
    ),
    textEntry(`${FOLDER}/llama.cpp.txt`, `MIT License\n\n${WITHIN_LLAMA.join('\n')}\n\n${mit}`),
  ]
}

async function firstOf(files: readonly string[]): Promise<string | null> {
  const found = files.find((file) => existsSync(file))
  return found === undefined ? null : readFile(found, 'utf8')
}
