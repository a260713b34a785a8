/** Lists the files of a bundle. They are taken from this installation of kvfold. */
import { existsSync } from 'node:fs'
import { lstat, readFile } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import {
  dockerfile,
  type BundleEntry,
  fileEntry,
  folderEntries,
  inOrder,
  launcher,
  readme,
  systemdUnit,
  textEntry,
} from './entries.js'
import { type Binary, nodeProgram, type NodeProgram, readElf, type Requirements, requirementsOf } from './requirements.js'

export const BUNDLE_GPUS = ['cpu', 'cuda', 'vulkan'] as const
export type BundleGpu = (typeof BUNDLE_GPUS)[number]

export interface ContentsOptions {
  readonly root: string
  /** The folder of the compiled program. Default: `dist` of the package; tests use another one. */
  readonly dist?: string
  readonly gpu: BundleGpu
  readonly models: readonly string[]
}

export interface Contents {
  readonly name: string
  readonly entries: readonly BundleEntry[]
  readonly requirements: Requirements
}

const TRIPLETS: Readonly<Record<string, string>> = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' }
/** Compiled files that a bundle must have: kvfold does not run without the first, and has no dashboard without the second. */
const COMPILED = ['cli/main.js', 'dashboard/index.html']
/** Files of the package that kvfold reads at run time, beside its compiled program. */
const OWN_FILES = [
  ...['package.json', 'LICENSE', 'build/kvfold.node', 'build/kvfold.json', 'src/lab/words.json'],
  ...['native-models/acm/acm.gguf', 'native-models/acm/README.md'],
]
/** The folder of the built-in model. Bundles leave out its ONNX export, because only tests read it. */
const BUILTIN_FOLDER = 'native-models/builtin'
/** The sources of llama.cpp (35 MB). Bundles leave them out, because they are needed only to compile it. */
const SOURCES = 'llama/gitRelease.bundle'

/**
 * Lists the contents of a bundle. @throws KvfoldError bundle/unsuitable when this installation or its Node cannot run on another machine;
 * cli/bad-usage for models
 */
export async function bundleContents({ root, dist = join(root, 'dist'), gpu, models }: ContentsOptions): Promise<Contents> {
  const triplet = TRIPLETS[process.arch]
  if (triplet === undefined)
    throw new KvfoldError('bundle/unsuitable', `Bundles are made for x64 and arm64, not for ${process.arch}.`)
  const node = await nodeProgram()
  const backends = backendPackages(gpu)
  const packages = await productionPackages(root, (name) => !name.startsWith('@node-llama-cpp/') || backends.includes(name))
  const absent = backends.filter((name) => !packages.some((found) => found.name === name))
  if (absent.length > 0)
    throw new KvfoldError(
      'bundle/unsuitable',
      `--gpu ${gpu} needs packages that are not installed: ${absent.join(', ')}; install kvfold again with its optional packages.`,
    )

  const base = commonFolder(packages)
  const placed = packages.map((found) => ({ ...found, path: ['app', relative(base, found.folder)].filter(Boolean).join('/') }))
  const app = placed[0]!.path
  const parts = await Promise.all([
    ownEntries(app, root, dist),
    ...placed.slice(1).map(({ path, folder }) => folderEntries(path, folder, needed)),
  ])
  const program = await fileEntry('node', node.file, true)
  const libraries = node.libraries.map(({ name, ...library }) => ({ ...library, path: `lib/${name}` }))
  const modelEntries = await placeModels(models)
  const modelPaths = modelEntries.map(({ path }) => path)
  const inside = [program, ...parts.flat()]
  const requirements = requirementsOf(binariesOf(inside, node.elf.machine), { libraries, minor: node.libraryMinor })
  const { version } = packages[0]!
  const own = await readFile(join(root, 'LICENSE'), 'utf8')
  const entries = [
    ...inside,
    ...(await Promise.all(libraries.map(({ path, file }) => fileEntry(path, file)))),
    ...modelEntries,
    textEntry('kvfold', launcher(`${app}/dist/cli/main.js`, triplet, requirements.cppMinor), true),
    textEntry('README.md', readme({ version, nodeVersion: process.versions.node, gpu, requirements, models: modelPaths })),
    textEntry('Dockerfile', dockerfile()),
    textEntry('kvfold.service', systemdUnit()),
    ...(await licenceEntries(node, inPathOrder(placed), modelPaths, own)),
  ]
  return { name: `kvfold-${version}-linux-${process.arch}-${gpu}`, entries: inOrder(entries), requirements }
}

/**
 * Lists the packages with llama.cpp's libraries for a kind of GPU. The CPU package is always included: kvfold reads model headers with it,
 * and it runs on machines without a GPU driver.
 */
function backendPackages(gpu: BundleGpu): string[] {
  const cpu = `@node-llama-cpp/linux-${process.arch}`
  switch (gpu) {
    case 'cpu':
      return [cpu]
    case 'vulkan':
      return [cpu, `${cpu}-vulkan`]
    case 'cuda':
      // The package `-cuda-ext` supports the previous generation of CUDA.
      return [cpu, `${cpu}-cuda`, `${cpu}-cuda-ext`]
  }
}

async function ownEntries(app: string, root: string, dist: string): Promise<BundleEntry[]> {
  const missing = [...OWN_FILES, BUILTIN_FOLDER].filter((file) => !existsSync(join(root, file)))
  missing.push(...COMPILED.filter((file) => !existsSync(join(dist, file))).map((file) => `dist/${file}`))
  if (missing.length > 0)
    throw new KvfoldError(
      'bundle/unsuitable',
      `kvfold is not built: ${missing.join(', ')} is missing in ${root}; run npm run build.`,
    )
  const [files, program, builtin] = await Promise.all([
    Promise.all(OWN_FILES.map((file) => fileEntry(`${app}/${file}`, join(root, file)))),
    folderEntries(`${app}/dist`, dist, needed),
    folderEntries(`${app}/${BUILTIN_FOLDER}`, join(root, BUILTIN_FOLDER), (within) => within !== 'onnx'),
  ])
  return [...files, ...program, ...builtin]
}

/**
 * Whether a bundle needs this file of a package. Nested packages are left out here, because they are added as packages of their own. Type
 * declarations and source maps are only for developers.
 */
function needed(within: string): boolean {
  const name = basename(within)
  return name !== 'node_modules' && name !== '.git' && within !== SOURCES && !/\.(d\.[cm]?ts|map|tsbuildinfo)$/.test(name)
}

/** Lists the model files, with all parts of split models. @throws KvfoldError cli/bad-usage when two files have the same name */
async function placeModels(models: readonly string[]): Promise<BundleEntry[]> {
  const files = models.flatMap((file) => {
    const [, start, , count] = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/.exec(file) ?? []
    if (start === undefined || count === undefined) return [file]
    return Array.from({ length: Number(count) }, (_, index) => `${start}-${String(index + 1).padStart(5, '0')}-of-${count}.gguf`)
  })
  const unique = [...new Set(files)]
  const lost = unique.find((file) => !existsSync(file))
  if (lost !== undefined)
    throw new KvfoldError('model/not-found', `A part of the model is missing: ${lost}. Put it beside the other parts.`)
  const twice = unique.find((file, at) => unique.findIndex((other) => basename(other) === basename(file)) < at)
  if (twice !== undefined) throw new KvfoldError('cli/bad-usage', `Two models are called ${basename(twice)}; rename one of them.`)
  return Promise.all(unique.map((file) => fileEntry(`models/${basename(file)}`, file)))
}

/** Returns those entries that are programs or libraries for this kind of processor. */
function binariesOf(entries: readonly BundleEntry[], machine: string): Binary[] {
  return entries.flatMap(({ path, source }) => {
    if (source.kind !== 'file' || !/(^node|\.node|\.so(\.[\d.]+)?)$/.test(path)) return []
    const elf = readElf(source.file)
    return elf === null || elf.machine !== machine ? [] : [{ path, elf }]
  })
}

const inPathOrder = <T extends { readonly path: string }>(items: readonly T[]): T[] =>
  [...items].sort((a, b) => (a.path < b.path ? -1 : 1))

// The npm packages that kvfold needs to run: its installed dependencies without development dependencies.

export interface Package {
  readonly name: string
  readonly version: string
  /** The licence's SPDX id, or the package's own wording. */
  readonly license: string
  readonly folder: string
}

interface PackageManifest {
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
 * Returns the package in `root` and all packages that it needs to run, as installed: npm does not publish the lock file. Leaves out
 * optional packages that are missing, are for other machines, or that `wanted` rejects.
 * @throws KvfoldError bundle/unsuitable when a package is missing, or is a link (pnpm)
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
        throw new KvfoldError(
          'bundle/unsuitable',
          `The package ${needed} is not installed (${name} needs it); install kvfold again (npm ci in a checkout).`,
        )
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

/** Returns the folder that contains all packages: kvfold's own, or the project that has kvfold in its node_modules. */
function commonFolder(packages: readonly Package[]): string {
  return packages.reduce((base, { folder }) => {
    while (relative(base, folder).startsWith('..')) base = dirname(base)
    return base
  }, packages[0]!.folder)
}

function needs(manifest: PackageManifest): { name: string; optional: boolean }[] {
  const { dependencies = {}, optionalDependencies = {}, peerDependencies = {}, peerDependenciesMeta = {} } = manifest
  const peers = Object.keys(peerDependencies).filter((name) => peerDependenciesMeta[name]?.optional !== true)
  const optional = new Set(Object.keys(optionalDependencies))
  return [...Object.keys(dependencies).filter((name) => !optional.has(name)), ...peers]
    .map((name) => ({ name, optional: false }))
    .concat([...optional].map((name) => ({ name, optional: true })))
}

/** Returns the folder where Node would find the package; null when it is not installed. */
async function installed(name: string, from: string): Promise<string | null> {
  for (let folder = from; ; folder = dirname(folder)) {
    const candidate = join(folder, 'node_modules', name)
    if ((await lstat(join(candidate, 'package.json')).catch(() => null)) !== null) return candidate
    if (dirname(folder) === folder) return null
  }
}

/** Whether a package is for this kind of machine. Checks the name too, because some packages for musl declare it only there. */
function fits(name: string, { os = [], cpu = [], libc = [] }: PackageManifest): boolean {
  const allows = (list: readonly string[], value: string): boolean =>
    !list.includes(`!${value}`) && (list.every((item) => item.startsWith('!')) || list.includes(value))
  return allows(os, process.platform) && allows(cpu, process.arch) && allows(libc, 'glibc') && !/-musl(eabi(hf)?)?$/.test(name)
}

async function readManifest(folder: string): Promise<PackageManifest> {
  return JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as PackageManifest
}

// The licence texts of a bundle.

const FOLDER = 'LICENSES'
const NODE_TEXT = 'node.txt'
const GCC_TEXT = 'gcc.txt'

/**
 * Projects whose code is compiled into the libraries of @node-llama-cpp. The licence of those packages names only the author of
 * node-llama-cpp. All of these are under MIT.
 */
const WITHIN_LLAMA = [
  'llama.cpp and ggml: Copyright (c) 2023-2026 The ggml authors',
  'JSON for Modern C++: Copyright (c) 2013-2025 Niels Lohmann',
  'cpp-httplib: Copyright (c) 2017 yhirose',
]

export interface PlacedPackage extends Package {
  readonly path: string
}

/** Makes the licence files: an index of all licences, and texts that are in no package's own folder. `own`: kvfold's licence text (MIT). */
async function licenceEntries(
  node: NodeProgram,
  packages: readonly PlacedPackage[],
  models: readonly string[],
  own: string,
): Promise<BundleEntry[]> {
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
    ...models.map((path) => `${path}: see the licence of the model`),
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
