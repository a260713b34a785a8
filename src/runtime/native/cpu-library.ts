/**
 * Owns the CPU library that this machine's own compiler made: the same source, the same instructions as the one of node-llama-cpp's libraries
 * that ggml chose for this processor. A newer compiler may make far quicker code of it.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createWriteStream, existsSync } from 'node:fs'
import { copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { availableParallelism, tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { writeWhole } from '../core/whole-file.js'

/** `libggml-cpu-zen4.so`: for a processor of this kind; where a library has all kinds in one, it has no name that could be made again. */
const NAME = /^libggml-cpu-(\w+)\.so$/

/**
 * GCC 12 leaves out all but 8 bytes of what is stored for `ldtilecfg`, of which it is told no more, and the process dies at the first quantised product on a
 * processor with AMX (ggml-cpu/amx/mmq.cpp).
 */
export const COMPILER_OPTIONS = { CMAKE_CXX_FLAGS: '-fno-tree-dse -fno-dse' } as const

/** As node-llama-cpp compiles its own, but for the compiler. */
const OPTIONS = {
  ...COMPILER_OPTIONS,
  CMAKE_BUILD_TYPE: 'Release',
  // The library is loaded beside node-llama-cpp's, which have no version in their names.
  CMAKE_PLATFORM_NO_VERSIONED_SONAME: 'ON',
  BUILD_SHARED_LIBS: 'ON',
  GGML_BACKEND_DL: 'ON',
  GGML_CPU_ALL_VARIANTS: 'ON',
  GGML_NATIVE: 'OFF',
  GGML_OPENMP: 'OFF',
  LLAMA_BUILD_COMMON: 'OFF',
  LLAMA_BUILD_TOOLS: 'OFF',
  LLAMA_BUILD_TESTS: 'OFF',
  LLAMA_BUILD_EXAMPLES: 'OFF',
  LLAMA_BUILD_SERVER: 'OFF',
  LLAMA_BUILD_UI: 'OFF',
  LLAMA_OPENSSL: 'OFF',
}

/** Where the library that was compiled here lies, or would. */
export const compiledPath = (packageRoot: string, release: string, shipped: string): string =>
  join(packageRoot, 'build', 'cpu', release, basename(shipped))

/** Of the libraries in a process the one that computes on the processor; null where that is no file of its own. */
export const shippedCpuLibrary = (libraries: readonly string[]): string | null =>
  libraries.find((path) => NAME.test(basename(path))) ?? null

export interface Compiling {
  /** The library that it takes the place of (`shippedCpuLibrary`). */
  readonly shipped: string
  /** Where it goes (`compiledPath`). */
  readonly path: string
  readonly signal?: AbortSignal
  /** Share that is done, 0..1. */
  readonly onProgress?: (share: number) => void
}

/**
 * Compiles it: a minute of one core, nothing is downloaded. A file under `path` is whole.
 * @throws KvfoldError native/build-failed: no git, cmake or compiler here, or the compiler's last words; engine/cancelled on `signal`.
 */
export async function compileCpuLibrary({ shipped, path, signal, onProgress }: Compiling): Promise<void> {
  const [, kind = ''] = NAME.exec(basename(shipped)) ?? []
  needTools()
  const folder = await mkdtemp(join(tmpdir(), 'kvfold-cpu-'))
  try {
    const [source, build] = [join(folder, 'source'), join(folder, 'build')]
    const watched = { log: join(folder, 'log'), ...(signal === undefined ? {} : { signal }) }
    await extractSource(source, watched)
    await configure(source, build, OPTIONS, watched)
    await make(build, `ggml-cpu-${kind}`, { ...watched, ...(onProgress === undefined ? {} : { onProgress }) })
    await mkdir(dirname(path), { recursive: true })
    await writeWhole(path, (temporary) => copyFile(join(build, 'bin', basename(path)), temporary))
  } catch (error) {
    if (error instanceof KvfoldError) throw error
    throw new KvfoldError(
      'native/build-failed',
      `The CPU library cannot be put into ${dirname(path)} (${(error as Error).message}).`,
      {
        cause: error,
      },
    )
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/**
 * The library to compute with instead of the shipped one; null: none. `KVFOLD_CPU_LIBRARY`: `shipped`, or the path of another.
 * @throws KvfoldError native/library-mismatch when the path that was given is no file
 */
export function wantedCpuLibrary(compiled: string | null, environment: NodeJS.ProcessEnv = process.env): string | null {
  const given = environment['KVFOLD_CPU_LIBRARY'] ?? ''
  if (given === 'shipped') return null
  if (given === '') return compiled !== null && existsSync(compiled) ? compiled : null
  if (existsSync(given)) return given
  throw new KvfoldError('native/library-mismatch', `There is no file ${given} (KVFOLD_CPU_LIBRARY); give a path, or \`shipped\`.`)
}

// Builds out of llama.cpp's source, which the installed node-llama-cpp package carries as a git bundle.

export interface WatchedBuild {
  /** The file that everything printed is added to. */
  readonly log: string
  readonly signal?: AbortSignal
}

/** @throws KvfoldError native/build-failed: git, cmake or a C++ compiler is missing */
export function needTools(): void {
  need(['git'], 'git', 'the source is a git bundle')
  need(['cmake'], 'cmake', 'the source is built with it')
  need([process.env['CXX'] ?? 'c++', 'g++', 'clang++'], 'a C++ compiler', 'the source is built with it')
}

function need(programs: readonly string[], name: string, why: string): void {
  const works = programs.some((program) => spawnSync(program, ['--version'], { stdio: 'ignore' }).status === 0)
  if (!works) throw new KvfoldError('native/build-failed', `${name} was not found, and ${why}; install it and try again.`)
}

/** The source as files in `folder`. */
export function extractSource(folder: string, watched: WatchedBuild): Promise<void> {
  const places = createRequire(import.meta.url).resolve.paths('node-llama-cpp') ?? []
  const bundles = places.map((place) => join(place, 'node-llama-cpp', 'llama', 'gitRelease.bundle'))
  const bundle = bundles.find((path) => existsSync(path))
  if (bundle === undefined)
    throw new KvfoldError('native/build-failed', 'The installed node-llama-cpp has no source with it; run npm ci again.')
  return run('git', ['clone', '--quiet', bundle, folder], watched)
}

export const configure = (
  source: string,
  build: string,
  options: Readonly<Record<string, string>>,
  watched: WatchedBuild,
): Promise<void> => {
  const given = Object.entries(options).map(([name, value]) => `-D${name}=${value}`)
  return run('cmake', ['-S', source, '-B', build, ...given], watched)
}

/** Goes on where one that was cut off stopped. */
export const make = (
  build: string,
  target: string,
  { onProgress, ...watched }: WatchedBuild & { readonly onProgress?: (share: number) => void },
): Promise<void> =>
  run('cmake', ['--build', build, '--target', target, '--parallel', String(availableParallelism())], watched, (line) => {
    const [, percent] = /^\[ *(\d+)%\]/.exec(line) ?? []
    if (percent !== undefined) onProgress?.(Number(percent) / 100)
  })

/** Runs a program to its end; its last words become the error. */
async function run(
  program: string,
  args: readonly string[],
  { log, signal }: WatchedBuild,
  heard: (line: string) => void = () => undefined,
): Promise<void> {
  // A caller's own git settings must not lead our git astray.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('GIT_')))
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'pipe'], ...(signal === undefined ? {} : { signal }) })
  const file = createWriteStream(log, { flags: 'a' })
  let last: string[] = []
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      file.write(text)
      const lines = text.split('\n').filter((line) => line.trim() !== '')
      lines.forEach(heard)
      last = [...last, ...lines].slice(-8)
    })
  const code = await new Promise<number | NodeJS.Signals>((resolve, reject) => {
    child.on('error', reject).on('close', (status, killed) => {
      resolve(status ?? killed ?? 1)
    })
  }).finally(() => {
    file.end()
  })
  if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The build was stopped.')
  if (code !== 0) throw new KvfoldError('native/build-failed', `${basename(program)} failed (${code}): ${last.join('\n')}`)
}
