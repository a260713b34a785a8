/**
 * Owns the CPU library that this machine's own compiler made: the same source, the same instructions as the one of node-llama-cpp's libraries
 * that ggml chose for this processor. A newer compiler may make far quicker code of it.
 */
import { existsSync } from 'node:fs'
import { copyFile, mkdir, mkdtemp, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { configure, extractSource, make, needTools } from './source-build.js'

/** `libggml-cpu-zen4.so`: for a processor of this kind; where a library has all kinds in one, it has no name that could be made again. */
const NAME = /^libggml-cpu-(\w+)\.so$/

/** As node-llama-cpp compiles its own, but for the compiler. */
const OPTIONS = {
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
    const temporary = `${path}.${process.pid}`
    await copyFile(join(build, 'bin', basename(path)), temporary)
    await rename(temporary, path)
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
