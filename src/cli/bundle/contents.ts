/** Owns what goes into a bundle: the list of its files, made from this installation. */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { basename, join, relative } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import { type Binary, readElf, type Requirements, requirementsOf, nodeProgram } from './requirements.js'
import { fileEntry, folderEntries, inOrder, textEntry, type Entry } from './entry.js'
import { commonFolder, licenceEntries, productionPackages } from './packages.js'
import { launcher, readme } from './texts.js'

export const BUNDLE_GPUS = ['cpu', 'cuda', 'vulkan'] as const
export type BundleGpu = (typeof BUNDLE_GPUS)[number]

export interface ContentsOptions {
  /** The installed package. */
  readonly root: string
  /** Compiled program; the package's own `dist` unless a test says otherwise. */
  readonly dist?: string
  readonly gpu: BundleGpu
  /** GGUF files, absolute. */
  readonly models: readonly string[]
}

export interface Contents {
  /** `kvfold-<version>-linux-x64-cpu`. */
  readonly name: string
  readonly entries: readonly Entry[]
  readonly requirements: Requirements
}

const TRIPLETS: Readonly<Record<string, string>> = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' }
/** Without these nothing runs, or the server has no page to show. */
const COMPILED = ['cli/main.js', 'dashboard/index.html']
/** What kvfold reads of its own package, besides its compiled program. */
const OWN_FILES = ['package.json', 'LICENSE', 'build/kvfold.node', 'build/kvfold.json', 'src/eval/words.json']
/** Without its ONNX export, which only tests read. */
const BUILTIN_FOLDER = 'native-models/builtin'
/** 35 MB that only a compiler needs: llama.cpp's sources. */
const SOURCES = 'llama/gitRelease.bundle'

/** @throws KvfoldError bundle/unsuitable when this installation or its Node cannot run elsewhere; cli/bad-usage for models */
export async function bundleContents({ root, dist = join(root, 'dist'), gpu, models }: ContentsOptions): Promise<Contents> {
  const triplet = TRIPLETS[process.arch]
  if (triplet === undefined)
    throw new KvfoldError('bundle/unsuitable', `Bundles are made for x64 and arm64, not for ${process.arch}.`)
  const node = await nodeProgram()
  const backends = backendPackages(gpu)
  const packages = await productionPackages(root, (name) => !name.startsWith('@node-llama-cpp/') || backends.includes(name))
  const absent = backends.filter((name) => !packages.some((found) => found.name === name))
  if (absent.length > 0)
    throw new KvfoldError('bundle/unsuitable', `Not installed: ${absent.join(', ')}; --gpu ${gpu} needs it, see npm ci.`)

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
    ...(await licenceEntries(node, inPathOrder(placed), modelPaths, own)),
  ]
  return { name: `kvfold-${version}-linux-${process.arch}-${gpu}`, entries: inOrder(entries), requirements }
}

/** The CPU's is always among them: what only reads a model's header runs there, and so does a machine whose driver is missing. */
function backendPackages(gpu: BundleGpu): string[] {
  const cpu = `@node-llama-cpp/linux-${process.arch}`
  switch (gpu) {
    case 'cpu':
      return [cpu]
    case 'vulkan':
      return [cpu, `${cpu}-vulkan`]
    case 'cuda':
      // The second one is for machines with the CUDA of the generation before.
      return [cpu, `${cpu}-cuda`, `${cpu}-cuda-ext`]
  }
}

async function ownEntries(app: string, root: string, dist: string): Promise<Entry[]> {
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

/** Nested packages come by themselves; types and source maps are for those who write programs. */
function needed(within: string): boolean {
  const name = basename(within)
  return name !== 'node_modules' && name !== '.git' && within !== SOURCES && !/\.(d\.[cm]?ts|map|tsbuildinfo)$/.test(name)
}

/** All parts of a model that is cut into several files. @throws KvfoldError cli/bad-usage when two have one name */
async function placeModels(models: readonly string[]): Promise<Entry[]> {
  const files = models.flatMap((file) => {
    const [, start, , count] = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/.exec(file) ?? []
    if (start === undefined || count === undefined) return [file]
    return Array.from({ length: Number(count) }, (_, index) => `${start}-${String(index + 1).padStart(5, '0')}-of-${count}.gguf`)
  })
  const unique = [...new Set(files)]
  const lost = unique.find((file) => !existsSync(file))
  if (lost !== undefined) throw new KvfoldError('model/not-found', `A part of the model is missing: ${lost}.`)
  const twice = unique.find((file, at) => unique.findIndex((other) => basename(other) === basename(file)) < at)
  if (twice !== undefined) throw new KvfoldError('cli/bad-usage', `Two models are called ${basename(twice)}; rename one of them.`)
  return Promise.all(unique.map((file) => fileEntry(`models/${basename(file)}`, file)))
}

/** Programs and libraries for this kind of processor. */
function binariesOf(entries: readonly Entry[], machine: number): Binary[] {
  return entries.flatMap(({ path, source }) => {
    if (source.kind !== 'file' || !/(^node|\.node|\.so(\.[\d.]+)?)$/.test(path)) return []
    const elf = readElf(source.file)
    return elf === null || elf.machine !== machine ? [] : [{ path, elf }]
  })
}

const inPathOrder = <T extends { readonly path: string }>(items: readonly T[]): T[] =>
  [...items].sort((a, b) => (a.path < b.path ? -1 : 1))
