/**
 * Compiles the CPU library with this machine's own compiler. It has the same source and the same instructions as the one of
 * node-llama-cpp's libraries that ggml chose for this processor. A newer compiler may make far quicker code of it.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createWriteStream, existsSync } from 'node:fs'
import { copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { availableParallelism, tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { writeWhole } from '../core/whole-file.js'

/**
 * The library of one kind of processor, e.g. `libggml-cpu-zen4.so`. A library with all kinds in one has another name, and cannot be
 * compiled again here.
 */
const NAME = /^libggml-cpu-(\w+)\.so$/

/**
 * GCC 12 thinks that `ldtilecfg` reads only 8 bytes and drops the stores of all other bytes. Then the process dies at the first quantised
 * product on a processor with AMX (ggml-cpu/amx/mmq.cpp).
 */
export const COMPILER_OPTIONS = { CMAKE_CXX_FLAGS: '-fno-tree-dse -fno-dse' } as const

/** The options with which node-llama-cpp compiles its own libraries, the compiler aside. */
const OPTIONS = {
  ...COMPILER_OPTIONS,
  CMAKE_BUILD_TYPE: 'Release',
  // The library is loaded beside node-llama-cpp's, whose names have no version.
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

/** The path for the library compiled here, whether it exists or not. */
export const compiledPath = (packageRoot: string, release: string, shipped: string): string =>
  join(packageRoot, 'build', 'cpu', release, basename(shipped))

/** Returns the library that computes on the processor, among the libraries in a process; null if it has no file of its own. */
export const shippedCpuLibrary = (libraries: readonly string[]): string | null =>
  libraries.find((path) => NAME.test(basename(path))) ?? null

export interface Compiling {
  /** The library that the compiled one replaces (`shippedCpuLibrary`). */
  readonly shipped: string
  /** The path of the compiled library (`compiledPath`). */
  readonly path: string
  readonly signal?: AbortSignal
  /** Receives the share that is done, 0..1. */
  readonly onProgress?: (share: number) => void
}

/**
 * Compiles the library: it takes a minute of one core and downloads nothing. A file at `path` is always whole.
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
      `The CPU library could not be stored in ${dirname(path)} (${(error as Error).message}); check permissions and free space.`,
      {
        cause: error,
      },
    )
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/**
 * Returns the library to use instead of the shipped one; null to use the shipped one. `KVFOLD_CPU_LIBRARY` may be `shipped`, or the path of
 * another library.
 * @throws KvfoldError native/library-mismatch when that path is no file
 */
export function wantedCpuLibrary(compiled: string | null, environment: NodeJS.ProcessEnv = process.env): string | null {
  const given = environment['KVFOLD_CPU_LIBRARY'] ?? ''
  if (given === 'shipped') return null
  if (given === '') return compiled !== null && existsSync(compiled) ? compiled : null
  if (existsSync(given)) return given
  throw new KvfoldError('native/library-mismatch', `There is no file ${given} (KVFOLD_CPU_LIBRARY); give a path, or \`shipped\`.`)
}

// Builds from llama.cpp's source, which the installed node-llama-cpp package contains as a git bundle.

export interface WatchedBuild {
  /** The file to which all output is appended. */
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

/** Extracts the source as files into `folder`. */
export function extractSource(folder: string, watched: WatchedBuild): Promise<void> {
  const places = createRequire(import.meta.url).resolve.paths('node-llama-cpp') ?? []
  const bundles = places.map((place) => join(place, 'node-llama-cpp', 'llama', 'gitRelease.bundle'))
  const bundle = bundles.find((path) => existsSync(path))
  if (bundle === undefined)
    throw new KvfoldError(
      'native/build-failed',
      "The installed node-llama-cpp package lacks llama.cpp's source (llama/gitRelease.bundle); install kvfold with npm.",
    )
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

/** Builds the target. Continues an interrupted build. */
export const make = (
  build: string,
  target: string,
  { onProgress, ...watched }: WatchedBuild & { readonly onProgress?: (share: number) => void },
): Promise<void> =>
  run('cmake', ['--build', build, '--target', target, '--parallel', String(availableParallelism())], watched, (line) => {
    const [, percent] = /^\[ *(\d+)%\]/.exec(line) ?? []
    if (percent !== undefined) onProgress?.(Number(percent) / 100)
  })

/** Runs a program to its end. @throws KvfoldError native/build-failed with the program's last lines, engine/cancelled */
async function run(
  program: string,
  args: readonly string[],
  { log, signal }: WatchedBuild,
  heard: (line: string) => void = () => undefined,
): Promise<void> {
  // Leave out the caller's own git settings, which could mislead our git.
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
